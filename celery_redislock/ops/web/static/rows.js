// The table of what there is now.
import { arrange, clock, count, cut, el, href, mark, plain, say, shortId, taskOf, units, what } from "./format.js";

export const PER_PAGE = 50;

const ORDERS = {
  held: (a, b) => (a.acquired_at ?? Infinity) - (b.acquired_at ?? Infinity),
  waiting: (a, b) => b.waiting - a.waiting,
  away: (a, b) => b.away - a.away,
  lease: (a, b) => (a.expires_at ?? Infinity) - (b.expires_at ?? Infinity),
  task: (a, b) => taskOf(a).localeCompare(taskOf(b)) || what(a).localeCompare(what(b)),
};

export class Rows {
  #body = document.getElementById("rows");
  #made = new Map();
  #model;

  constructor(model) {
    this.#model = model;
  }

  // Show that page of the rows that match; how many match, and how many pages they are.
  show(matches, order, page) {
    const found = [...this.#model.rows.values()].filter(matches);
    const by = ORDERS[order];
    found.sort((a, b) => by(a, b) || a.id - b.id);
    const pages = Math.max(Math.ceil(found.length / PER_PAGE), 1);
    const at = Math.min(page, pages - 1);
    const shown = found.slice(at * PER_PAGE, (at + 1) * PER_PAGE);
    const before = this.#made;
    this.#made = new Map(shown.map((row) => [row.id, before.get(row.id) ?? new Row()]));
    for (const row of shown) this.#made.get(row.id).update(row, this.#model);
    arrange(this.#body, [...this.#made.values()].map((each) => each.element));
    return { found: found.length, pages, at };
  }

  tick() {
    for (const each of this.#made.values()) each.tick(this.#model.now());
  }
}

class Row {
  task = el("a.task");
  label = el("span.label");
  state = el("span.state");
  lease = new Lease();
  held = el("td", { "data-title": "Held for" });
  where = el("td.where", { "data-title": "Where" });
  behind = el("td.behind", { "data-title": "Waiting" });
  away = el("td.number", { "data-title": "Turned away" });
  element = el("tr", {}, el("th", { scope: "row" }, this.task, this.label),
    el("td", { "data-title": "State" }, this.state), el("td", { "data-title": "Lease" }, this.lease.element),
    this.held, this.where, this.behind, this.away);
  row = null;
  #shown = "";
  #ages = [];

  update(row, model) {
    this.row = row;
    const shown = JSON.stringify(row);
    if (shown === this.#shown) return;
    this.#shown = shown;
    mark(this.element, "data-state", row.state);
    mark(this.task, "href", href(row.name));
    say(this.task, plain(taskOf(row) || "no task"));
    say(this.label, what(row));
    mark(this.label, "title", plain(row.key));
    say(this.state, row.state);
    mark(this.state, "data-state", row.state);
    this.where.replaceChildren(...whereOf(row));
    this.#ages = [];
    this.behind.replaceChildren(behind(row, this.#ages));
    say(this.away, row.away ? row.away.toLocaleString("en") : "");
    this.tick(model.now());
  }

  tick(now) {
    const since = this.row.acquired_at;
    say(this.held, since === undefined ? "" : units(now - since));
    if (since !== undefined) mark(this.held, "title", `since ${clock(since)}`);
    for (const [place, since] of this.#ages) say(place, units(now - since));
    this.lease.update(this.row, now);
  }
}

function whereOf(row) {
  const parts = [];
  if (row.node) parts.push(el("span.node", {}, plain(row.node) + (row.pid ? ` · ${row.pid}` : "")));
  if (row.task_id) {
    const attempt = row.attempt ? ` · attempt ${row.attempt + 1}` : "";
    parts.push(el("span.id", { title: plain(row.task_id) }, shortId(row.task_id) + attempt));
  }
  return parts;
}

// Those that wait behind it, the next one first. Where their ages go is added to `ages`.
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
  if (row.untaken) list.append(el("li.more.untaken", {}, `no worker takes ${row.untaken.toLocaleString("en")}`));
  return list;
}

export function whoWaits(each, row) {
  const name = each.label && each.label !== row.label ? plain(each.label) : shortId(each.task_id);
  const task = each.task && each.task !== row.task ? `${plain(each.task)} ` : "";
  return cut(task + name, 40);
}

export function about(each) {
  const parts = [`${plain(each.task ?? "cannot be read")}[${plain(each.task_id)}]`];
  for (const given of [each.args, each.kwargs]) {
    if (given && !["()", "[]", "{}"].includes(given)) parts.push(plain(given));
  }
  return parts.join(" ");
}

// The lease: a bar that drains until the heartbeat extends it.
export class Lease {
  bar = el("span.fill");
  text = el("span.left");
  meter = el("span.lease", { role: "meter", "aria-label": "lease", "aria-valuemin": 0 }, this.bar);
  element = el("div.leased", {}, this.meter, this.text);

  update(row, now) {
    const none = row.expires_at === undefined;
    this.meter.hidden = none;
    if (none) {
      const broken = row.broken_by ? `by ${plain(row.broken_by)}` : "";
      say(this.text, row.state === "foreign" ? "for ever" : broken);
      return;
    }
    const left = Math.max(row.expires_at - now, 0);
    const share = Math.min(left / (row.lease || left || 1), 1);
    this.bar.style.transform = `scaleX(${share.toFixed(3)})`;
    mark(this.meter, "data-low", share < 0.34);
    mark(this.meter, "aria-valuemax", Math.round(row.lease ?? 0));
    mark(this.meter, "aria-valuenow", Math.round(left));
    say(this.text, units(left));
  }
}
