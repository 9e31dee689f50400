// What may be done: break a lock, drop those who wait for it, end its run. Each is shown first.
import { clock, count, el, mark, plain, say, taskOf, what } from "./format.js";

const SHOWN = 20;
let token = "", by = ""; // for as long as the page is open

export function askToBreak(row, about) {
  const who = `Held by ${plain(row.task_id ?? "nobody yet")}${row.node ? ` on ${plain(row.node)}` : ""}. `;
  ask(about, "Break this lock?", "Break the lock", "break", row, [
    el("p.note", {}, `${who}Its run is told that it lost the lock, and may go on for a while: the next one may overlap with it. `
      + "Only this holder loses the lock, nobody who takes it in the meantime."),
  ], () => "The lock is broken.");
}

export function askToEnd(row, about) {
  const since = row.acquired_at ? `, since ${clock(row.acquired_at)}` : "";
  ask(about, "End this run?", "End the run", "end", row, [
    el("p.note", {}, `${plain(row.task_id)} on ${plain(row.node ?? "an unknown node")}${row.pid ? `, process ${row.pid}` : ""}${since}. `
      + "Celery revokes the task and terminates its process: what it was doing is cut off, and its lock is freed. "
      + "Pools of threads cannot end a run."),
  ], (done) => (done.answered.length ? `Told to ${count(done.answered.length, "worker")}.` : "No worker answered: is the broker reached from here?"));
}

export function askToDrop(row, shown, about) {
  const more = row.waiting - Math.min(shown.length, SHOWN);
  ask(about, `Drop ${count(row.waiting, "task")}?`, "Drop them", "drop", row, [
    el("p.note", {}, "They end as skipped, and do not run:"),
    el("ol.preview", {}, ...shown.slice(0, SHOWN).map((text) => el("li", {}, text)), more > 0 ? el("li.more", {}, `and ${more.toLocaleString("en")} more`) : null),
  ], (done) => `${count(done.dropped, "task")} dropped.`);
}

// A dialog that shows what an action does, and asks who acts.
function ask(about, title, verb, action, row, content, saidOf) {
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
    el("p", {}, el("strong", {}, plain(taskOf(row) || "no task")), " ", what(row)), ...content,
    ...names, el("label", { for: "token" }, "Token"), secret, said, el("div.buttons", {}, close, submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    token = secret.value;
    by = name.value.trim();
    const [done, text] = await act(action, row, saidOf);
    say(said, text);
    mark(said, "data-done", done);
    submit.disabled = false;
    if (done) {
      submit.hidden = true;
      say(close, "Close");
    }
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  (about.asks_name && !by ? name : token ? submit : secret).focus();
}

async function act(action, row, saidOf) {
  try {
    const answer = await fetch(`api/locks/${action}`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
      body: JSON.stringify({ key: row.key, holder: row.holder ?? "", by }),
    });
    const said = await answer.json();
    return answer.ok ? [true, saidOf(said)] : [false, plain(said.error)];
  } catch (error) {
    return [false, plain(`no answer: ${error.message}`)];
  }
}
