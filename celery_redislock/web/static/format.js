// How things are said. What comes from tasks only ever becomes text here: `textContent`, never HTML.

const LONGEST = 1000; // characters of one text

// Characters that could move the cursor, end a line, or turn the text round, as an escape.
export function plain(value) {
  return cut(String(value), LONGEST).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (each) => {
    return `\\u{${each.codePointAt(0).toString(16)}}`;
  });
}

// 0.4s, 12s, 3m05s, 2h10m, 4d03h: as in the terminal.
export function units(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  if (seconds < 10) return `${Math.max(seconds, 0).toFixed(1)}s`;
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d${two(Math.floor((whole % 86400) / 3600))}h`;
}

// The time of day, with its date if that is not today, and with its year if that is not this year.
export function clock(unix, seconds = true) {
  const at = new Date(unix * 1000), now = new Date();
  const parts = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (seconds) parts.second = "2-digit";
  const time = at.toLocaleTimeString([], parts);
  if (at.toDateString() === now.toDateString()) return time;
  const date = { day: "numeric", month: "short" };
  if (at.getFullYear() !== now.getFullYear()) date.year = "numeric";
  return `${at.toLocaleDateString([], date)}, ${time}`;
}

// The zone of all times on the page.
export function zone() {
  const [{ value }] = new Intl.DateTimeFormat("en", { timeZoneName: "longOffset" }).formatToParts().filter((each) => each.type === "timeZoneName");
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return name === "UTC" ? name : `${name}, ${value}`;
}

// The state of a row, and what is known of it: as in the terminal.
export function inWords(row, now) {
  if (row.kept_for) return `kept for ${row.kept_for}`;
  if (row.due_at !== undefined) return `${row.state}, ${units(row.due_at - now)}`;
  return row.replaced_by ? `${row.state}, replaced` : row.state;
}

// A task's id, short where it is a UUID.
export function shortId(id) {
  return /^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(id) ? id.slice(0, 8) : cut(plain(id), 28);
}

export function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

let noArguments = "";

export function setNoArguments(digest) {
  noArguments = digest;
}

// What tells this lock from the task's others: its label, or its name without the task's.
export function what(thing) {
  if (thing.label) return plain(thing.label);
  let name = thing.name ?? thing.lock ?? "";
  const task = taskOf(thing);
  if (task && name.startsWith(`${task}:`)) name = name.slice(task.length + 1);
  const digest = /^v\d+:([0-9a-f]{16,})$/.exec(name)?.[1];
  if (digest === noArguments) return "no arguments";
  return digest ? digest.slice(0, 8) : plain(name);
}

// The task of a lock whose holder is not known.
export function taskOf(thing) {
  if (thing.task) return thing.task;
  const found = /^(.+):v\d+:[0-9a-f]{16,}$/.exec(thing.name ?? thing.lock ?? "");
  return found ? found[1] : "";
}

// A word of a shell.
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

export const href = (name) => `#/lock/${encodeURIComponent(name.toWellFormed?.() ?? name)}`;

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

// -- elements -------------------------------------------------------------------------------------

// An element that is wanted: h("p.note", {title: "..."}, "text", another, a list of others). Texts become text nodes.
// One with a `key` stays the element of its thing, wherever it goes.
export const h = (what, properties = {}, ...children) => ({
  what, properties, children: children.flat(2).filter((each) => each !== null && each !== undefined && each !== ""),
});

// An element that nothing changes any more.
export const el = (what, properties = {}, ...children) => made(h(what, properties, ...children));

const SVG = new Set(["svg", "g", "rect", "text", "line"]);

function made(want) {
  const [tag, ...classes] = want.what.split(".");
  const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  Object.assign(node, { what: want.what, key: want.properties.key, given: {} });
  return update(node, want);
}

function update(node, { properties, children }) {
  for (const name of Object.keys(node.given)) if (!(name in properties)) node.removeAttribute(name);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "key" || value === node.given[name]) continue;
    if (name.startsWith("on")) node[name] = value;
    else if (name === "style") Object.assign(node.style, value); // as an attribute it would be forbidden
    else if (value === undefined || (value === false && !name.includes("-"))) node.removeAttribute(name);
    else node.setAttribute(name, value === true && !name.includes("-") ? "" : value);
  }
  node.given = properties;
  patch(node, children);
  return node;
}

// Give the parent exactly these children: elements that are wanted, or that are there, and texts.
// Only what differs is changed: what is selected, hovered or focused stays so.
export function patch(parent, children) {
  const before = [...parent.childNodes], used = new Set();
  const keyed = new Map(before.filter((node) => node.key !== undefined).map((node) => [node.key, node]));
  const nodes = children.map((want, place) => {
    if (want instanceof Node) return want;
    const isText = typeof want !== "object", key = isText ? undefined : want.properties.key;
    let node = key === undefined ? before[place] : keyed.get(key);
    const fits = node && !used.has(node) && (isText ? node.nodeType === Node.TEXT_NODE : node.what === want.what && node.key === key);
    if (isText) {
      if (!fits) node = document.createTextNode(want);
      else if (node.data !== String(want)) node.data = want;
    } else node = fits ? update(node, want) : made(want);
    used.add(node);
    return node;
  });
  // Those that go, go first: an element that is moved loses the keyboard's focus.
  const wanted = new Set(nodes);
  for (const each of before) if (!wanted.has(each)) each.remove();
  nodes.forEach((node, place) => {
    if (parent.childNodes[place] !== node) parent.insertBefore(node, parent.childNodes[place] ?? null);
  });
}

// A text that may be broken after what joins its words, and nowhere within them.
export const wrapped = (text) => text.split(/(?<=[._@:/|])/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));

// A text in one line whose end is what is seen of it, if it is too long: for an element of the class `tail`.
export const tail = (text) => h("bdi", {}, text);

// Change only what differs.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
