// The timeline: a lane for each lock, bars for runs, thin lines for those that wait, and marks.
import { clock, count, el, h, href, patch, plain, shortId, tail, taskOf, units, what } from "./format.js";

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
  #names = [];
  #model;
  #list;
  #axis;

  constructor(model, list, axis) {
    this.#model = model;
    this.#list = list;
    this.#axis = axis;
  }

  // Draw the lanes of these locks.
  show(names) {
    this.#names = names;
    this.draw();
    if (!this.#list.previousWidth) this.draw(); // only what is there has a width
  }

  draw() {
    const width = this.#list.querySelector("svg")?.clientWidth ?? 0, until = this.#model.now(), since = until - span[0];
    this.#list.previousWidth = width;
    const x = (time) => ((Math.max(time, since) - since) / (until - since)) * width;
    patch(this.#list, this.#names.map((name) => lane(name, this.#model, x, since, until, width)));
    if (this.#names.length) patch(this.#axis, [axis(x, since, until, width, this.#model.live)]);
  }
}

// Where the ticks are.
function* steps(since, until, step) {
  for (let at = Math.ceil(since / step) * step; at < until; at += step) yield at;
}

function axis(x, since, until, width, live) {
  const ticks = [...steps(since, until, span[1] * (width < 500 ? 2 : 1))].filter((at) => x(at) > 14 && x(at) < width - (live ? 44 : 80));
  return h("div", {}, ticks.map((at) => h("span", { style: { left: `${x(at)}px` } }, clock(at, span[0] < 100))),
    h("span.now", { style: { left: `${width}px` } }, live ? "now" : clock(until)));
}

function lane(name, model, x, since, until, width) {
  const all = [...(model.lanes.get(name)?.values() ?? [])];
  const items = all.filter((item) => item.kind === "mark" ? item.began > since : (item.ended ?? until) > since);
  const runs = inRows(items.filter((item) => item.kind === "run" || item.kind === "kept"), until, MOST_ROWS);
  const waits = inRows(items.filter((item) => item.kind === "wait"), until, MOST_WAITS);
  const bottom = TOP + Math.max(runs.length, 1) * (RUN + GAP), height = bottom + waits.length * WAIT + 3;
  const bars = (rows, top, apart, high) => h("g", {}, rows.flatMap((row, at) => row.map((item) => bar(item, x, until, top + at * apart, high))));
  const last = all.findLast((item) => item.task) ?? all.at(-1) ?? {}, thing = { ...last, ...model.rowOf(name), lock: name, name };
  const many = all.filter((item) => item.kind === "run").length;
  const waiting = all.filter((item) => item.kind === "wait" && item.ended === undefined).length;
  return h("li", { key: name },
    h("div.whose", {}, h("a.tail", { href: href(name), title: plain(name) }, tail(plain(taskOf(thing) || name))), h("span.label", {}, what(thing))),
    h("svg", { role: "img", height, "aria-label": `${count(many, "run")}, ${count(model.turnedAway(name), "call")} skipped or refused, ${waiting} waiting` },
      h("g", { class: "grid" },
        model.gaps.filter((gap) => gap[1] > since).map(([from, to]) => h("rect", { x: x(from), y: 0, width: x(to) - x(from), height, class: "gap" })),
        [...steps(since, until, span[1])].map((at) => h("line", { x1: x(at), x2: x(at), y1: 0, y2: height }))),
      bars(waits, bottom, WAIT, WAIT - 2), bars(runs, TOP, RUN + GAP, RUN),
      h("g", {}, items.filter((each) => each.kind === "mark" && !NO_MARK.has(each.what)).map((item) => h("path", { key: item.id, "data-item": item.id,
        d: SHAPES[item.what] ?? SHAPES.skipped, class: `mark ${item.what}`, transform: `translate(${Math.min(x(item.began), width - 5).toFixed(1)} 7)` })))));
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

function bar(item, x, until, y, height) {
  const left = x(item.began), right = x(item.ended ?? until), open = item.ended === undefined;
  const kind = item.kind === "wait" ? (open ? "waiting open" : "waiting")
    : item.kind === "kept" ? `bar kept ${item.how ?? ""}` : `bar ${open ? "running" : item.how ?? "ended"}`;
  return h("rect", { key: item.id, "data-item": item.id, rx: 2.5, x: left.toFixed(1), width: Math.max(right - left, 2).toFixed(1), y, height, class: kind });
}

export function setSpan(name) {
  span = SPANS[name] ?? SPANS["15 min"];
}

export function legend() {
  return LEGEND.map(([kind, text]) => {
    const shape = SHAPES[kind] ? h("path", { d: SHAPES[kind], class: `mark ${kind}`, transform: "translate(8 8)" })
      : h("rect", { x: 0, y: kind.startsWith("waiting") ? 5 : 2, width: 16, height: kind.startsWith("waiting") ? 3 : 10, rx: 2, class: kind });
    return el("li", {}, h("svg", { width: 16, height: 14, "aria-hidden": "true" }, shape), text);
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
