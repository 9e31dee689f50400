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

// The time of day, with its date if that is not today.
export function clock(unix, seconds = true) {
  const at = new Date(unix * 1000);
  const parts = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (seconds) parts.second = "2-digit";
  const time = at.toLocaleTimeString([], parts);
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" })}, ${time}`;
}

// The zone of all times on the page.
export function zone() {
  const [{ value }] = new Intl.DateTimeFormat("en", { timeZoneName: "longOffset" }).formatToParts().filter((each) => each.type === "timeZoneName");
  return `${Intl.DateTimeFormat().resolvedOptions().timeZone}, ${value}`;
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
  if (thing.task && name.startsWith(`${thing.task}:`)) name = name.slice(thing.task.length + 1);
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

// An element: el("p.note", {title: "..."}, "text", another element). Texts become text nodes.
export function el(what, properties = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  return fill(made, properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function fill(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

// Change only what differs: what is selected or hovered stays so.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A text that may be broken after what joins its words, and nowhere within them.
export function wrap(element, text) {
  if (element.textContent === text) return;
  const parts = text.split(/(?<=[._@:/|])/);
  element.replaceChildren(...parts.flatMap((part, place) => (place ? [el("wbr"), part] : [part])));
}

// A text in one line whose end is what is seen of it, if it is too long.
export function tail(element, text) {
  if (element.textContent === text) return;
  element.classList.add("tail");
  element.replaceChildren(el("bdi", {}, text));
}

export function mark(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

// Give the parent exactly these children, in this order, and keep those that it has.
// Those that go, go first: an element that is moved loses the keyboard's focus.
export function arrange(parent, children) {
  const wanted = new Set(children);
  for (const each of [...parent.children]) if (!wanted.has(each)) each.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
}
