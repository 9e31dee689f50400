// The page: hears what the server tells, and shows it.
import { count, el, mark, plain, say, setNoArguments, taskOf } from "./format.js";
import { LockPage } from "./lock.js";
import { Model, matcher } from "./model.js";
import { Rows } from "./rows.js";
import { SPANS, Timeline, legend, lines, setSpan } from "./timeline.js";

const at = (id) => document.getElementById(id);
const model = new Model();
const rows = new Rows(model);
const timeline = new Timeline(model, at("lanes"), at("axis"));
const lockPage = new LockPage(model);
const FEW_LANES = 14, MANY_LANES = 60;
const APART = 200; // ms between two times that everything is shown anew
const HIDDEN_FOR = 60_000; // ms after which a page that nobody sees hears no more

let page = 0;
let allLanes = false;
let pending = false;
let shownAt = 0;
let ticks = 0;
let source = null;
let connected = false;
let hiding = null;

// -- hearing --------------------------------------------------------------------------------------

function listen() {
  source = new EventSource("api/stream");
  source.onopen = () => { connected = true; soon(); };
  source.onerror = () => {
    connected = false;
    // Where the server refused, the browser does not try again by itself.
    if (source?.readyState === EventSource.CLOSED) setTimeout(() => { source?.close(); listen(); }, 3000);
    soon();
  };
  source.onmessage = (event) => {
    connected = true;
    model.apply(JSON.parse(event.data));
    setNoArguments(model.about.no_arguments);
    soon();
  };
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => { source?.close(); source = null; }, HIDDEN_FOR);
  else if (source === null) listen();
});

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
  const name = nameInHash();
  for (const id of ["filter", "timeline", "list", "tiles"]) at(id).hidden = name !== null;
  lockPage.open(name);
  if (name === null) showAll();
  else lockPage.show();
}

function showState() {
  const { about, trouble } = model;
  const live = connected && !trouble;
  say(at("live"), live ? "live" : connected ? "Redis does not answer" : model.version ? "reconnecting" : "connecting");
  mark(at("live"), "data-live", live);
  document.body.classList.toggle("stale", model.version > 0 && !live);
  const why = trouble ? `The lock server does not answer${model.looked ? ", so this is what it said last" : ""}. ${trouble}`
    : "The page's server does not answer, so this is what it said last.";
  at("trouble").hidden = live || !model.version;
  if (!at("trouble").hidden) say(at("trouble"), plain(why));
  say(at("where"), plain([about.app, about.server].filter(Boolean).join(" · ")));
}

function showTiles() {
  const totals = model.totals();
  const tiles = [["held", "held", totals.held], ["waiting", "waiting", totals.waiting],
    ["away", "turned away", totals.away], ["untaken", "not taken", totals.untaken], ["lost", "lost", totals.lost]];
  const box = at("tiles");
  if (!box.children.length) {
    box.append(...tiles.map(([id, text]) => el("div", { id: `tile-${id}` }, el("dd"), el("dt", {}, text))));
  }
  for (const [id, , number] of tiles) {
    const tile = at(`tile-${id}`);
    say(tile.firstChild, number.toLocaleString("en"));
    mark(tile, "data-some", number > 0);
  }
}

function showChoices() {
  const tasks = new Set(), nodes = new Set();
  for (const row of model.rows.values()) {
    if (taskOf(row)) tasks.add(taskOf(row));
    if (row.node) nodes.add(row.node);
  }
  choices(at("task"), "all tasks", tasks);
  choices(at("node"), "all nodes", nodes);
}

function choices(select, all, values) {
  if (select.value) values.add(select.value);
  const wanted = ["", ...[...values].sort()];
  if (document.activeElement === select || wanted.join("\n") === [...select.options].map((each) => each.value).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...wanted.map((value) => el("option", { value }, value ? plain(value) : all)));
  select.value = chosen;
}

function showAll() {
  const query = at("query").value;
  const asked = matcher(query, at("task").value, at("node").value);
  // What was broken, and nobody has, is no lock: its own page shows it, and who asks for it.
  const isLock = (it) => it.state !== "broken" || query.includes("state:");
  const matches = (it) => isLock(it) && asked(it);
  const { found, pages, at: shown } = rows.show(matches, at("order").value, page);
  page = shown;
  const total = [...model.rows.values()].filter(isLock).length;
  say(at("count"), found === total ? count(total, "lock") : `${found.toLocaleString("en")} of ${count(total, "lock")}`);
  at("none").hidden = found > 0;
  say(at("none"), !model.looked ? "Waiting for the first look." : total ? "No lock matches." : "Nobody holds a lock, and nobody waits for one.");
  document.querySelector("#list table").hidden = found === 0;
  at("pages").hidden = pages < 2;
  say(at("page"), `page ${shown + 1} of ${pages}`);
  at("previous").disabled = shown === 0;
  at("next").disabled = shown === pages - 1;
  showLanes(matches);
}

// The lanes: first those that are waited for or had something happen, then by the latest event.
function showLanes(matches) {
  const rowOf = new Map([...model.rows.values()].map((row) => [row.name, row]));
  const names = [];
  for (const [name, items] of model.lanes) {
    const row = rowOf.get(name);
    let latest = 0, busy = 0, found = row !== undefined && matches(row);
    for (const item of items.values()) {
      latest = Math.max(latest, item.began);
      if (item.kind === "mark" || item.kind === "wait") busy += item.count ?? 1;
      found ||= matches(item);
    }
    if (found) names.push([name, busy + (row?.waiting ?? 0), latest]);
  }
  names.sort((a, b) => b[1] - a[1] || b[2] - a[2] || (a[0] < b[0] ? -1 : 1));
  const most = allLanes ? MANY_LANES : FEW_LANES;
  // Once chosen, a lane keeps its place while the page goes on: by name.
  const shown = names.slice(0, most).map(([name]) => name).sort();
  timeline.show(shown);
  at("axis").hidden = !shown.length;
  const hidden = names.length - shown.length;
  const note = at("lanes-note");
  const said = [];
  if (!names.length) said.push("Nothing has happened yet. ");
  if (model.events.trouble) said.push(plain(model.events.trouble));
  else if (!model.events.any) said.push("No events of workers yet: with -E they tell who was turned away, and how runs end.");
  if (model.forgetful) said.push(` ${plain(model.forgetful)}`);
  const key = JSON.stringify([said, hidden, allLanes]);
  if (note.dataset.key === key) return;
  note.dataset.key = key;
  note.replaceChildren(said.join(""));
  if (hidden > 0 || allLanes) {
    const text = allLanes ? `Show fewer${hidden > 0 ? `; ${hidden} more match` : ""}` : `${count(hidden, "more lock")}: show more`;
    note.append(" ", el("button", { type: "button", onclick: () => { allLanes = !allLanes; soon(); } }, text));
  }
}

function nameInHash() {
  const found = /^#\/lock\/(.+)$/.exec(location.hash);
  try {
    return found ? decodeURIComponent(found[1]) : null;
  } catch {
    return null; // typed by hand
  }
}

// -- the tip: who, and how long -------------------------------------------------------------------

function showTip(event) {
  const item = model.items.get(Number(event.target.closest?.("[data-item]")?.dataset.item));
  const tip = at("tip");
  tip.hidden = !item;
  if (!item) return;
  tip.replaceChildren(...lines(item, model).map((line, number) => el(number ? "p" : "strong", {}, line)));
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10}px`;
}

// -- begin ----------------------------------------------------------------------------------------

at("legend").append(...legend());
at("span").append(...Object.keys(SPANS).map((name) => el("label", {},
  el("input", { type: "radio", name: "span", value: name, checked: name === "15 min" && "" }), name)));
at("span").addEventListener("change", (event) => { setSpan(event.target.value); soon(); });
at("filter").addEventListener("submit", (event) => event.preventDefault());
at("filter").addEventListener("input", () => { page = 0; soon(); });
at("previous").addEventListener("click", () => { page -= 1; soon(); });
at("next").addEventListener("click", () => { page += 1; soon(); });
addEventListener("hashchange", () => { soon(); scrollTo(0, 0); });
addEventListener("resize", soon);
document.addEventListener("pointermove", showTip);
document.addEventListener("pointerdown", showTip);
document.addEventListener("pointerleave", () => { at("tip").hidden = true; });

setInterval(() => {
  if (document.hidden || document.body.classList.contains("stale")) return;
  rows.tick();
  lockPage.tick();
  if (nameInHash() === null && (ticks += 1) % 2) timeline.draw();
}, 500);
setInterval(() => {
  if (!document.hidden && nameInHash() !== null && connected) lockPage.ask();
}, 2000);

listen();
show();
