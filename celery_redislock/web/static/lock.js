// A lock's own page: who has it, who waits, what happened as far back as that is kept.
import { clock, count, el, h, patch, plain, quoted, shortId, tail, taskOf, units, what, wrapped } from "./format.js";
import { action, askToBreak, askToDrop, askToEnd, askToResume, askToSuspend, suspensions } from "./actions.js";
import { about as aboutOf, argumentsOf, leaseOf, stateOf, whoWaits } from "./rows.js";
import { Timeline, how } from "./timeline.js";
import { depthOf, isHeld, told } from "./trouble.js";

const MOST = 200;
const LOOK_BACK = 10_000; // ms between two looks at the history

export class LockPage {
  #model;
  #place = document.getElementById("lock");
  #name = undefined; // nothing is open yet; null for none
  title = ""; // of the lock that is shown
  #back = "#/";
  #detail = null;
  #history = null; // not known yet
  #lookedBack = -Infinity;
  #slots = el("div.slots");
  #lanes = el("ul.lanes");
  #axis = el("div.axis", { "aria-hidden": "true" });
  #timeline;

  constructor(model) {
    this.#model = model;
    this.#timeline = new Timeline(model, this.#lanes, this.#axis);
  }

  // Show the lock with that name; null for none. `back` is the address of the list.
  open(name, back) {
    this.#place.hidden = name === null;
    if (name === this.#name) return;
    this.#name = name;
    this.#back = back;
    this.#detail = null;
    this.#history = null;
    this.#lookedBack = -Infinity;
    if (name !== null) this.ask();
  }

  get name() {
    return this.#name;
  }

  async ask() {
    const name = this.#name, which = `name=${encodeURIComponent(name)}`;
    const looksBack = performance.now() - this.#lookedBack > LOOK_BACK;
    if (looksBack) this.#lookedBack = performance.now();
    try {
      const [detail, runs] = await Promise.all([fetchJson(`api/lock?${which}`), looksBack ? fetchJson(`api/history?${which}`) : null]);
      if (name !== this.#name) return;
      if (detail) this.#detail = detail;
      if (runs) this.#history = runs;
      this.show();
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the connection; what is live says so as well
    }
  }

  show() {
    if (this.#name === null) return;
    const model = this.#model, now = model.now(), { about, live, looked } = model;
    const items = model.lanes().get(this.#name) ?? [], rows = model.locks().get(this.#name) ?? [];
    const thing = { ...this.#history?.find((run) => run.task), ...items.findLast((item) => item.task), ...rows[0], name: this.#name };
    const waiting = rows[0]?.waiting ?? 0;
    this.title = [what(thing), taskOf(thing)].filter(Boolean).join(" · ");
    patch(this.#place, [
      h("p", {}, h("a", { href: this.#back }, "← all locks")),
      h("div.title", {}, h("h2.tail", { tabindex: -1 }, tail(plain(taskOf(thing) || "Lock"))), h("span.label", {}, wrapped(what(thing))),
        action("Suspend …", about.may_break && rows[0]?.key && !rows[0].suspension, () => askToSuspend(thing, about))),
      h("p.key", {}, h("code", {}, wrapped(plain(rows[0]?.key ?? this.#name)))),
      h("ul.suspended", {}, suspensions(model, thing)),
      h("p.note", {}, rows.length ? "" : looked ? `Nobody ${live ? "holds it and nobody waits for it now" : "held it or waited for it"}.` : "Not known yet."),
      this.#slots,
      h("section", {}, this.#axis, this.#lanes),
      h("div.columns", {},
        h("section", {}, h("div.head", {},
          h("h3", {}, waiting ? `${count(waiting, "waits", "wait")} behind it` : looked ? "Nobody waits behind it" : "Who waits is not known yet"),
          action("Drop them …", about.may_break && waiting, () => this.#askToDrop())),
        h("ol.room", {}, this.#room(rows[0] ?? {}, waiting))),
        h("section", {}, h("h3", {}, "What happened"), h("table.past", {},
          h("thead", {}, h("tr", {}, ["At", "What", "How long", "Skipped, refused", "Who"].map((text) => h("th", { scope: "col" }, text)))),
          h("tbody", {}, this.#past(items, now))))),
      h("p.note", {}, "In a terminal: ", h("code", {}, `celery -A ${quoted(plain(about.app || "proj"))} redislock show ${quoted(plain(this.#name))}`)),
    ]);
    this.#timeline.show(items.length ? [this.#name] : []);
    this.tick();
  }

  #room(row, waiting) {
    const { room = [] } = this.#detail ?? {}, more = waiting - room.length;
    return [...room.map((each) => {
      const who = whoWaits(each, row), given = argumentsOf(each);
      const facts = [given === who ? "" : given, `id ${plain(each.task_id)}`, each.age === undefined ? "" : `for ${units(each.age)}`,
        each.published_for === undefined ? "" : `published ${units(each.published_for)} ago, not taken`,
        each.passed_over ? "no worker that looked can publish it" : ""];
      return h("li", {}, h("strong", {}, who), h("span.note", {}, facts.filter(Boolean).join(" · ")));
    }), more > 0 ? h("li.more", {}, `${more.toLocaleString("en")} more, in the room or in pool slots`) : null];
  }

  // The runs that the history has, and those that go on.
  #past(items, now) {
    const goOn = items.filter((item) => item.kind === "run" && item.ended === undefined), fences = new Set(goOn.map((item) => item.fence));
    const over = (this.#history ?? []).filter((run) => run.how !== "running" && !fences.has(run.fence));
    const all = [...goOn, ...over.map((run) => ({ ...run, kind: "run", ended: run.ended ?? run.began }))].sort((a, b) => b.began - a.began);
    const rest = !this.#history ? "What was before is not known yet" : !all.length ? plain(this.#model.forgetful) || "Nothing that is kept"
      : all.length >= MOST ? `The last ${MOST}: in a terminal, history shows more`
      : this.#model.keptSince(this.#name) > -Infinity ? "Older runs are not kept" : "";
    return [...all.slice(0, MOST).map((item) => {
      const said = how(item).replace(/ (for|after)$/, ""), took = item.how === "lapsed" ? "?" : units((item.ended ?? now) - item.began);
      const who = [item.task_id && shortId(item.task_id), item.node && plain(item.node)].filter(Boolean).join(" · ");
      return h("tr", { class: item.how ?? item.kind }, h("td", {}, clock(item.began)), h("td", {}, said),
        h("td", {}, took), h("td", {}, item.turned_away ? count(item.turned_away, "call") : ""), h("td", { title: plain(item.task_id ?? "") }, wrapped(who)));
    }), rest ? h("tr", {}, h("td", { colspan: 5 }, rest)) : null];
  }

  // Names those who wait now: the last answer may be older, or not there yet.
  async #askToDrop() {
    const name = this.#name;
    await this.ask();
    if (name !== this.#name) return; // another lock's page is open by now
    const row = this.#model.rowOf(name);
    const shown = (this.#detail?.room ?? []).map((each) => `${whoWaits(each, row)} · ${aboutOf(each)}`);
    if (row) askToDrop([row], shown, this.#model.about);
  }

  // What ages between two messages.
  tick() {
    const model = this.#model, now = model.now();
    patch(this.#slots, (model.locks().get(this.#name) ?? []).map((row) => slot(row, model, now)));
    this.#timeline.draw();
  }
}

async function fetchJson(address) {
  const answer = await fetch(address);
  return answer.ok ? answer.json() : null;
}

// One holder of the lock.
function slot(row, model, now) {
  const { about } = model, warn = about.warn_after?.[taskOf(row)];
  const since = row.acquired_at, mayBreak = about.may_break && row.holder;
  const facts = { Arguments: argumentsOf(row), Says: row.description, Task: row.task_id, Attempt: row.attempt || null, Node: row.node, Process: row.pid,
    Since: since && clock(since), Usually: row.usual && units(row.usual), "Warns after": warn && units(warn),
    Queue: depthOf(row, model), Fence: row.fence, "Replaced by": row.replaced_by, "Broken by": row.broken_by, "Lost because": row.lost_because };
  const shown = Object.entries(facts).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("div.slot", { key: row.key },
    h("div.line", {}, stateOf(row, now), h("span", {}, since === undefined ? "" : `for ${units(now - since)}`), leaseOf(row, now),
      h("span.trouble", {}, told(row, model, now)),
      h("span.buttons", {}, action("End the run …", mayBreak && isHeld(row) && row.task_id, () => askToEnd(row, about)),
        action("Resume …", about.may_break && row.suspension, () => askToResume(row, about)),
        action("Break …", mayBreak, () => askToBreak(row, about)))),
    h("dl", {}, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, wrapped(plain(value)))))));
}
