// What may be done: break locks, drop those who wait for them, end a run, suspend a lock. Each is shown first.
import { clock, count, el, h, href, plain, say, taskOf, units, what } from "./format.js";

const SHOWN = 20;
let token = "", by = ""; // for as long as the page is open

// A button, if that may be done.
export const action = (text, may, onclick) => h("button.break", { type: "button", hidden: !may, onclick }, text);

export function askToBreak(row, about) {
  const who = `Held by ${plain(row.task_id ?? "nobody yet")}${row.node ? ` on ${plain(row.node)}` : ""}. `;
  ask(about, "Break this lock?", "Break the lock", "break", [row], [
    el("p.note", {}, `${who}Its run is told that it lost the lock, and may go on for a while: the next one may overlap with it. `
      + "Only this holder loses the lock, nobody who takes it in the meantime."),
  ], () => "The lock is broken.");
}

export function askToEnd(row, about) {
  const since = row.acquired_at ? `, since ${clock(row.acquired_at)}` : "";
  ask(about, "End this run?", "End the run", "end", [row], [
    el("p.note", {}, `${plain(row.task_id)} on ${plain(row.node ?? "an unknown node")}${row.pid ? `, process ${row.pid}` : ""}${since}. `
      + "Celery revokes the task and terminates its process: what it was doing is cut off, and its lock is freed. "
      + "Pools of threads cannot end a run."),
  ], ([done]) => (done.answered.length ? `Told to ${count(done.answered.length, "worker")}.` : "No worker answered: is the broker reached from here?"));
}

// The tasks that wait for these locks: those that are `shown`, if they are known; else one row for each lock.
export function askToDrop(rows, shown, about) {
  const all = rows.reduce((sum, row) => sum + row.waiting, 0), where = shown.length ? "" : ` that ${all === 1 ? "waits" : "wait"} for ${count(rows.length, "lock")}`;
  ask(about, `Drop ${count(all, "task")}${where}?`, "Drop them", "drop", rows,
    [el("p.note", {}, "They end as skipped, and do not run:"),
      shown.length ? preview(shown, all) : preview(rows.map((row) => `${nameOf(row)} · ${count(row.waiting, "waits", "wait")}`), rows.length)],
    (done) => `${count(done.reduce((sum, each) => sum + each.dropped, 0), "task")} dropped.`);
}

// -- what operators keep from running -------------------------------------------------------------

// What is suspended, who did it, why, until when: everything, or what keeps this lock from running.
export function suspensions(model, row = null) {
  const found = model.suspended.filter((each) => !row || each.lock === row.name || (each.task && each.task === taskOf(row)));
  return found.map((each) => h("li", { key: each.target },
    h("strong", {}, "Suspended: "), each.lock ? h("a", { href: href(each.lock) }, plain(each.label || each.target)) : plain(each.target),
    ` until ${clock(each.ends_at)}, for ${units(each.ends_at - model.now())} more. By ${plain(each.by)}${each.why ? `: ${plain(each.why)}` : ""}`));
}

// No new run gets this lock for a while.
export function askToSuspend(row, about) {
  const length = el("select", { id: "length" }, ...Object.entries({ "10 minutes": 600, "1 hour": 3600, "8 hours": 28800, "1 day": 86400 })
    .map(([text, seconds]) => el("option", { value: seconds }, text)));
  const why = el("input", { id: "why", autocomplete: "off", maxlength: 200 });
  length.value = 3600;
  ask(about, "Suspend this lock?", "Suspend it", "suspend", [row], [
    el("p.note", {}, "A run that has the lock goes on. Calls that come do what they do as duplicates: those that skip do not run at all. "
      + "It ends by itself."),
    el("label", { for: "length" }, "For"), length, el("label", { for: "why" }, "Why: lists and logs say it"), why,
  ], () => "The lock is suspended.", () => ({ seconds: Number(length.value), why: why.value.trim() }));
}

export function askToResume(row, about) {
  const { by, why } = row.suspension;
  ask(about, "Resume?", "Resume", "resume", [row], [
    el("p.note", {}, `Suspended by ${plain(by)}${why ? `: ${plain(why)}` : ""}. If a task is suspended, all its locks are resumed.`),
  ], ([done]) => `Resumed: ${plain(done.target)}.`);
}

export function askToBreakAll(rows, about) {
  ask(about, `Break ${count(rows.length, "lock")}?`, "Break them", "break", rows, [
    el("p.note", {}, "Their runs are told that they lost the lock, and may go on for a while: the next ones may overlap with them. "
      + "Only these holders lose their locks:"),
    preview(rows.map((row) => `${nameOf(row)} · ${plain(row.task_id ?? "")} on ${plain(row.node)}`), rows.length),
  ], (done) => `${count(done.length, "lock")} broken.`);
}

const nameOf = (row) => `${plain(taskOf(row) || "no task")} ${what(row)}`;

function preview(texts, all) {
  const shown = texts.slice(0, SHOWN), more = all - shown.length;
  return el("ol.preview", {}, ...shown.map((text) => el("li", {}, text)), more > 0 ? el("li.more", {}, `and ${more.toLocaleString("en")} more`) : null);
}

// A dialog that shows what an action does to the locks of these rows, and asks who acts.
function ask(about, title, verb, action, rows, content, saidOf, more = () => ({})) {
  const dialog = document.getElementById("ordering");
  const name = el("input", { id: "by", autocomplete: "off", maxlength: 100 });
  const secret = el("input", { type: "password", autocomplete: "off", id: "token", required: "" });
  name.value = by;
  secret.value = token;
  const said = el("output.said");
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const submit = el("button.break", { type: "submit" }, verb);
  const names = about.asks_name ? [el("label", { for: "by" }, "Your name: the log and the holder are told"), name] : [];
  const form = el("form", {}, el("h2", { id: "ordering-title" }, title),
    rows.length === 1 ? el("p", {}, el("strong", {}, plain(taskOf(rows[0]) || "no task")), " ", what(rows[0])) : null, ...content,
    ...names, el("label", { for: "token" }, "Token"), secret, said, el("div.buttons", {}, close, submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    token = secret.value;
    by = name.value.trim();
    const [done, text] = await act(action, rows, saidOf, (text) => say(said, text), more());
    say(said, text);
    said.dataset.done = done;
    submit.disabled = false;
    if (done) {
      submit.hidden = true;
      say(close, "Close");
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  const fields = [...form.querySelectorAll("select, input")];
  (fields.find((each) => !each.value) ? fields[0] : submit).focus();
}

// One after another: each is refused for itself, if another run holds the lock by now.
async function act(action, rows, saidOf, tell, more) {
  const done = [];
  let refused = "", goesOn = true;
  for (const [place, row] of rows.entries()) {
    if (rows.length > 1) tell(`${place + 1} of ${rows.length} …`);
    const [status, said] = await order(action, row, more);
    if (status === 200) done.push(said);
    else refused = plain(said.error);
    goesOn = status === 200 || status === 409;
    if (!goesOn) break;
  }
  if (!refused) return [true, saidOf(done)];
  return done.length ? [goesOn, `${saidOf(done)} Not all: ${refused}`] : [false, refused];
}

async function order(action, row, more) {
  try {
    const answer = await fetch(`api/locks/${action}`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
      body: JSON.stringify({ key: row.key, holder: row.holder ?? "", by, ...more }),
    });
    return [answer.status, await answer.json()];
  } catch (error) {
    return [0, { error: `no answer: ${error.message}` }];
  }
}
