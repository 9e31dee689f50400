// What the server has told: the rows of the present, and the runs of the past.
import { GOING_ON, KEPT } from "./states.js";
import { isHeld } from "./trouble.js";

export class Model {
  rows = new Map();
  runs = new Map(); // those that have ended
  items = new Map(); // of all lanes
  about = {};
  trouble = "";
  forgetful = "";
  version = 0;
  number = 0; // of the last answer
  connected = false; // to the page's server
  asOf = null; // when the last look was
  away = null; // how many calls were skipped or refused, and since when
  queues = []; // those in which messages have waited for a while
  suspended = []; // what operators keep from running
  #keptSince = {}; // by lock, since when all its runs are kept, if it is lately
  #offset = null;
  #locks = new Map();
  #lanes = new Map();
  #groupedAt = -1;

  // Whether the rows are what somebody has seen.
  get looked() {
    return this.asOf !== null;
  }

  // Whether what it says is so now.
  get live() {
    return this.connected && !this.trouble;
  }

  // Unix time by the lock server's clock, between two messages too. It stands still while nobody looks.
  now() {
    if (!this.live && this.asOf !== null) return this.asOf;
    return performance.now() / 1000 + (this.#offset ?? 0);
  }

  // Take in an answer: what has changed since the last one, and what is told of all locks together.
  apply({ now, as_of, kept_since, changes, ...told }) {
    this.#setClock(now);
    for (const change of changes) this.#change(change);
    Object.assign(this, told);
    this.asOf = as_of;
    this.#keptSince = kept_since;
    this.version += 1;
  }

  #change({ about, rows = [], gone = [], runs = [], dropped = [] }) {
    if (about) { // this is all that there is
      this.rows.clear();
      this.runs.clear();
      this.about = about;
    }
    for (const row of rows) this.rows.set(row.key, row);
    for (const key of gone) this.rows.delete(key);
    for (const run of runs) this.runs.set(run.id, run);
    for (const id of dropped) this.runs.delete(id);
  }

  #setClock(now) {
    const offset = now - performance.now() / 1000;
    // What comes a little late must not let the bars jump.
    if (this.#offset === null || Math.abs(offset - this.#offset) > 0.5) this.#offset = offset;
  }

  // Since when it is known what ran under this lock.
  keptSince = (name) => (this.forgetful ? Infinity : this.#keptSince[name] ?? -Infinity);

  hasLost = (name) => this.lanes().get(name)?.some((item) => item.how === "lost") ?? false;

  // How many calls the shown runs of this lock let be skipped or refused.
  awayOf = (name) => (this.lanes().get(name) ?? []).reduce((sum, item) => sum + (item.turned_away ?? 0), 0);

  // The queue in which the message waits that has this lock, if it has waited for a while.
  queueOf = (row) => (row.state !== "queued" ? undefined : this.queues.find((each) => each.task === row.task
    && (row.queue ? each.queue === row.queue : !each.is_named)));

  // Those that nobody can know are missing.
  totals() {
    if (!this.looked) return {};
    const totals = { held: 0, waiting: 0, untaken: 0 };
    for (const rows of this.locks().values()) {
      const [row] = rows.filter((each) => each.state !== "without its lock"); // the lock's own rows count
      totals.waiting += row?.waiting ?? 0;
      totals.untaken += row?.untaken ?? 0;
      totals.held += rows.filter(isHeld).length;
    }
    if (this.away) totals.away = this.away.count;
    const lost = [...this.lanes().values()].flat().filter((item) => item.how === "lost").length;
    return lost || !this.forgetful ? { ...totals, lost } : totals;
  }

  // The rows by their lock's name: a lock with a limit has one for each slot.
  locks() {
    this.#group();
    return this.#locks;
  }

  // By its lock's name, what the timeline shows: runs, for what the lock is kept, those that wait.
  lanes() {
    this.#group();
    return this.#lanes;
  }

  #group() {
    if (this.#groupedAt === this.version) return;
    this.#groupedAt = this.version;
    this.#locks = grouped(this.rows.values());
    for (const rows of this.#locks.values()) rows.sort((a, b) => (a.key < b.key ? -1 : 1));
    const items = [...this.runs.values()].map((run) => ({ kind: "run", ...run, ended: run.ended ?? run.began }));
    this.items = new Map(items.map((item) => [item.id, item]));
    for (const row of this.rows.values()) for (const item of this.#itemsOf(row)) this.items.set(item.id, item);
    this.#lanes = grouped(this.items.values());
  }

  #itemsOf(row) {
    const found = [], id = `${row.fence}:${row.name}`, run = this.runs.get(id);
    if (GOING_ON.includes(row.state) && row.acquired_at && run?.ended === undefined) {
      found.push({ ...row, kind: "run", id, began: row.acquired_at, how: row.state === "without its lock" ? "lost" : undefined });
    }
    const kept = row.state === "queued" ? row.acquired_at : run?.ended;
    if (KEPT.includes(row.state) && kept) found.push({ ...row, kind: "kept", id: `kept ${row.key}`, began: kept, turned_away: 0 });
    for (const each of row.next ?? []) if (each.since) found.push({ kind: "wait", name: row.name, ...each, id: `${each.task_id} waits for ${row.name}`, began: each.since });
    return found;
  }

  rowOf = (name) => this.locks().get(name)?.[0] ?? null;
}

function grouped(things) {
  const by = new Map();
  for (const each of things) {
    if (by.has(each.name)) by.get(each.name).push(each);
    else by.set(each.name, [each]);
  }
  return by;
}
