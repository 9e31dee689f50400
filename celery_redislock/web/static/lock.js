// A lock's own page: who has it, who waits, what happened as far back as that is kept.
import { arrange, clock, count, el, inWords, mark, plain, quoted, say, shortId, tail, taskOf, units, what, wrap } from "./format.js";
import { askToBreak, askToDrop, askToEnd, askToSuspend, askToResume } from "./actions.js";
import { Lease, about, argumentsOf, whoWaits } from "./rows.js";
import { Timeline, how, saidOf } from "./timeline.js";
import { STATES } from "./states.js";
import { depthOf, isHeld, told } from "./trouble.js";

const MOST = 200;
const LOOK_BACK = 10_000; // ms between two looks at the history

export class LockPage {
  #model;
  #place = document.getElementById("lock");
  #name = null;
  #detail = null;
  #history = null; // not known yet
  #lookedBack = -Infinity;
  #asked = 0;
  #answered = 0; // the newest question whose answer is shown
  #timeline;
  #slots = new Map();
  #parts;
  #shown = {};

  constructor(model) {
    this.#model = model;
    const part = this.#parts = {
      back: el("a", { href: "#/" }, "← all locks"), title: el("h2"), label: el("span.label"), key: el("code"),
      command: el("code"), state: el("p.note"), slots: el("div.slots"),
      lanes: el("ul.lanes"), axis: el("div.axis", { "aria-hidden": "true" }),
      waiting: el("h3"), room: el("ol.room"), deferred: el("ul.room"), past: el("tbody"),
      drop: el("button.break", { type: "button", onclick: () => this.#askToDrop() }, "Drop them …"),
      suspend: el("button.break", { type: "button", onclick: () => askToSuspend(this.#shown, this.#model.about) }, "Suspend …"),
    };
    this.#place.append(
      el("p", {}, part.back),
      el("div.title", {}, part.title, part.label, part.suspend), el("p.key", {}, part.key), part.state, part.slots,
      el("section", {}, part.axis, part.lanes),
      el("div.columns", {},
        el("section", {}, el("div.head", {}, part.waiting, part.drop), part.room, part.deferred),
        el("section", {}, el("h3", {}, "What happened"), el("table.past", {},
          el("thead", {}, el("tr", {}, ...["At", "What", "How long", "Skipped, refused", "Who"].map((text) => el("th", { scope: "col" }, text)))),
          part.past))),
      el("p.note", {}, "In a terminal: ", part.command));
    this.#timeline = new Timeline(model, part.lanes, part.axis);
  }

  // Show the lock with that name; null for none. `back` is the address of the list.
  open(name, back) {
    this.#place.hidden = name === null;
    if (name === this.#name) return;
    this.#name = name;
    this.#detail = null;
    this.#history = null;
    this.#lookedBack = -Infinity;
    mark(this.#parts.back, "href", back);
    if (name !== null) this.ask();
  }

  async ask() {
    const name = this.#name, asking = ++this.#asked, which = `name=${encodeURIComponent(name)}`;
    const looksBack = performance.now() - this.#lookedBack > LOOK_BACK;
    if (looksBack) this.#lookedBack = performance.now();
    try {
      const [detail, runs] = await Promise.all([fetchJson(`api/lock?${which}`), looksBack ? fetchJson(`api/history?${which}`) : null]);
      if (name !== this.#name) return;
      if (asking > this.#answered && detail) {
        this.#detail = detail;
        this.#answered = asking;
      }
      if (runs) this.#history = runs;
      this.show();
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the connection; the stream says so as well
    }
  }

  show() {
    if (this.#name === null) return;
    const part = this.#parts, items = [...(this.#model.lanes.get(this.#name)?.values() ?? [])];
    const rows = this.#model.locks().get(this.#name) ?? [];
    const thing = { ...this.#history?.find((run) => run.task), ...items.findLast((item) => item.task), ...rows[0], name: this.#name };
    tail(part.title, plain(taskOf(thing) || "Lock"));
    wrap(part.label, what(thing));
    wrap(part.key, plain(rows[0]?.key ?? this.#name));
    say(part.command, `celery -A ${quoted(plain(this.#model.about.app || "proj"))} redislock show ${quoted(plain(this.#name))}`);
    this.#shown = thing;
    part.suspend.hidden = !(this.#model.about.may_break && rows[0]?.key) || rows.some((row) => row.state === "suspended");
    const { live, looked } = this.#model;
    say(part.state, rows.length ? "" : looked ? `Nobody ${live ? "holds it and nobody waits for it now" : "held it or waited for it"}.` : "Not known yet.");
    this.#showSlots(rows);
    this.#timeline.show(items.length ? [this.#name] : []);
    this.#showRoom(rows[0] ?? {});
    this.#showDeferred(items);
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
    say(this.#parts.waiting, waiting ? `${count(waiting, "waits", "wait")} behind it` : this.#model.looked ? "Nobody waits behind it" : "Who waits is not known yet");
    this.#parts.drop.hidden = !(this.#model.about.may_break && waiting);
    const shown = room.map((each) => {
      const who = whoWaits(each, row), given = argumentsOf(each);
      const facts = [given === who ? "" : given, `id ${plain(each.task_id)}`, each.age === undefined ? "" : `for ${units(each.age)}`,
        each.published_for === undefined ? "" : `published ${units(each.published_for)} ago, not taken`,
        each.passed_over ? "no worker that looked can publish it" : ""];
      return el("li", {}, el("strong", {}, who), el("span.note", {}, facts.filter(Boolean).join(" · ")));
    });
    if (waiting > room.length) shown.push(el("li.more", {}, `${(waiting - room.length).toLocaleString("en")} more, in the room or in pool slots`));
    this.#parts.room.replaceChildren(...shown);
  }

  #showDeferred(items) {
    const open = items.filter((item) => item.kind === "wait" && item.what === "deferred" && item.ended === undefined);
    this.#parts.deferred.replaceChildren(...open.map((item) => el("li", {}, el("strong", {}, item.label ? plain(item.label) : shortId(item.task_id)),
      el("span.note", {}, `deferred for ${units(this.#model.now() - item.began)}`,
        item.back_at ? `, comes back at ${clock(item.back_at)}` : "", ` · id ${plain(item.task_id)}`))));
  }

  // The runs that the history has, and what events told beside them.
  #showPast(items) {
    const runs = this.#history ?? [], fences = new Set(runs.map((run) => run.fence));
    const others = items.filter((item) => item.kind !== "wait" && !(item.kind === "run" && fences.has(item.fence)));
    const all = [...runs.map(asItem), ...others].sort((a, b) => b.began - a.began);
    this.#parts.past.replaceChildren(...all.slice(0, MOST).map((item) => {
      const isMark = item.kind === "mark";
      const said = isMark ? `${item.count > 1 ? `${item.count} × ` : ""}${saidOf(item)}` : how(item).replace(/ (for|after)$/, "");
      const long = isMark ? "" : units((item.ended ?? this.#model.now()) - item.began);
      const who = el("td", { title: plain(item.task_id ?? "") });
      wrap(who, [item.task_id && shortId(item.task_id), item.node && plain(item.node)].filter(Boolean).join(" · "));
      return el("tr", { class: isMark ? item.what : item.how ?? item.kind }, el("td", {}, clock(item.began)),
        el("td", {}, said), el("td", {}, long), el("td", {}, item.turned_away ? count(item.turned_away, "call") : ""), who);
    }));
    const rest = !this.#history ? "What was before is not known yet" : !all.length ? plain(this.#model.forgetful) || "Nothing that is kept"
      : all.length >= MOST ? `The last ${MOST}: in a terminal, history shows more` : "";
    if (rest) this.#parts.past.append(el("tr", {}, el("td", { colspan: 5 }, rest)));
  }

  // Names those who wait now: the last answer may be older, or not there yet.
  async #askToDrop() {
    const name = this.#name;
    await this.ask();
    if (name !== this.#name) return; // another lock's page is open by now
    const row = this.#model.rowOf(name);
    const shown = (this.#detail?.room ?? []).map((each) => `${whoWaits(each, row)} · ${about(each)}`);
    if (row) askToDrop(row, shown, this.#model.about);
  }

  tick() {
    for (const slot of this.#slots.values()) slot.tick();
    if (this.#name !== null) this.#timeline.draw();
  }
}

async function fetchJson(address) {
  const answer = await fetch(address);
  return answer.ok ? answer.json() : null;
}

// A run of the history as an item of the timeline.
function asItem(run) {
  const lasts = run.how === "running";
  return { ...run, kind: "run", how: lasts ? undefined : run.how, ended: run.ended ?? (lasts ? undefined : run.began) };
}

// One holder of the lock.
class Slot {
  state = el("span.state");
  facts = el("dl");
  lease = new Lease();
  held = el("span");
  trouble = el("span.trouble");
  end = el("button.break", { type: "button", onclick: () => askToEnd(this.row, this.model.about) }, "End the run …");
  resume = el("button.break", { type: "button", onclick: () => askToResume(this.row, this.model.about) }, "Resume …");
  button = el("button.break", { type: "button", onclick: () => askToBreak(this.row, this.model.about) }, "Break …");
  element = el("div.slot", {}, el("div.line", {}, this.state, this.held, this.lease.element, this.trouble,
    el("span.buttons", {}, this.end, this.resume, this.button)), this.facts);
  row = null;

  constructor(model) {
    this.model = model;
  }

  update(row) {
    this.row = row;
    mark(this.state, "data-state", row.state);
    mark(this.state, "title", STATES[row.state]);
    this.button.hidden = !(this.model.about.may_break && row.holder);
    this.resume.hidden = !(this.model.about.may_break && row.state === "suspended");
    this.end.hidden = this.button.hidden || !isHeld(row) || !row.task_id;
    const task = taskOf(row), usual = this.model.usual[task], warn = this.model.about.warn_after?.[task];
    const facts = { Arguments: argumentsOf(row), Says: row.description, Task: row.task_id, Attempt: row.attempt || null, Node: row.node, Process: row.pid,
      Since: row.acquired_at && clock(row.acquired_at), Usually: usual && units(usual), "Warns after": warn && units(warn),
      Queue: depthOf(row, this.model), Fence: row.fence, "Replaced by": row.replaced_by, "Broken by": row.broken_by,
      "Lost because": row.lost_because };
    const shown = Object.entries(facts).filter(([, value]) => value !== undefined && value !== null && value !== "");
    this.facts.replaceChildren(...shown.map(([name, value]) => {
      const said = el("dd");
      wrap(said, plain(value));
      return el("div", {}, el("dt", {}, name), said);
    }));
    this.tick();
  }

  tick() {
    const now = this.model.now(), since = this.row.acquired_at;
    say(this.state, inWords(this.row, now));
    say(this.held, since === undefined ? "" : `for ${units(now - since)}`);
    say(this.trouble, told(this.row, this.model, now));
    this.lease.update(this.row, now);
  }
}
