// The timeline: a lane for each lock, bars for runs, thin lines for those that wait, and marks.
import { arrange, clock, count, el, href, mark, plain, say, shortId, svg, tail, taskOf, units, what } from "./format.js";

const RUN = 16, GAP = 3, WAIT = 5, TOP = 13;
const MOST_WAITS = 4, MOST_ROWS = 8;
// How far back it goes, and where the axis has its ticks, in seconds.
export const SPANS = { "1 min": [60, 10], "5 min": [300, 60], "15 min": [900, 120] };
let span = SPANS["15 min"];
// They are drawn as one that waits.
const NO_MARK = new Set(["queued", "coalesced", "debounced", "replacing"]);

// How a mark looks: around 0 0, about ten pixels wide.
const SHAPES = {
  skipped: "M-4-5h8l-4 7z", raised: "M-4-5h8l-4 7z", replaced: "M-4-5h8l-4 7z", revoked: "M-4-5h8l-4 7z",
  deferred: "M0-6l4.5 4.5l-4.5 4.5l-4.5-4.5z",
  lost: "M-4.5-6l4.5 3l4.5-3v2.6l-2.4 1.9l2.4 1.9v2.6l-4.5-3l-4.5 3v-2.6l2.4-1.9l-2.4-1.9z",
  broken: "M-5-4.5l1.5-1.5l3.5 3.5l3.5-3.5l1.5 1.5l-3.5 3.5l3.5 3.5l-1.5 1.5l-3.5-3.5l-3.5 3.5l-1.5-1.5l3.5-3.5z",
  recovered: "M-5-1.5h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5z",
};
const SAID = {
  skipped: "skipped", raised: "refused", replaced: "replaced by a newer one",
  revoked: "revoked while it waited", deferred: "deferred", coalesced: "waits as the newest",
  queued: "waits for its turn", debounced: "waits for quiet", replacing: "told the holder to end",
  lost: "lost its lock", broken: "an operator took its lock",
  recovered: "recovered",
};
const LEGEND = [["bar running", "runs"], ["bar succeeded", "succeeded"], ["bar ended", "ended"], ["bar failed", "failed, died or lost its lock"],
  ["bar retried", "is tried again"], ["bar replaced", "replaced or revoked"], ["bar kept", "kept, without a run"],
  ["bar unseen", "until nobody looked"], ["waiting open", "waits"], ["waiting", "waited"], ["skipped", "skipped"],
  ["raised", "refused: LockConflict"], ["replaced", "replaced"], ["revoked", "revoked"], ["deferred", "deferred"],
  ["lost", "lost its lock"], ["broken", "taken away by an operator"], ["recovered", "recovered"], ["gap", "nobody looked"]];

export class Timeline {
  #lanes = new Map();
  #model;
  #list;
  #axis;
  #width = 0;

  constructor(model, list, axis) {
    this.#model = model;
    this.#list = list;
    this.#axis = axis;
  }

  // Draw the lanes of these locks.
  show(names) {
    const before = this.#lanes;
    this.#lanes = new Map(names.map((name) => [name, before.get(name) ?? new Lane(name)]));
    arrange(this.#list, [...this.#lanes.values()].map((lane) => lane.element));
    this.draw();
  }

  draw() {
    const first = this.#lanes.values().next().value;
    if (!first) return;
    this.#width = first.track.clientWidth;
    const until = this.#model.now(), since = until - span[0];
    const x = (time) => ((Math.max(time, since) - since) / (until - since)) * this.#width;
    for (const lane of this.#lanes.values()) lane.draw(this.#model, x, since, until, this.#width);
    if (this.#axis) this.#drawAxis(x, since, until, this.#model.live);
  }

  #drawAxis(x, since, until, live) {
    const step = span[1] * (this.#width < 500 ? 2 : 1);
    const ticks = [];
    for (let at = Math.ceil(since / step) * step; at < until; at += step) {
      const tick = el("span", {}, clock(at, span[0] < 100));
      tick.style.left = `${x(at)}px`;
      if (x(at) > 14 && x(at) < this.#width - (live ? 44 : 80)) ticks.push(tick);
    }
    const now = el("span.now", {}, live ? "now" : clock(until));
    now.style.left = `${this.#width}px`;
    this.#axis.replaceChildren(el("div", {}, ...ticks, now));
  }
}

class Lane {
  title = el("a");
  name = el("span.label");
  track = svg("svg", { role: "img" });
  grid = svg("g", { class: "grid" });
  waits = svg("g");
  runs = svg("g");
  marks = svg("g");
  element;
  #made = new Map();

  constructor(lock) {
    mark(this.title, "href", href(lock));
    this.lock = lock;
    this.track.append(this.grid, this.waits, this.runs, this.marks);
    this.element = el("li", {}, el("div.whose", {}, this.title, this.name), this.track);
  }

  draw(model, x, since, until, width) {
    const all = [...(model.lanes.get(this.lock)?.values() ?? [])];
    this.#say(model, all);
    const items = all.filter((item) => item.kind === "mark" ? item.began > since : (item.ended ?? until) > since);
    const runs = items.filter((item) => item.kind === "run" || item.kind === "kept");
    const rows = inRows(runs, until, MOST_ROWS);
    const waits = inRows(items.filter((item) => item.kind === "wait"), until, MOST_WAITS);
    const bottom = TOP + Math.max(rows.length, 1) * (RUN + GAP);
    const height = bottom + waits.length * WAIT + 3;
    mark(this.track, "height", height);
    this.#drawGrid(model.gaps, x, since, until, height);
    const before = this.#made;
    this.#made = new Map();
    const place = (item, parent, make) => {
      const made = before.get(item.id) ?? make(item);
      if (made.parentNode !== parent) parent.append(made);
      this.#made.set(item.id, made);
      return made;
    };
    rows.forEach((row, at) => row.forEach((item) => {
      bar(place(item, this.runs, makeBar), item, x, until, TOP + at * (RUN + GAP), RUN);
    }));
    waits.forEach((row, at) => row.forEach((item) => {
      bar(place(item, this.waits, makeBar), item, x, until, bottom + at * WAIT, WAIT - 2);
    }));
    for (const item of items.filter((each) => each.kind === "mark" && !NO_MARK.has(each.what))) {
      const made = place(item, this.marks, makeMark);
      mark(made, "transform", `translate(${Math.min(x(item.began), width - 5).toFixed(1)} 7)`);
    }
    for (const [id, made] of before) if (!this.#made.has(id)) made.remove();
  }

  #say(model, items) {
    const row = model.rowOf(this.lock);
    const last = items.findLast((item) => item.task) ?? {};
    const thing = { ...last, ...row, lock: this.lock, name: this.lock };
    tail(this.title, plain(taskOf(thing) || this.lock));
    say(this.name, what(thing));
    mark(this.title, "title", plain(this.lock));
    const runs = items.filter((item) => item.kind === "run").length;
    const waits = items.filter((item) => item.kind === "wait" && item.ended === undefined).length;
    const said = `${count(runs, "run")}, ${count(model.turnedAway(this.lock), "call")} skipped or refused, ${waits} waiting`;
    mark(this.track, "aria-label", said);
  }

  #drawGrid(gaps, x, since, until, height) {
    const step = span[1], lines = [];
    for (const [from, to] of gaps.filter((gap) => gap[1] > since)) {
      lines.push(svg("rect", { x: x(from), y: 0, width: x(to) - x(from), height, class: "gap" }));
    }
    for (let at = Math.ceil(since / step) * step; at < until; at += step) {
      lines.push(svg("line", { x1: x(at), x2: x(at), y1: 0, y2: height }));
    }
    this.grid.replaceChildren(...lines);
  }
}

// These side by side in as few rows as it takes: two in two rows overlap.
function inRows(items, until, most) {
  const rows = [];
  for (const item of items.sort((a, b) => a.began - b.began || a.id - b.id)) {
    const row = rows.find((each) => (each.at(-1).ended ?? until) <= item.began + 0.05);
    if (row) row.push(item);
    else if (rows.length < most) rows.push([item]);
  }
  return rows;
}

const makeBar = (item) => {
  const made = svg("rect", { rx: 2.5, "data-item": item.id });
  return made;
};
const makeMark = (item) => svg("path", { d: SHAPES[item.what] ?? SHAPES.skipped, "data-item": item.id,
  class: `mark ${item.what}` });

function bar(made, item, x, until, y, height) {
  const left = x(item.began), right = x(item.ended ?? until);
  mark(made, "x", left.toFixed(1));
  mark(made, "width", Math.max(right - left, 2).toFixed(1));
  mark(made, "y", y);
  mark(made, "height", height);
  const open = item.ended === undefined;
  if (item.kind === "wait") mark(made, "class", open ? "waiting open" : "waiting");
  else if (item.kind === "kept") mark(made, "class", `bar kept ${item.how ?? ""}`);
  else mark(made, "class", `bar ${open ? "running" : item.how ?? "ended"}`);
}

export function setSpan(name) {
  span = SPANS[name] ?? SPANS["15 min"];
}

export function legend() {
  return LEGEND.map(([kind, text]) => {
    const shape = SHAPES[kind] ? svg("path", { d: SHAPES[kind], class: `mark ${kind}`, transform: "translate(8 8)" })
      : svg("rect", { x: 0, y: kind.startsWith("waiting") ? 5 : 2, width: 16, height: kind.startsWith("waiting") ? 3 : 10, rx: 2, class: kind });
    return el("li", {}, svg("svg", { width: 16, height: 14, "aria-hidden": "true" }, shape), text);
  });
}

// -- what an item says ----------------------------------------------------------------------------

export function lines(item, model) {
  const who = [item.label ? plain(item.label) : null, item.task ? plain(item.task) : null].filter(Boolean).join(" · ");
  const said = [who || "a run"];
  const id = item.task_id ? `${shortId(item.task_id)}${item.attempt ? `, attempt ${item.attempt + 1}` : ""}` : "";
  if (item.kind === "mark") {
    said.push(`${item.count > 1 ? `${item.count} × ` : ""}${SAID[item.what] ?? plain(item.what)} at ${clock(item.began)}`);
    if (item.by) said.push(`because of ${shortId(item.by)}`);
    if (item.by_whom) said.push(`by ${plain(item.by_whom)}`);
    if (item.reason) said.push(plain(item.reason));
  } else {
    said.push(`${how(item)} ${units((item.ended ?? model.now()) - item.began)}`);
    said.push(`${clock(item.began)} – ${item.ended === undefined ? "now" : clock(item.ended)}`);
    if (item.how === "unseen") said.push("then nobody looked");
    if (item.kind === "wait" && item.back_at && item.ended === undefined) said.push(`deferred until ${clock(item.back_at)}`);
    if (item.turned_away) said.push(`${count(item.turned_away, "call")} skipped or refused meanwhile`);
  }
  if (id) said.push(id);
  if (item.node) said.push(plain(item.node) + (item.pid ? ` · ${item.pid}` : ""));
  if (item.args) said.push(plain(item.args));
  return said;
}

export function how(item) {
  if (item.kind === "wait") return item.ended === undefined ? "waits for" : "waited for";
  if (item.kind === "kept") return `${item.state ?? "kept"} for`;
  if (item.ended === undefined) return "runs for";
  if (item.how === "unseen") return "was seen for";
  return item.how ? `${plain(item.how)} after` : "ran for";
}

export const saidOf = (item) => SAID[item.what] ?? plain(item.what);
