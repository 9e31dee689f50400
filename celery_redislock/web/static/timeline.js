// The timeline: a lane for each lock, bars for runs, thin lines for those that wait.
import { clock, count, h, href, patch, plain, shortId, tail, taskOf, units, what } from "./format.js";

const RUN = 16, GAP = 3, WAIT = 5, TOP = 13, SIGN = 9, APART = 34;
const MOST_WAITS = 4, MOST_ROWS = 8;
// How far back it goes, and where the axis has its ticks, in seconds.
export const SPANS = { "1 min": [60, 10], "5 min": [300, 60], "15 min": [900, 120] };
// How a run ended: the sign in its bar, and what it means. No two have the same colour and sign.
const ENDS = { running: ["", "runs"], succeeded: ["", "succeeded"], retried: ["", "is tried again"], replaced: ["»", "replaced by a newer one"],
  released: ["", "released"], ignored: ["–", "ignored"], "not run": ["°", "did not run"],
  failed: ["×", "failed"], rejected: ["«", "rejected"], died: ["†", "its process died"], terminated: ["‡", "its worker ended it"],
  lost: ["!", "lost its lock"], broken: ["÷", "an operator took its lock"], lapsed: ["?", "nobody released it; when it ended is not kept"] };
// The other things that are drawn.
const OTHERS = { kept: "kept, without a run", waiting: "waits", away: "skipped or refused meanwhile", gap: "not kept" };

export class Timeline {
  #names = [];
  #model;
  #list;
  #axis;
  #legend;
  #chosen = "";

  constructor(model, list, axis, legend) {
    this.#model = model;
    this.#list = list;
    this.#axis = axis;
    this.#legend = legend;
  }

  // Draw the lanes of these locks, so far back; "" for as far as something began or ended.
  show(names, span = "") {
    this.#names = names;
    this.#chosen = span;
    this.draw();
    if (!this.#list.previousWidth) this.draw(); // only what is there has a width
  }

  // The name of the span that is shown.
  get span() {
    if (SPANS[this.#chosen]) return this.#chosen;
    const now = this.#model.now(), ages = this.#names.flatMap((name) => this.#model.lanes().get(name) ?? [])
      .flatMap((item) => [now - item.began, now - (item.ended ?? now)]);
    const fits = ([, [seconds]]) => !ages.some((age) => age > seconds && age < SPANS["15 min"][0]);
    return Object.entries(SPANS).find(fits)[0];
  }

  draw() {
    const width = this.#list.querySelector("svg")?.clientWidth ?? 0, until = this.#model.now();
    const [seconds, step] = SPANS[this.span], since = until - seconds, drawn = new Set();
    this.#list.previousWidth = width;
    const x = (time) => ((Math.min(Math.max(time, since), until) - since) / seconds) * width;
    const frame = { model: this.#model, x, since, until, step, width, drawn };
    patch(this.#list, this.#names.map((name) => lane(name, frame)));
    if (this.#names.length) patch(this.#axis, [axis(frame)]);
    if (this.#legend) patch(this.#legend, [...Object.keys(ENDS), ...Object.keys(OTHERS)].filter((kind) => drawn.has(kind)).map(explained));
  }
}

// Where the ticks are.
function* steps(since, until, step) {
  for (let at = Math.ceil(since / step) * step; at < until; at += step) yield at;
}

function axis({ model: { live }, x, since, until, step, width }) {
  const ticks = [...steps(since, until, step * (width < 500 ? 2 : 1))].filter((at) => x(at) > 14 && x(at) < width - (step < 60 ? 60 : 44) - (live ? 0 : 36));
  return h("div", {}, ticks.map((at) => h("span", { style: { left: `${x(at)}px` } }, clock(at, step < 60))),
    h("span.now", { style: { left: `${width}px` } }, live ? "now" : clock(until)));
}

function lane(name, frame) {
  const { model, x, since, until, step, width, drawn } = frame;
  const all = model.lanes().get(name) ?? [], items = all.filter((item) => (item.ended ?? until) > since);
  const runs = inRows(items.filter((item) => item.kind !== "wait"), until, MOST_ROWS);
  const waits = inRows(items.filter((item) => item.kind === "wait"), until, MOST_WAITS);
  const bottom = TOP + Math.max(runs.length, 1) * (RUN + GAP), height = bottom + waits.length * WAIT + 3;
  const bars = (rows, top, apart, high) => h("g", {}, rows.flatMap((row, at) => row.map((item) => bar(item, frame, top + at * apart, high))));
  const thing = { ...all.findLast((item) => item.task), ...model.rowOf(name), name }, kept = x(model.keptSince(name));
  if (kept) drawn.add("gap");
  return h("li", { key: name },
    h("div.whose", {}, h("a.tail", { href: href(name), title: plain(name) }, tail(plain(taskOf(thing) || name))), h("span.label", {}, what(thing))),
    h("svg", { role: "img", height, "aria-label": `${count(all.filter((item) => item.kind === "run").length, "run")}, ${count(model.awayOf(name), "call")} skipped or refused, ${model.rowOf(name)?.waiting ?? 0} waiting` },
      h("g", { class: "grid" },
        kept ? h("rect", { x: 0, y: 0, width: kept, height, class: "gap", "data-note": model.forgetful || "The history keeps no older runs of this lock" }) : null,
        [...steps(since, until, step)].map((at) => h("line", { x1: x(at), x2: x(at), y1: 0, y2: height }))),
      bars(waits, bottom, WAIT, WAIT - 2), bars(runs, TOP, RUN + GAP, RUN),
      h("g", {}, turnedAway(items, frame))));
}

// How many calls the runs turned away, where they ended; of runs that are close together, in one sum.
function turnedAway(items, { x, until, width, drawn }) {
  const marks = [];
  for (const item of items.filter((each) => each.turned_away).sort((a, b) => (b.ended ?? until) - (a.ended ?? until))) {
    const at = Math.min(x(item.ended ?? until), width - 3), last = marks.at(-1);
    if (last && last.at - at < APART) last.calls += item.turned_away;
    else marks.push({ item, at, calls: item.turned_away });
  }
  if (marks.length) drawn.add("away");
  return marks.map(({ item, at, calls }) => h("text", { key: item.id, "data-item": item.id, class: "away", x: at.toFixed(1), y: TOP - 3 }, `▾${calls.toLocaleString("en")}`));
}

// These side by side in as few rows as it takes: two in two rows overlap.
function inRows(items, until, most) {
  const rows = [];
  for (const item of items.sort((a, b) => a.began - b.began || (a.id < b.id ? -1 : 1))) {
    const row = rows.find((each) => (each.at(-1).ended ?? until) <= item.began + 0.05);
    if (row) row.push(item);
    else if (rows.length < most) rows.push([item]);
  }
  return rows;
}

const endOf = (item) => (item.kind === "run" ? item.how ?? "running" : item.kind === "wait" ? "waiting" : "kept");
const look = (kind) => (kind === "waiting" || kind === "gap" ? kind : `bar ${kind.replace(" ", "-")}`);

function bar(item, { x, until, drawn }, y, height) {
  const left = x(item.began), end = endOf(item), sign = ENDS[end]?.[0] ?? "", wide = Math.max(x(item.ended ?? until) - left, sign ? SIGN : 2);
  drawn.add(end);
  return h("g", { key: item.id, "data-item": item.id },
    h("rect", { rx: 2.5, x: left.toFixed(1), width: wide.toFixed(1), y, height, class: look(end) }),
    sign ? h("text", { class: `sign ${end.replace(" ", "-")}`, x: (left + wide - SIGN / 2).toFixed(1), y: y + 12 }, sign) : null);
}

function explained(kind) {
  const sign = kind === "away" ? "▾" : ENDS[kind]?.[0], low = kind === "waiting";
  return h("li", { key: kind }, h("svg", { width: 16, height: 14, "aria-hidden": "true" },
    kind === "away" ? null : h("rect", { x: 0, y: low ? 5 : 1, width: 16, height: low ? 3 : 12, rx: 2, class: look(kind) }),
    sign ? h("text", { class: kind === "away" ? "away" : `sign ${kind.replace(" ", "-")}`, x: kind === "away" ? 12 : 8, y: 11 }, sign) : null), ENDS[kind]?.[1] ?? OTHERS[kind]);
}

// -- what an item says ----------------------------------------------------------------------------

export function lines(item, model) {
  const who = [item.label ? plain(item.label) : null, item.task ? plain(item.task) : null].filter(Boolean).join(" · ");
  const lapsed = item.how === "lapsed", ended = item.ended === undefined ? "now" : clock(item.ended);
  return [who || "a run", lapsed ? ENDS.lapsed[1] : `${how(item)} ${units((item.ended ?? model.now()) - item.began)}`,
    lapsed ? `${clock(item.began)} – ?` : `${clock(item.began)} – ${ended}`,
    item.turned_away && `${count(item.turned_away, "call")} skipped or refused meanwhile`,
    item.task_id && `${shortId(item.task_id)}${item.attempt ? `, attempt ${item.attempt + 1}` : ""}`,
    item.node && plain(item.node) + (item.pid ? ` · ${item.pid}` : ""), item.args && plain(item.args)].filter(Boolean);
}

export function how(item) {
  if (item.kind === "wait") return "waits for";
  if (item.kind === "kept") return `${item.state} for`;
  if (item.ended === undefined) return item.how === "lost" ? "runs without its lock for" : "runs for";
  return `${plain(item.how)} after`;
}
