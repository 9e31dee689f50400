// What is wrong with a row, the worst first: what somebody on call looks for.
import { count, plain, taskOf, units } from "./format.js";
import { RUNNING } from "./states.js";

const SILENT = 4;
const ODD = 1; // seconds beyond twice its usual time from which a run is conspicuous

export const isHeld = (row) => RUNNING.includes(row.state);

// Seconds since the holder's last heartbeat, if that is longer than it should be; else 0.
export const silence = (row, now) => (row.state === "silent" ? now - (row.expires_at - row.ttl) : 0);

// How long the queue is in which the row's message waits, if that is known.
export const depthOf = (row, model) => {
  const queue = model.queueOf(row);
  return queue ? `${count(queue.messages, "message")} in ${plain(queue.queue)}` : "";
};

// Pairs of a rank and a text, the worst first. `model` has what is known of the tasks.
export function troubles(row, model, now) {
  const found = [], silent = silence(row, now);
  if (row.state === "without its lock") found.push([6, plain(row.lost_because || "it lost the lock")]);
  if (row.untaken) found.push([5, `no worker has taken ${count(row.untaken, "task")}`]);
  const queue = model.queueOf(row);
  if (queue && !queue.is_read) found.push([5, `no worker reads ${plain(queue.queue)}`]);
  if (silent) found.push([SILENT, `no heartbeat for ${units(silent)}`]);
  if (isHeld(row) && row.acquired_at !== undefined) {
    const held = now - row.acquired_at, task = taskOf(row);
    const warn = model.about.warn_after?.[task];
    if (warn && held > warn) found.push([3, `longer than ${units(warn)}`]);
    else if (row.usual && held > 2 * row.usual + ODD) found.push([2, `usually ${units(row.usual)}`]);
  }
  return found;
}

// The troubles in one line, without those that the lease tells.
export const told = (row, model, now) => troubles(row, model, now).filter(([rank]) => rank !== SILENT).map(([, text]) => text).join("; ");

export const rankOf = (row, model, now) => troubles(row, model, now)[0]?.[0] ?? 0;
