// What is looked for, and how the address says it: a colleague who opens it sees the same.
import { taskOf, what } from "./format.js";
import { STATES } from "./states.js";
import { isHeld, troubles } from "./trouble.js";

const FIELDS = { task: taskOf, label: what, node: (it) => it.node ?? "", state: (it) => it.state ?? "",
  id: (it) => it.task_id ?? "", key: (it) => it.key ?? it.name };

// What the tiles ask for. Each is for a row or an item of the timeline.
const IS = {
  held: (it) => isHeld(it) && it.ended === undefined,
  waiting: (it) => it.waiting > 0 || it.kind === "wait",
  untaken: (it) => it.untaken > 0,
  away: (it, model) => model.awayOf(it.name) > 0,
  lost: (it, model) => model.hasLost(it.name),
  trouble: (it, model) => !it.kind && troubles(it, model, model.now()).length > 0,
};

// A function that tells whether a row or an item is looked for.
export function matcher(view, model) {
  const tests = words(view.q).map((word) => testOf(word, model));
  if (view.task) tests.push((it) => taskOf(it) === view.task);
  if (view.node) tests.push((it) => it.node === view.node);
  return (it) => tests.every((test) => test(it));
}

// What is said of the words that look like filters, and are none; "" if there are none. `finds` tells whether a text is there.
export function noFilters(query, finds) {
  return words(query).map((word) => {
    const [, field, rest] = /^(\w+):(.+)$/.exec(word) ?? [], names = (of) => Object.keys(of).map((each) => `${field}:${each}`).join(", ");
    if (field === "is") return Object.hasOwn(IS, rest) ? "" : `There is no filter ${word}. There are: ${names(IS)}.`;
    if (field === "state") return Object.keys(STATES).some((state) => testOf(word)({ state })) ? "" : `There is no state ${unquoted(rest)}. There are: ${names(STATES)}.`;
    if (!field || Object.hasOwn(FIELDS, field) || finds(word)) return "";
    return `There is no filter ${field}:, so this is looked for as a text. There are: ${[...Object.keys(FIELDS), "is"].map((each) => `${each}:`).join(", ")}.`;
  }).filter(Boolean).join(" ");
}

// The words of a query; what is in quotes is one word, and is looked for as a whole.
function words(query) {
  return query.match(/\w+:"[^"]*"|"[^"]*"|\S+/g) ?? [];
}

function testOf(word, model) {
  const [, field, rest] = /^(\w+):(.+)$/.exec(word) ?? [];
  if (field === "is" && Object.hasOwn(IS, rest)) return (it) => IS[rest](it, model);
  if (Object.hasOwn(FIELDS, field ?? "")) {
    const pattern = unquoted(rest).split("*").map(escaped);
    const whole = new RegExp(`^${pattern.join(".*")}$`, "iu"), part = new RegExp(pattern.join(".*"), "iu");
    const test = rest.startsWith('"') ? whole : part;
    return (it) => test.test(FIELDS[field](it));
  }
  if (word.startsWith('"')) {
    const phrase = new RegExp(`(?<![\\p{L}\\p{N}])${escaped(unquoted(word))}(?![\\p{L}\\p{N}])`, "iu");
    return (it) => texts(it).some((each) => phrase.test(each));
  }
  const text = word.toLowerCase();
  return (it) => texts(it).some((each) => each.toLowerCase().includes(text));
}

const unquoted = (word) => word.replace(/^"|"$/g, "");
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
const texts = (it) => [it.task, it.name, it.label, it.node, it.task_id, it.key, it.state,
  ...(it.next ?? []).flatMap((each) => [each.task_id, each.label])].filter(Boolean).map(String);

// -- the address ----------------------------------------------------------------------------------

export const BEGIN = { q: "", task: "", node: "", order: "trouble", span: "", page: "1" };

// The view that the address names: {lock} or the list's fields.
export function readView() {
  const found = /^#\/lock\/(.+)$/.exec(location.hash);
  try {
    if (found) return { lock: decodeURIComponent(found[1]) };
  } catch {
    // typed by hand
  }
  const given = new URLSearchParams(/^#\/\?(.*)$/.exec(location.hash)?.[1] ?? "");
  return { ...BEGIN, ...Object.fromEntries([...given].filter(([name]) => Object.hasOwn(BEGIN, name))) };
}

export function addressOf(view) {
  const told = Object.entries(view).filter(([name, value]) => BEGIN[name] !== undefined && value !== BEGIN[name]);
  const query = new URLSearchParams(told).toString();
  return query ? `#/?${query}` : "#/";
}
