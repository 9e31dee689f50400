// What the server has told: the rows of the present, and the items of the past.
import { taskOf, what } from "./format.js";

export const TURNED_AWAY = new Set(["skipped", "raised", "replaced"]);

export class Model {
  rows = new Map();
  items = new Map();
  lanes = new Map(); // the items by their lock's name
  about = {};
  events = { any: false, trouble: "" };
  trouble = "";
  forgetful = "";
  version = 0;
  looked = false; // whether the rows are what somebody has seen
  gaps = []; // from when until when nobody looked
  #counted = { away: 0, lost: 0 };
  #offset = null;

  // Unix time by the lock server's clock, between two messages too.
  now() {
    return performance.now() / 1000 + (this.#offset ?? 0);
  }

  apply(message) {
    this.#setClock(message.now);
    if (message.all) {
      this.rows.clear();
      this.items.clear();
      this.lanes.clear();
      this.about = message.about;
      this.looked = message.looked;
    }
    if (message.trouble === "") this.looked = true;
    for (const row of message.rows ?? []) this.rows.set(row.id, row);
    for (const [id, end] of Object.entries(message.leases ?? {})) {
      const row = this.rows.get(Number(id));
      if (row) row.expires_at = end;
    }
    for (const id of message.gone ?? []) this.rows.delete(id);
    for (const item of message.past ?? []) this.#keep(item);
    for (const id of message.dropped ?? []) this.#drop(id);
    this.gaps = message.gaps ?? this.gaps;
    this.#counted = message.totals ?? this.#counted;
    if (message.trouble !== undefined) this.trouble = message.trouble;
    this.events = message.events;
    this.forgetful = message.forgetful;
    this.version += 1;
  }

  #setClock(now) {
    const offset = now - performance.now() / 1000;
    // What comes a little late must not let the bars jump.
    if (this.#offset === null || Math.abs(offset - this.#offset) > 0.5) this.#offset = offset;
  }

  #keep(item) {
    this.items.set(item.id, item);
    if (!this.lanes.has(item.lock)) this.lanes.set(item.lock, new Map());
    this.lanes.get(item.lock).set(item.id, item);
  }

  // The server forgets what is too old, and says so.
  #drop(id) {
    const lock = this.items.get(id)?.lock, lane = this.lanes.get(lock);
    this.items.delete(id);
    lane?.delete(id);
    if (lane?.size === 0) this.lanes.delete(lock);
  }

  // How many were turned away from this lock in the window, as far as its lane shows.
  turnedAway(name) {
    let told = 0, kept = 0;
    for (const item of this.lanes.get(name)?.values() ?? []) {
      if (item.kind === "mark" && TURNED_AWAY.has(item.what)) told += item.count;
      kept += item.turned_away ?? 0;
    }
    return Math.max(told, kept);
  }

  totals() {
    const totals = { held: 0, waiting: 0, untaken: 0, ...this.#counted };
    const waiting = new Map(), untaken = new Map();
    for (const row of this.rows.values()) {
      waiting.set(row.name, row.waiting);
      untaken.set(row.name, row.untaken ?? 0);
      if (row.state === "held" || row.state === "replaced") totals.held += 1;
    }
    for (const each of waiting.values()) totals.waiting += each;
    for (const each of untaken.values()) totals.untaken += each;
    return totals;
  }

  // The row of a lock that says most, by its name.
  rowOf(name) {
    for (const row of this.rows.values()) if (row.name === name) return row;
    return null;
  }
}

// -- search ---------------------------------------------------------------------------------------

const FIELDS = { task: taskOf, label: what, node: (it) => it.node ?? "", state: (it) => it.state ?? "",
  id: (it) => it.task_id ?? "", key: (it) => it.key ?? it.lock ?? "" };

// A function that tells whether a row or an item is looked for.
export function matcher(query, task, node) {
  const tests = query.split(/\s+/).filter(Boolean).map(testOf);
  if (task) tests.push((it) => taskOf(it) === task);
  if (node) tests.push((it) => it.node === node);
  return (it) => tests.every((test) => test(it));
}

function testOf(word) {
  const [, field, rest] = /^(\w+):(.*)$/.exec(word) ?? [];
  if (field in FIELDS && rest) {
    const pattern = rest.split("*").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    const whole = new RegExp(pattern.join(".*"), "iu");
    return (it) => whole.test(FIELDS[field](it));
  }
  const text = word.toLowerCase();
  return (it) => [it.task, it.name, it.lock, it.label, it.node, it.task_id, it.key, it.state,
    ...(it.next ?? []).flatMap((each) => [each.task_id, each.label])]
    .some((each) => each && String(each).toLowerCase().includes(text));
}
