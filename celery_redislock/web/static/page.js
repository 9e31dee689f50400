// The page: hears what the server tells, and shows it.
import { action, askToBreakAll, askToDrop, suspensions } from "./actions.js";
import { clock, count, el, h, patch, plain, say, setNoArguments, taskOf, zone } from "./format.js";
import { LockPage } from "./lock.js";
import { Model } from "./model.js";
import { Rows } from "./rows.js";
import { BEGIN, addressOf, matcher, noFilters, readView } from "./search.js";
import { SPANS, Timeline, lines } from "./timeline.js";
import { isHeld, rankOf } from "./trouble.js";

const at = (id) => document.getElementById(id);
const model = new Model();
const rows = new Rows(model);
const timeline = new Timeline(model, at("lanes"), at("axis"), at("legend"));
const lockPage = new LockPage(model);
const FEW_LANES = 14, MANY_LANES = 60;
const APART = 200; // ms between two times that everything is shown anew
const HIDDEN_FOR = 60_000; // ms after which a page that nobody sees asks no more
const PATIENCE = 30_000; // ms for an answer
// What each tile counts, since when, and the word that finds it.
const TILES = [["held", "held", "now"], ["waiting", "waiting", "now"], ["untaken", "not taken", "now"],
  ["away", "skipped or refused", "since"], ["lost", "lost", "last 15 min"]];

let view = { ...BEGIN };
let allLanes = false;
let pending = false;
let shownAt = 0;
let ticks = 0;
let leftFrom = null; // what had the keyboard when a lock was opened
let hiddenAt = null;
let wakeUp = () => {};

// -- hearing --------------------------------------------------------------------------------------

// Ask again and again what has changed, while somebody sees the page.
async function listen() {
  for (;;) {
    if (hiddenAt === null || performance.now() - hiddenAt < HIDDEN_FOR) await ask();
    await new Promise((wake) => { wakeUp = wake; setTimeout(wake, model.connected ? 1000 * (model.about.every ?? 1) : 3000); });
  }
}

async function ask() {
  let told;
  try {
    const answer = await fetch(`api/changes?since=${model.number}`, { signal: AbortSignal.timeout(PATIENCE) });
    told = answer.ok ? await answer.json() : null;
  } catch {
    told = null; // the connection, or what is between
  }
  model.connected = told !== null;
  if (told) {
    model.apply(told);
    setNoArguments(model.about.no_arguments);
  }
  soon();
}

document.addEventListener("visibilitychange", () => {
  hiddenAt = document.hidden ? performance.now() : null;
  if (!document.hidden) wakeUp();
});

// -- the address ----------------------------------------------------------------------------------

// What the address names becomes what is shown.
function follow() {
  const read = readView();
  if (read.lock === undefined) {
    view = read;
    at("query").value = view.q;
    for (const name of ["task", "node", "order"]) at(name).value = view[name];
  }
  soon();
}

// What is chosen on the page becomes the address.
function change(changed) {
  view = { ...view, page: "1", ...changed };
  history.replaceState(null, "", addressOf(view));
  soon();
}

function toggle(word) {
  const words = view.q.split(/\s+/).filter(Boolean);
  const left = words.filter((each) => each !== word);
  at("query").value = (left.length < words.length ? left : [...left.filter((each) => !each.startsWith("is:")), word]).join(" ");
  change({ q: at("query").value });
}

// -- showing --------------------------------------------------------------------------------------

function soon() {
  if (pending) return;
  pending = true;
  const wait = Math.max(shownAt + APART - performance.now(), 0);
  setTimeout(() => requestAnimationFrame(() => { pending = false; shownAt = performance.now(); show(); }), wait);
}

function show() {
  showState();
  showTiles();
  showChoices();
  const name = readView().lock ?? null, before = lockPage.name;
  if (name !== null && before === null) leftFrom = document.activeElement;
  for (const id of ["filter", "timeline", "list", "tiles", "no-filter", "suspended"]) at(id).hidden = name !== null;
  lockPage.open(name, addressOf(view));
  if (name === null) showAll();
  else lockPage.show();
  document.title = plain([model.version && !model.live && "not live", name === null ? view.q : lockPage.title, "Locks"].filter(Boolean).join(" · "));
  if (before !== undefined && name !== before) refocus(name);
}

// The keyboard is where one reads on: at the lock's title; and on return where one was.
function refocus(name) {
  const there = leftFrom?.isConnected && leftFrom !== document.body;
  (name !== null ? document.querySelector("#lock h2") : there ? leftFrom : at("list-title")).focus();
}

function showState() {
  const { about, live, trouble } = model;
  const asOf = model.asOf === null ? "" : clock(model.asOf);
  say(at("live"), live ? "live" : !model.version ? "connecting" : asOf ? `as of ${asOf}` : "nothing known yet");
  at("live").dataset.live = live;
  document.body.classList.toggle("stale", model.version > 0 && !live);
  const why = model.connected ? trouble : "the page's server does not answer";
  const shown = asOf ? `What is shown was so at ${asOf}; ages stand still.` : "Nothing is known yet.";
  say(at("list-title"), live || !asOf ? "Now" : `As of ${asOf}`);
  at("trouble").hidden = live || !model.version;
  if (!at("trouble").hidden) say(at("trouble"), plain(`${why.charAt(0).toUpperCase()}${why.slice(1).replace(/\.$/, "")}. ${shown}`));
  patch(at("unread"), model.queues.filter((each) => !each.is_read).map((each) => h("li", {}, plain(`No worker that answers reads the queue ${each.queue}: `
    + `${count(each.count, "call")} of ${each.task} ${each.count === 1 ? "waits" : "wait"} in it, since ${clock(each.since)}.`))));
  say(at("where"), plain([about.app, about.server].filter(Boolean).join(" · ")));
}

function showTiles() {
  const totals = model.totals(), words = view.q.split(/\s+/);
  patch(at("tiles"), TILES.map(([id, text, when]) => h("button", { type: "button", id: `tile-${id}`, onclick: () => toggle(`is:${id}`),
    title: totals[id] === undefined ? "not known" : "", "data-some": totals[id] > 0, "aria-pressed": words.includes(`is:${id}`) },
  h("strong", {}, totals[id]?.toLocaleString("en") ?? "–"), h("span", {}, text), h("span.when", {}, when === "since" ? model.away ? `since ${clock(model.away.since, false)}` : "" : when === "now" && !model.live ? "then" : when))));
}

function showChoices() {
  const tasks = new Set(), nodes = new Set();
  for (const row of model.rows.values()) {
    if (taskOf(row)) tasks.add(taskOf(row));
    if (row.node) nodes.add(row.node);
  }
  choices(at("task"), "all tasks", tasks, view.task);
  choices(at("node"), "all nodes", nodes, view.node);
}

function choices(select, all, values, chosen) {
  if (chosen) values.add(chosen);
  if (document.activeElement === select) return;
  patch(select, ["", ...[...values].sort()].map((value) => h("option", { key: value, value }, value ? plain(value) : all)));
  select.value = chosen;
}

function showAll() {
  const asked = matcher(view, model);
  // What was broken, and nobody has, is no lock: its own page shows it, and who asks for it.
  const isLock = (it) => it.state !== "broken" || view.q.includes("state:");
  const matches = (it) => isLock(it) && asked(it);
  const grouped = !view.q.includes("state:");
  const { found, pages, at: shown, names } = rows.show(matches, view.order, Number(view.page) - 1, grouped);
  const total = [...model.locks().values()].filter((each) => each.some(isLock)).length;
  say(at("count"), !model.looked ? "" : found === total ? count(total, "lock") : `${found.toLocaleString("en")} of ${count(total, "lock")}`);
  at("none").hidden = found > 0;
  say(at("none"), !model.looked ? "Waiting for the first look." : total ? "No lock matches." : "Nobody holds a lock, and nobody waits for one.");
  document.querySelector("#list table").hidden = found === 0;
  at("pages").hidden = pages < 2;
  const turn = (id, text, page, disabled) => h("button", { type: "button", id, disabled, onclick: () => change({ page: String(page) }) }, text);
  patch(at("pages"), [turn("previous", "Previous", shown, shown === 0), h("span", { id: "page" }, `page ${shown + 1} of ${pages}`),
    turn("next", "Next", shown + 2, shown === pages - 1)]);
  showLanes(names, matches, grouped);
  const things = () => [...model.rows.values(), ...model.items.values()];
  say(at("no-filter"), plain(noFilters(view.q, (q) => things().some(matcher({ q }, model)))));
  patch(at("suspended"), suspensions(model));
  patch(at("list-head"), [at("list-title"), at("count"),
    action("Drop all that wait …", model.about.may_break && toDrop().length, () => askToDrop(toDrop(), [], model.about)),
    action("Break all …", model.about.may_break && toBreak().length, () => askToBreakAll(toBreak(), model.about))]);
}

// What can be done to all that the list shows: of a task, to drop those who wait; of a node, to break what its runs hold.
function toDrop() {
  const matches = matcher(view, model);
  return view.task ? [...model.locks().values()].map((each) => each.find(matches)).filter((row) => row?.waiting) : [];
}

function toBreak() {
  const matches = matcher(view, model);
  return view.node ? [...model.rows.values()].filter((row) => isHeld(row) && row.holder && matches(row)) : [];
}

// A lane for each lock of the list to which something happened, in the list's order; then for those whose runs are over.
// Those whose messages only wait in a queue show nothing, and are left out where they are one row.
function showLanes(listed, matches, grouped) {
  const lanes = model.lanes(), locks = model.locks(), latest = (name) => Math.max(...lanes.get(name).map((item) => item.began));
  const shown = listed.filter((name) => lanes.has(name) && !(grouped && locks.get(name).every((row) => row.state === "queued") && lanes.get(name).every((item) => item.kind === "kept")));
  const over = [...lanes.keys()].filter((name) => !locks.has(name) && lanes.get(name).some(matches));
  const names = [...shown, ...over.sort((a, b) => latest(b) - latest(a))];
  timeline.show(names.slice(0, allLanes ? MANY_LANES : FEW_LANES), view.span);
  for (const each of at("span").querySelectorAll("input")) each.checked = each.value === timeline.span;
  at("axis").hidden = !names.length;
  sayOfLanes(Math.max(names.length - (allLanes ? MANY_LANES : FEW_LANES), 0), names.length);
}

function sayOfLanes(hidden, all) {
  const note = at("lanes-note"), said = [];
  if (!all && model.looked) said.push(view.q || view.task || view.node ? "Nothing that matches has happened. " : "Nothing has happened yet. ");
  if (model.forgetful) said.push(` ${plain(model.forgetful)}`);
  const text = allLanes ? `Show fewer${hidden > 0 ? `; ${hidden} more match` : ""}` : `${count(hidden, "more lock")}: show more`;
  const more = h("button", { type: "button", onclick: () => { allLanes = !allLanes; soon(); } }, text);
  patch(note, [said.join(""), ...(hidden > 0 || allLanes ? [" ", more] : [])]);
}

// -- the tip: who, and how long -------------------------------------------------------------------

function showTip(event) {
  const { item: id, note } = event.target.closest?.("[data-item], [data-note]")?.dataset ?? {};
  const item = model.items.get(id), tip = at("tip"), said = item ? lines(item, model) : note ? [note] : [];
  tip.hidden = !said.length;
  if (tip.hidden) return;
  patch(tip, said.map((line, number) => h(number ? "p" : "strong", {}, line)));
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10}px`;
}

// -- begin ----------------------------------------------------------------------------------------

at("span").append(...Object.keys(SPANS).map((name) => el("label", {}, el("input", { type: "radio", name: "span", value: name }), name)));
at("span").addEventListener("change", (event) => change({ span: event.target.value }));
say(at("zone"), `All times: ${zone()}`);
at("filter").addEventListener("submit", (event) => event.preventDefault());
at("query").addEventListener("input", () => change({ q: at("query").value }));
for (const name of ["task", "node", "order"]) at(name).addEventListener("change", (event) => change({ [name]: event.target.value }));
addEventListener("hashchange", () => { follow(); scrollTo(0, 0); });
addEventListener("resize", soon);
document.addEventListener("pointermove", showTip);
document.addEventListener("pointerdown", showTip);
document.addEventListener("pointerleave", () => { at("tip").hidden = true; });

setInterval(() => {
  if (document.hidden || document.body.classList.contains("stale")) return;
  rows.tick();
  lockPage.tick();
  if (readView().lock === undefined && (ticks += 1) % 2) timeline.draw();
}, 500);
setInterval(() => {
  if (!document.hidden && readView().lock !== undefined && model.connected) lockPage.ask();
}, 2000);

listen();
follow();
