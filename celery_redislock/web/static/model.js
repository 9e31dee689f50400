// What the server has told: the rows of the present, and the items of the past.
import { isHeld } from "./trouble.js";

export class Model {
  rows = new Map();
  items = new Map();
  lanes = new Map(); // the items by their lock's name
  about = {};
  events = { any: false, trouble: "" };
  trouble = "";
  forgetful = "";
  version = 0;
  number = 0; // of the last answer
  looked = false; // whether the rows are what somebody has seen
  connected = false; // to the page's server
  asOf = null; // when the last look was
  queues = []; // those in which messages have waited for a while
  unread = []; // those of them that nobody reads
  gaps = []; // from when until when nobody looked
  usual = {}; // how many seconds the tasks' runs take
  #counted = { away: 0, lost: 0 };
  #lost = new Map(); // how many items of a lock tell that a run lost it
  #offset = null;
  #locks = new Map();
  #locksOf = -1;

  // Whether what it says is so now.
  get live() {
    return this.connected && !this.trouble;
  }

  // Unix time by the lock server's clock, between two messages too. It stands still while nobody looks.
  now() {
    if (!this.live && this.asOf !== null) return this.asOf;
    return performance.now() / 1000 + (this.#offset ?? 0);
  }

  // Take in an answer: what has changed since the last one.
  apply(answer) {
    this.#setClock(answer.now);
    for (const change of answer.changes) this.#change(change);
    this.number = answer.number;
    this.asOf = answer.as_of;
    this.events = answer.events;
    this.forgetful = answer.forgetful;
    this.version += 1;
  }

  #change(message) {
    if (message.all) {
      this.rows.clear();
      this.items.clear();
      this.lanes.clear();
      this.#lost.clear();
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
    this.usual = message.usual ?? this.usual;
    this.queues = message.queues ?? this.queues;
    this.unread = message.unread ?? this.unread;
    this.#counted = message.totals ?? this.#counted;
    if (message.trouble !== undefined) this.trouble = message.trouble;
  }

  #setClock(now) {
    const offset = now - performance.now() / 1000;
    // What comes a little late must not let the bars jump.
    if (this.#offset === null || Math.abs(offset - this.#offset) > 0.5) this.#offset = offset;
  }

  #keep(item) {
    this.#countLost(this.items.get(item.id), -1);
    this.#countLost(item, 1);
    this.items.set(item.id, item);
    if (!this.lanes.has(item.lock)) this.lanes.set(item.lock, new Map());
    this.lanes.get(item.lock).set(item.id, item);
  }

  // The server forgets what is too old, and says so.
  #drop(id) {
    const lock = this.items.get(id)?.lock, lane = this.lanes.get(lock);
    this.#countLost(this.items.get(id), -1);
    this.items.delete(id);
    lane?.delete(id);
    if (lane?.size === 0) this.lanes.delete(lock);
  }

  #countLost(item, by) {
    if (item?.what === "lost" || item?.how === "lost") this.#lost.set(item.lock, (this.#lost.get(item.lock) ?? 0) + by);
  }

  hasLost = (name) => this.#lost.get(name) > 0;

  // Whether this is the mark of calls that were skipped or refused.
  isAway = (item) => item.kind === "mark" && this.about.turned_away.includes(item.what);

  // The queue in which the message waits that has this lock, if it has waited for a while; and that if nobody reads it.
  queueOf = (row) => queueIn(this.queues, row);
  unreadOf = (row) => queueIn(this.unread, row);

  // How many calls were skipped or refused in the window, as far as this lock's lane shows.
  turnedAway(name) {
    let told = 0, kept = 0;
    for (const item of this.lanes.get(name)?.values() ?? []) {
      if (this.isAway(item)) told += item.count;
      kept += item.turned_away ?? 0;
    }
    return Math.max(told, kept);
  }

  // Those that nobody can know are missing.
  totals() {
    if (!this.looked) return {};
    const totals = { held: 0, waiting: 0, untaken: 0, ...this.#counted };
    const waiting = new Map(), untaken = new Map();
    for (const row of this.rows.values()) {
      if (row.state === "without its lock") continue; // the lock's own rows count
      waiting.set(row.name, row.waiting);
      untaken.set(row.name, row.untaken ?? 0);
      if (isHeld(row)) totals.held += 1;
    }
    for (const each of waiting.values()) totals.waiting += each;
    for (const each of untaken.values()) totals.untaken += each;
    if (this.forgetful && !this.events.any) {
      if (!totals.away) delete totals.away;
      if (!totals.lost) delete totals.lost;
    }
    return totals;
  }

  // The rows by their lock's name: a lock with a limit has one for each slot.
  locks() {
    if (this.#locksOf !== this.version) {
      this.#locks = new Map();
      for (const row of this.rows.values()) {
        if (this.#locks.has(row.name)) this.#locks.get(row.name).push(row);
        else this.#locks.set(row.name, [row]);
      }
      for (const rows of this.#locks.values()) rows.sort((a, b) => (a.key < b.key ? -1 : 1));
      this.#locksOf = this.version;
    }
    return this.#locks;
  }

  rowOf = (name) => this.locks().get(name)?.[0] ?? null;
}

const queueIn = (queues, row) => (row.state !== "queued" ? undefined : queues.find((each) => each.task === row.task
  && (row.queue ? each.queue === row.queue : !each.is_named)));
