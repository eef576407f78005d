// How processes are called, the same everywhere on the page, and what is said of them.

import { clock, words } from "./dom.js";

// Instance -> label: the name, with the slot where there are several of it, and when it ended where another took its place.
export function labels(processes) {
  const found = new Map();
  const places = new Map();
  for (const process of processes) {
    if (!places.has(process.name)) places.set(process.name, new Set());
    places.get(process.name).add(`${process.host}/${process.slot}`);
  }
  const hosts = (process) => new Set(processes.filter((each) => each.name === process.name && each.slot === process.slot).map((each) => each.host)).size;
  for (const process of processes) {
    const isOne = places.get(process.name).size < 2;
    let label = isOne || process.slot === "" ? process.name : `${process.name} ${process.slot}`;
    if (!isOne && hosts(process) > 1) label += ` on ${process.host}`;
    const next = successor(process, processes);
    found.set(process.instance, next && isOver(process) ? `${label} (ended ${clock(process.heard_ms)})` : label);
  }
  return found;
}

const isOver = (process) => ["gone", "stopped"].includes(process.standing);

// Who took the place of a process; null: nobody did.
export function successor(process, processes) {
  const later = processes.filter((each) => each !== process && each.name === process.name && each.slot === process.slot && each.host === process.host && each.began_ms > process.began_ms);
  return later.sort((one, two) => one.began_ms - two.began_ms)[0] || null;
}

// A phase in the few letters beside a row: what is waited for comes first, as that is what differs.
export const short = (phase) => words(phase).replace(/^waiting for /, "for ");

// A notice without the name that stands beside it; the end of a process that was replaced is no fault.
export function noticeText(notice, processes) {
  if (notice.name === "stopped") return ended(notice, processes);
  const begins = `${notice.stage}: `;
  const text = notice.text.startsWith(begins) ? notice.text.slice(begins.length) : notice.text;
  return text.startsWith(notice.name) ? words(notice.name) + text.slice(notice.name.length).replace(/^: why /, ": ") : text;
}

function ended(notice, processes) {
  const code = (notice.details || {}).code || "0";
  const reason = (notice.details || {}).reason || "";
  const self = processes.find((process) => process.instance === notice.instance);
  const next = self ? successor(self, processes) : null;
  const how = code === "0" ? `stopped${reason ? `: ${reason}` : ""}` : `ended with exit code ${code}${reason && reason !== "finished" ? ` (${reason})` : ""}`;
  return next ? `${how}; replaced at ${clock(next.began_ms)}` : how;
}
