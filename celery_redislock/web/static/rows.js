// The table: what is held and waited for now. A lock with several slots is one row of it.
import { clock, count, cut, h, href, inWords, patch, plain, shortId, tail, taskOf, units, what, wrapped } from "./format.js";
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
  away: (a, b) => b.away - a.away,
  lease: (a, b) => (a.row.expires_at ?? Infinity) - (b.row.expires_at ?? Infinity),
  task: (a, b) => taskOf(a.row).localeCompare(taskOf(b.row)) || what(a.row).localeCompare(what(b.row)),
};

export class Rows {
  #shown = [];
  #model;

  constructor(model) {
    this.#model = model;
  }

  // Show that page of the locks that match; how many match, and how many pages they are. With
  // `grouped`, those of a task whose messages wait in a queue are one row.
  show(matches, order, page, grouped) {
    const now = this.#model.now(), by = ORDERS[order] ?? ORDERS.trouble;
    const worst = (rows) => rows.map((row) => ({ row, rank: rankOf(row, this.#model, now), away: this.#model.awayOf(row.name) })).sort(by)[0];
    const found = [...this.#model.locks().values()].filter((rows) => rows.some(matches)).map(worst);
    const entries = grouped ? gathered(found) : found;
    entries.sort((a, b) => by(a, b) || (a.row.key < b.row.key ? -1 : 1));
    const pages = Math.max(Math.ceil(entries.length / PER_PAGE), 1);
    const at = Math.min(Math.max(page, 0), pages - 1);
    this.#shown = entries.slice(at * PER_PAGE, (at + 1) * PER_PAGE);
    this.tick();
    return { found: found.length, pages, at, names: entries.flatMap(({ row, group }) => (group ?? [row]).map((each) => each.name)) };
  }

  tick() {
    const now = this.#model.now(), locks = this.#model.locks();
    patch(document.getElementById("rows"), this.#shown.flatMap(({ row, group }) => (
      group ? [groupRow(group, this.#model, now)] : lockRows(locks.get(row.name) ?? [row], this.#model, now))));
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
    return { row: rows[0], rank: Math.max(...each.map(({ rank }) => rank)), away: 0, group: rows };
  })];
}

// The locks of a task whose messages wait in a queue, the oldest first.
function groupRow(rows, model, now) {
  const [row] = rows, since = row.acquired_at;
  const away = rows.reduce((sum, each) => sum + model.awayOf(each.name), 0);
  return h("tr", { key: `\n${row.task}`, "data-state": "queued", "data-trouble": rankOf(row, model, now) > 0 }, // no name has a line
    h("th", { scope: "row" },
      h("a.task.tail", { href: addressOf({ ...BEGIN, q: `task:"${row.task}" state:queued` }), title: "show each" }, tail(plain(row.task))),
      h("span.label", {}, `${count(rows.length, "lock")}, kept for messages in a queue`)),
    h("td", { "data-title": "State" }, h("span.state", { "data-state": "queued" }, "queued")),
    h("td.since", { "data-title": "Held for" }, h("span.held", {}, since === undefined ? "" : `up to ${units(now - since)}`),
      h("span.note", {}, depthOf(row, model)), h("span.trouble", {}, told(row, model, now))),
    h("td"), h("td.where"), h("td.behind"), awayCell(away, 1));
}

// One lock: its first line, and one more for each further slot.
function lockRows(rows, model, now) {
  const [row] = rows, seen = rows.slice(0, MOST_SLOTS), rowspan = seen.length;
  const limit = model.about.limits?.[taskOf(row)], held = rows.filter((each) => !NO_SLOT.has(each.state)).length;
  const more = rows.length > seen.length ? `, ${count(rows.length - seen.length, "more slot")}` : "";
  const slots = limit ? `${held} of ${count(limit, "slot")}${more}` : rows.length > 1 ? count(held, "slot") + more : "";
  const name = h("th", { scope: "row", rowspan },
    h("a.task.tail", { href: href(row.name), title: plain(taskOf(row)) }, tail(plain(taskOf(row) || "no task"))),
    h("span.label", { title: plain(row.key) }, wrapped(what(row))), h("span.note.slots-note", {}, slots));
  const behind = [h("td.behind", { "data-title": "Waiting", rowspan }, queue(row, now)), awayCell(model.awayOf(row.name), rowspan)];
  return seen.map((each, place) => h("tr", { key: `${row.name}\n${place}`, "data-state": each.state, "data-trouble": rankOf(each, model, now) > 0 },
    place ? null : name, slotCells(each, model, now), place ? null : behind));
}

const awayCell = (away, rowspan) => h("td.number", { "data-title": "Skipped, refused", rowspan }, away ? away.toLocaleString("en") : "");

function slotCells(row, model, now) {
  const since = row.acquired_at, note = depthOf(row, model);
  const facts = [row.task_id && shortId(row.task_id), row.pid && `pid ${row.pid}`, row.attempt && `attempt ${row.attempt + 1}`];
  return [
    h("td", { "data-title": "State" }, stateOf(row, now)),
    h("td.since", { "data-title": "Held for" },
      h("span.held", since === undefined ? {} : { title: `since ${clock(since)}` }, since === undefined ? "" : units(now - since)),
      h("span.note", {}, [row.description && plain(row.description), note].filter(Boolean).join(" · ")),
      h("span.trouble", {}, told(row, model, now))),
    h("td", { "data-title": "Lease" }, leaseOf(row, now)),
    h("td.where", { "data-title": "Where" }, row.node ? h("span.node", { title: plain(row.node) }, plain(row.node)) : null,
      row.node || row.task_id ? h("span.id", { title: plain(row.task_id ?? "") }, facts.filter(Boolean).join(" · ")) : null),
  ];
}

export const stateOf = (row, now) => h("span.state", { "data-state": row.state, title: STATES[row.state] }, inWords(row, now));

// Those that wait behind it, who came first is first.
function queue(row, now) {
  if (!row.waiting) return null;
  const next = row.next ?? [], more = row.waiting - next.length;
  return h("ol.queue", {},
    next.map((each) => h("li", { title: about(each) }, h("span.who", {}, whoWaits(each, row)), h("span.age", {}, each.since === undefined ? "" : units(now - each.since)))),
    more > 0 ? h("li.more", {}, next.length ? `+${more.toLocaleString("en")}` : count(more, "waits", "wait")) : null);
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
export function leaseOf(row, now) {
  if (row.expires_at === undefined) {
    const broken = row.broken_by ? `by ${plain(row.broken_by)}` : "";
    return h("div.leased", {}, h("span.lease", { hidden: true }), h("span.left", {}, wrapped(row.state === "foreign" ? "for ever" : broken)));
  }
  const left = Math.max(row.expires_at - now, 0), silent = silence(row, now);
  const lease = row.ttl ?? row.expires_at - (row.acquired_at ?? now), share = Math.min(left / (lease || 1), 1);
  return h("div.leased", { title: `expires in ${units(left)} unless its holder extends it` },
    h("span.lease", { role: "meter", "aria-label": "lease", "aria-valuemin": 0, "aria-valuemax": Math.round(lease),
      "aria-valuenow": Math.round(left), "data-low": silent > 0 }, h("span.fill", { style: { transform: `scaleX(${share.toFixed(3)})` } })),
    h("span.left", { "data-silent": silent > 0 }, silent ? `no heartbeat for ${units(silent)}` : units(left)));
}
