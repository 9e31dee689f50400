// A lock's own page, and breaking it.
import { arrange, clock, count, el, mark, plain, say, shortId, taskOf, units, what } from "./format.js";
import { Lease, about, whoWaits } from "./rows.js";
import { Timeline, how, saidOf } from "./timeline.js";

const MOST = 50;
let token = ""; // for as long as the page is open

export class LockPage {
  #model;
  #place = document.getElementById("lock");
  #name = null;
  #detail = null;
  #asking = 0;
  #timeline;
  #slots = new Map();
  #parts;

  constructor(model) {
    this.#model = model;
    const part = this.#parts = {
      title: el("h2"), label: el("span.label"), key: el("code"), state: el("p.note"), slots: el("div.slots"),
      lanes: el("ul.lanes"), axis: el("div.axis", { "aria-hidden": "true" }),
      waiting: el("h3"), room: el("ol.room"), past: el("tbody"),
    };
    this.#place.append(
      el("p", {}, el("a", { href: "#/" }, "← all locks")),
      el("div.title", {}, part.title, part.label), el("p.key", {}, part.key), part.state, part.slots,
      el("section", {}, part.axis, part.lanes),
      el("div.columns", {},
        el("section", {}, part.waiting, part.room),
        el("section", {}, el("h3", {}, "What happened"), el("table.past", {},
          el("thead", {}, el("tr", {}, ...["At", "What", "How long", "Who"].map((text) => el("th", { scope: "col" }, text)))),
          part.past))));
    this.#timeline = new Timeline(model, part.lanes, part.axis);
  }

  // Show the lock with that name; null for none.
  open(name) {
    this.#place.hidden = name === null;
    if (name === this.#name) return;
    this.#name = name;
    this.#detail = null;
    if (name !== null) this.ask();
  }

  async ask() {
    const name = this.#name, asking = ++this.#asking;
    try {
      const answer = await fetch(`api/lock?name=${encodeURIComponent(name)}`);
      const detail = answer.ok ? await answer.json() : null;
      if (name === this.#name && asking === this.#asking && detail) this.#detail = detail;
      if (name === this.#name) this.show();
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the connection; the stream says so as well
    }
  }

  show() {
    if (this.#name === null) return;
    const part = this.#parts, items = [...(this.#model.lanes.get(this.#name)?.values() ?? [])];
    const rows = [...this.#model.rows.values()].filter((row) => row.name === this.#name);
    const thing = { ...items.findLast((item) => item.task), ...rows[0], name: this.#name };
    say(part.title, plain(taskOf(thing) || "Lock"));
    say(part.label, what(thing));
    say(part.key, plain(rows[0]?.key ?? this.#name));
    say(part.state, rows.length ? "" : "Nobody holds it and nobody waits for it now.");
    this.#showSlots(rows);
    this.#timeline.show(items.length ? [this.#name] : []);
    this.#showRoom(rows[0] ?? {});
    this.#showPast(items);
  }

  #showSlots(rows) {
    const before = this.#slots;
    this.#slots = new Map(rows.map((row) => [row.id, before.get(row.id) ?? new Slot(this.#model)]));
    for (const row of rows) this.#slots.get(row.id).update(row);
    arrange(this.#parts.slots, [...this.#slots.values()].map((slot) => slot.element));
  }

  #showRoom(row) {
    const { room = [] } = this.#detail ?? {};
    const waiting = row.waiting ?? 0;
    say(this.#parts.waiting, waiting ? `${count(waiting, "waits", "wait")} behind it` : "Nobody waits behind it");
    const shown = room.map((each) => el("li", {}, el("strong", {}, whoWaits(each, row)),
      el("span.note", {}, about(each), each.age === undefined ? "" : ` · for ${units(each.age)}`,
      each.published_for === undefined ? "" : ` · published ${units(each.published_for)} ago, not taken`)));
    if (waiting > room.length) shown.push(el("li.more", {}, `${(waiting - room.length).toLocaleString("en")} more, in the room or in pool slots`));
    this.#parts.room.replaceChildren(...shown);
  }

  #showPast(items) {
    const newest = items.filter((item) => item.kind !== "wait").sort((a, b) => b.began - a.began).slice(0, MOST);
    this.#parts.past.replaceChildren(...newest.map((item) => {
      const isMark = item.kind === "mark";
      const said = isMark ? `${item.count > 1 ? `${item.count} × ` : ""}${saidOf(item)}` : how(item).replace(/ (for|after)$/, "");
      const long = isMark ? "" : units((item.ended ?? this.#model.now()) - item.began);
      const who = [item.task_id && shortId(item.task_id), item.node && plain(item.node)].filter(Boolean).join(" · ");
      return el("tr", { class: isMark ? item.what : item.kind }, el("td", {}, clock(item.began)),
        el("td", {}, said), el("td", {}, long), el("td", { title: plain(item.task_id ?? "") }, who));
    }));
    if (!newest.length) this.#parts.past.append(el("tr", {}, el("td", { colspan: 4 }, "Nothing in the last 15 minutes")));
  }

  tick() {
    for (const slot of this.#slots.values()) slot.tick();
    if (this.#name !== null) this.#timeline.draw();
  }
}

// One holder of the lock.
class Slot {
  state = el("span.state");
  facts = el("dl");
  lease = new Lease();
  held = el("span");
  button = el("button.break", { type: "button", onclick: () => askToBreak(this.row) }, "Break …");
  element = el("div.slot", {}, el("div.line", {}, this.state, this.held, this.lease.element, this.button), this.facts);
  row = null;

  constructor(model) {
    this.model = model;
  }

  update(row) {
    this.row = row;
    say(this.state, row.state);
    mark(this.state, "data-state", row.state);
    this.button.hidden = !(this.model.about.may_break && row.holder);
    const facts = { Task: row.task_id, Attempt: row.attempt || null, Node: row.node, Process: row.pid,
      Since: row.acquired_at && clock(row.acquired_at), Fence: row.fence, "Replaced by": row.replaced_by };
    const shown = Object.entries(facts).filter(([, value]) => value !== undefined && value !== null);
    this.facts.replaceChildren(...shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, plain(value)))));
    this.tick();
  }

  tick() {
    const now = this.model.now(), since = this.row.acquired_at;
    say(this.held, since === undefined ? "" : `for ${units(now - since)}`);
    this.lease.update(this.row, now);
  }
}

// -- breaking -------------------------------------------------------------------------------------

function askToBreak(row) {
  const dialog = document.getElementById("breaking");
  const input = el("input", { type: "password", autocomplete: "off", id: "token", required: "" });
  input.value = token;
  const said = el("output.said");
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const submit = el("button.break", { type: "submit" }, "Break the lock");
  const form = el("form", {}, el("h2", { id: "breaking-title" }, "Break this lock?"),
    el("p", {}, el("strong", {}, plain(taskOf(row) || "no task")), " ", what(row)),
    el("p.note", {}, `Held by ${plain(row.task_id ?? "nobody yet")}${row.node ? ` on ${plain(row.node)}` : ""}. Its run is told that it lost the lock, `
      + "and may go on for a while: the next one may overlap with it. Only this holder loses the lock, nobody who takes it in the meantime."),
    el("label", { for: "token" }, "Token"), input, said, el("div.buttons", {}, close, submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    token = input.value;
    const [done, text] = await breakLock(row);
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
  (token ? submit : input).focus();
}

async function breakLock(row) {
  try {
    const answer = await fetch("api/locks/break", {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
      body: JSON.stringify({ key: row.key, holder: row.holder }),
    });
    const said = await answer.json();
    return answer.ok ? [true, "The lock is broken."] : [false, plain(said.error)];
  } catch (error) {
    return [false, plain(`no answer: ${error.message}`)];
  }
}
