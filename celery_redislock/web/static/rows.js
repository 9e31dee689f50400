// The table: what is held and waited for now. A lock with several slots is one row of it.
import { arrange, clock, count, cut, el, href, inWords, mark, plain, say, shortId, tail, taskOf, units, what, wrap } from "./format.js";
import { BEGIN, addressOf } from "./search.js";
import { AWAITED, NO_LOCK, STATES } from "./states.js";
import { depthOf, isHeld, rankOf, silence, told } from "./trouble.js";

export const PER_PAGE = 20;
const MOST_SLOTS = 5;
const NO_SLOT = new Set([...AWAITED, ...NO_LOCK]);
// From how many on the locks of a task become one row whose messages wait in a queue.
const GROUPED = 4;

// Of two rows, each with its rank of trouble.
const heldFor = (a, b) => (a.row.acquired_at ?? Infinity) - (b.row.acquired_at ?? Infinity);
const waitsSince = ({ row }) => Math.min(...(row.next ?? []).map((each) => each.since ?? Infinity));
const ORDERS = {
  trouble: (a, b) => b.rank - a.rank || waitsSince(a) - waitsSince(b) || b.row.waiting - a.row.waiting || heldFor(a, b),
  held: heldFor,
  waiting: (a, b) => b.row.waiting - a.row.waiting,
  away: (a, b) => b.row.away - a.row.away,
  lease: (a, b) => (a.row.expires_at ?? Infinity) - (b.row.expires_at ?? Infinity),
  task: (a, b) => taskOf(a.row).localeCompare(taskOf(b.row)) || what(a.row).localeCompare(what(b.row)),
};

export class Rows {
  #body = document.getElementById("rows");
  #made = new Map();
  #model;

  constructor(model) {
    this.#model = model;
  }

  // Show that page of the locks that match; how many match, and how many pages they are. With
  // `grouped`, those of a task whose messages wait in a queue are one row.
  show(matches, order, page, grouped) {
    const now = this.#model.now(), by = ORDERS[order] ?? ORDERS.trouble;
    const worst = (rows) => rows.map((row) => ({ row, rank: rankOf(row, this.#model, now) })).sort(by)[0];
    const found = [...this.#model.locks().values()].filter((rows) => rows.some(matches)).map(worst);
    const entries = grouped ? gathered(found) : found;
    entries.sort((a, b) => by(a, b) || a.row.id - b.row.id);
    const pages = Math.max(Math.ceil(entries.length / PER_PAGE), 1);
    const at = Math.min(Math.max(page, 0), pages - 1);
    const shown = entries.slice(at * PER_PAGE, (at + 1) * PER_PAGE);
    const before = this.#made;
    this.#made = new Map(shown.map(({ row, group }) => {
      const key = group ? `\n${row.task}` : row.name; // no name has a line
      const made = before.get(key) ?? (group ? new Group() : new Lock());
      made.update(group ?? this.#model.locks().get(row.name), this.#model);
      return [key, made];
    }));
    arrange(this.#body, [...this.#made.values()].flatMap((each) => each.elements));
    return { found: found.length, pages, at };
  }

  tick() {
    for (const each of this.#made.values()) each.tick(this.#model);
  }
}

// The same, with one entry for those of a task that only wait in a queue, if these are many.
function gathered(found) {
  const of = new Map();
  for (const each of found) {
    const { row } = each;
    if (row.state !== "queued" || row.waiting || !row.task) continue;
    if (!of.has(row.task)) of.set(row.task, []);
    of.get(row.task).push(each);
  }
  const groups = [...of.values()].filter((each) => each.length >= GROUPED);
  const inGroups = new Set(groups.flat());
  return [...found.filter((each) => !inGroups.has(each)), ...groups.map((each) => {
    const rows = each.map(({ row }) => row).sort((a, b) => heldFor({ row: a }, { row: b }));
    return { row: rows[0], rank: Math.max(...each.map(({ rank }) => rank)), group: rows };
  })];
}

// The locks of a task whose messages wait in a queue, the oldest first.
class Group {
  task = el("a.task");
  label = el("span.label");
  held = el("span.held");
  depth = el("span.note");
  trouble = el("span.trouble");
  away = el("td.number", { "data-title": "Skipped, refused" });
  element = el("tr", { "data-state": "queued" }, el("th", { scope: "row" }, this.task, this.label),
    el("td", { "data-title": "State" }, el("span.state", { "data-state": "queued" }, "queued")),
    el("td.since", { "data-title": "Held for" }, this.held, this.depth, this.trouble),
    el("td"), el("td.where"), el("td.behind"), this.away);
  elements = [this.element];

  update(rows, model) {
    this.row = rows[0];
    mark(this.task, "href", addressOf({ ...BEGIN, q: `task:"${this.row.task}" state:queued` }));
    mark(this.task, "title", "show each");
    tail(this.task, plain(this.row.task));
    say(this.label, `${count(rows.length, "lock")}, kept for messages in a queue`);
    const away = rows.reduce((sum, row) => sum + (row.away ?? 0), 0);
    say(this.away, away ? away.toLocaleString("en") : "");
    this.tick(model);
  }

  tick(model) {
    const now = model.now(), since = this.row.acquired_at;
    say(this.held, since === undefined ? "" : `up to ${units(now - since)}`);
    say(this.depth, depthOf(this.row, model));
    say(this.trouble, told(this.row, model, now));
    mark(this.element, "data-trouble", rankOf(this.row, model, now) > 0);
  }
}

// One lock: its first line, and one more for each further slot.
class Lock {
  task = el("a.task");
  label = el("span.label");
  slotsNote = el("span.note.slots-note");
  name = el("th", { scope: "row" }, this.task, this.label, this.slotsNote);
  behind = el("td.behind", { "data-title": "Waiting" });
  away = el("td.number", { "data-title": "Skipped, refused" });
  elements = [];
  #lines = [];
  #shown = "";
  #ages = [];

  update(rows, model) {
    const shown = JSON.stringify(rows);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const [row] = rows, seen = rows.slice(0, MOST_SLOTS);
    while (this.#lines.length < seen.length) this.#lines.push(new Line());
    this.#lines.length = seen.length;
    this.#lines.forEach((line, place) => line.update(seen[place], model));
    mark(this.task, "href", href(row.name));
    mark(this.task, "title", plain(taskOf(row)));
    tail(this.task, plain(taskOf(row) || "no task"));
    wrap(this.label, what(row));
    mark(this.label, "title", plain(row.key));
    const limit = model.about.limits?.[taskOf(row)];
    const held = rows.filter((each) => !NO_SLOT.has(each.state)).length;
    const more = rows.length > seen.length ? `, ${count(rows.length - seen.length, "more slot")}` : "";
    say(this.slotsNote, limit ? `${held} of ${count(limit, "slot")}${more}` : rows.length > 1 ? count(held, "slot") + more : "");
    this.#ages = [];
    this.behind.replaceChildren(behind(row, this.#ages));
    say(this.away, row.away ? row.away.toLocaleString("en") : "");
    for (const cell of [this.name, this.behind, this.away]) mark(cell, "rowspan", seen.length);
    this.#lines.forEach((line, place) => {
      arrange(line.element, place ? line.cells : [this.name, ...line.cells, this.behind, this.away]);
    });
    this.elements = this.#lines.map((line) => line.element);
    this.tick(model);
  }

  tick(model) {
    for (const line of this.#lines) line.tick(model);
    for (const [place, since] of this.#ages) say(place, units(model.now() - since));
  }
}

// One slot.
class Line {
  state = el("span.state");
  trouble = el("span.trouble");
  held = el("span.held");
  note = el("span.note");
  lease = new Lease();
  where = el("td.where", { "data-title": "Where" });
  cells = [
    el("td", { "data-title": "State" }, this.state),
    el("td.since", { "data-title": "Held for" }, this.held, this.note, this.trouble),
    el("td", { "data-title": "Lease" }, this.lease.element), this.where,
  ];
  element = el("tr");

  update(row, model) {
    this.row = row;
    mark(this.element, "data-state", row.state);
    mark(this.state, "data-state", row.state);
    mark(this.state, "title", STATES[row.state]);
    this.where.replaceChildren(...whereOf(row));
    this.tick(model);
  }

  tick(model) {
    const now = model.now(), since = this.row.acquired_at;
    say(this.state, inWords(this.row, now));
    const usual = isHeld(this.row) && model.usual[taskOf(this.row)];
    say(this.held, since === undefined ? "" : units(now - since));
    const note = usual ? `usually ${units(usual)}` : depthOf(this.row, model);
    say(this.note, [this.row.description && plain(this.row.description), note].filter(Boolean).join(" · "));
    if (since !== undefined) mark(this.held, "title", `since ${clock(since)}`);
    say(this.trouble, told(this.row, model, now));
    mark(this.element, "data-trouble", rankOf(this.row, model, now) > 0);
    this.lease.update(this.row, now);
  }
}

function whereOf(row) {
  const parts = [];
  if (row.node) parts.push(el("span.node", { title: plain(row.node) }, plain(row.node)));
  const facts = [row.task_id && shortId(row.task_id), row.pid && `pid ${row.pid}`, row.attempt && `attempt ${row.attempt + 1}`];
  if (row.node || row.task_id) parts.push(el("span.id", { title: plain(row.task_id ?? "") }, facts.filter(Boolean).join(" · ")));
  return parts;
}

// Those that wait behind it, who came first is first. Where their ages go is added to `ages`.
function behind(row, ages) {
  if (!row.waiting) return document.createTextNode("");
  const next = row.next ?? [];
  const more = row.waiting - next.length;
  const list = el("ol.queue");
  for (const each of next) {
    const age = el("span.age");
    list.append(el("li", { title: about(each) }, whoWaits(each, row), age));
    if (each.since !== undefined) ages.push([age, each.since]);
  }
  if (more > 0) list.append(el("li.more", {}, next.length ? `+${more.toLocaleString("en")}` : count(more, "waits", "wait")));
  return list;
}

// Who waits: by its label or its arguments, where these tell it from the holder; else by its id.
export function whoWaits(each, row) {
  const given = argumentsOf(each);
  const name = each.label && each.label !== row.label ? plain(each.label) : given || shortId(each.task_id);
  const task = each.task && each.task !== row.task ? `${plain(each.task)} ` : "";
  return cut(task + name, 40);
}

export function argumentsOf(each) {
  const given = [each.args, each.kwargs].filter((text) => text && !["()", "[]", "{}"].includes(text));
  return given.map(plain).join(" ");
}

export function about(each) {
  return [plain(each.task ?? "cannot be read"), argumentsOf(each), `id ${plain(each.task_id)}`].filter(Boolean).join(" ");
}

// The lease: a bar that drains until the heartbeat extends it.
export class Lease {
  bar = el("span.fill");
  text = el("span.left");
  meter = el("span.lease", { role: "meter", "aria-label": "lease", "aria-valuemin": 0 }, this.bar);
  element = el("div.leased", {}, this.meter, this.text);

  update(row, now) {
    const none = row.expires_at === undefined || row.lease === undefined;
    this.meter.hidden = none;
    if (none) {
      const broken = row.broken_by ? `by ${plain(row.broken_by)}` : "";
      wrap(this.text, row.state === "foreign" ? "for ever" : broken);
      return;
    }
    const left = Math.max(row.expires_at - now, 0), silent = silence(row, now);
    const share = Math.min(left / (row.lease || left || 1), 1);
    this.bar.style.transform = `scaleX(${share.toFixed(3)})`;
    mark(this.meter, "data-low", silent > 0);
    mark(this.meter, "aria-valuemax", Math.round(row.lease ?? 0));
    mark(this.meter, "aria-valuenow", Math.round(left));
    mark(this.text, "data-silent", silent > 0);
    say(this.text, silent ? `no heartbeat for ${units(silent)}` : units(left));
    mark(this.element, "title", `expires in ${units(left)} unless its holder extends it`);
  }
}
