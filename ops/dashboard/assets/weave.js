// The run as a cloth: a row per process, its phases as spans, versions and samples as threads across.

import { bytes, clock, duration, h, setText, setClass, version, words, KeyedTable, percent } from "./dom.js";
import { labels, short } from "./names.js";
import { drawThreads, sampleThreads, versionThreads } from "./threads.js";

const ROW = 30;
const BAND = 16;
const TOP = 6;
const AXIS = 24;
const MOST_ROWS = 48;
const KINDS = [
  ["work", "works"], ["wait", "waits"], ["weights", "moves weights"], ["keep", "checkpoints"], ["trouble", "in trouble"], ["rest", "other"],
];
const OF_PHASE = {
  swapping: "weights", staging_weights: "weights", publishing: "weights", fetching: "weights", checkpointing: "keep",
  breaker_open: "trouble", finished: "rest", watching: "rest", serving: "rest", supervising: "rest", starting: "rest",
};
const SIZES = [[30e3, "30 s"], [120e3, "2 min"], [600e3, "10 min"], [0, "All"]];

export const kindOf = (phase) => OF_PHASE[phase] || (phase.startsWith("waiting") || phase.startsWith("parked") ? "wait" : "work");

export class Weave {
  constructor(announce) {
    this.announce = announce;
    this.data = null;
    this.called = new Map(); // instance -> label
    this.size = null; // of the window in ms; 0: all; null: not chosen yet
    this.end = null; // of the window; null: now
    this.cursor = null;
    this.colors = null;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline of the run", "aria-describedby": "weave-help" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.names = h("ol", { "aria-label": "Processes and what they do now" });
    this.buttons = SIZES.map(([size, name]) => h("button", { type: "button", "aria-pressed": "false", on: { click: () => this.choose(size) } }, name));
    this.back = h("button", { type: "button", hidden: true, on: { click: () => this.goTo(null) } }, "Back to now");
    this.threads = { versions: true, samples: true };
    this.thinned = h("li", { hidden: true });
    const toggle = (key, text) => h("button", { type: "button", "aria-pressed": "true", on: { click: (event) => this.toggle(key, event.target) } }, text);
    this.table = new KeyedTable({
      caption: "What each process does, and how it spent its time lately",
      key: (process) => process.instance,
      columns: [
        { head: "Process", value: (process) => this.called.get(process.instance) || process.name },
        { head: "Instance", value: (process) => process.instance, class: "mono small" },
        { head: "Now", value: (process) => said(process) },
        { head: "Since", value: (process) => clock(process.phase_since_ms) },
        { head: "Version", value: (process) => version(process.version), num: true },
        { head: "Shares of its time", value: (process) => shares(process), class: "wide" },
      ],
    });
    this.wayTable = new KeyedTable({
      caption: "The last versions: from the optimizer to the engines",
      key: (each) => version(each.version),
      columns: [
        { head: "Version", value: (each) => version(each.version) },
        { head: "Staged", value: (each) => clock(each.staged_ms) },
        { head: "Published", value: (each) => clock(each.published_ms), },
        { head: "Size", value: (each) => (each.num_bytes ? `${bytes(each.num_bytes)} ${each.encoding}` : "–"), num: true },
        { head: "Served by", value: (each) => arrivals(each, this.called), class: "wide" },
      ],
      empty: "No version was published yet.",
    });
    this.element = h("section", { "aria-labelledby": "weave-title", id: "weave" },
      h("div", { class: "head" }, h("h2", { id: "weave-title" }, "The weave"),
        h("div", { class: "row" },
          h("div", { class: "group", role: "group", "aria-label": "Time that is shown" }, this.buttons), this.back,
          h("div", { class: "group", role: "group", "aria-label": "Threads that are shown" }, toggle("versions", "Weights"), toggle("samples", "Samples")))),
      h("div", { class: "card weave" },
        h("p", { class: "unseen", id: "weave-help" }, "Arrow keys go from span to span and from row to row; with Shift, left and right move the window. The table below says the same in words."),
        h("div", { class: "cloth" }, this.names, h("div", { class: "sheet" }, this.canvas, this.tip)),
        h("ul", { class: "legend", "aria-label": "Colours of the timeline" },
          KINDS.map(([kind, text]) => h("li", {}, h("i", { class: `key ${kind}` }), text)),
          h("li", {}, h("i", { class: "key thread" }), "weights go to engines"), h("li", {}, h("i", { class: "key sample" }), "samples come back"), this.thinned),
        h("details", {}, h("summary", {}, "The timeline in words"), this.table.element, this.wayTable.element)));
    this.listen();
  }

  listen() {
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolor());
    document.addEventListener("themechange", () => this.recolor());
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("pointerdown", (event) => { this.drag = { x: event.clientX, end: this.view().ends }; this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointerup", () => { this.drag = null; });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => { this.cursor = null; this.tip.hidden = true; this.draw(); });
  }

  update(data) {
    this.data = data;
    this.called = labels(data.processes);
    if (this.size === null && data.head.share_read >= 1) this.size = data.head.is_live ? 120e3 : 0;
    const all = data.processes.filter((process) => this.isShown(process));
    this.rows = all.slice(0, MOST_ROWS).map((process, index) => ({ process, y: TOP + index * ROW + (ROW - BAND) / 2, height: BAND }));
    this.label();
    this.table.update(all);
    this.wayTable.update(data.versions.slice(-12).reverse());
    this.draw();
  }

  isShown(process) {
    const { begins, ends } = this.view();
    return process.began_ms <= ends && (process.standing === "at work" || process.standing === "not heard" || process.heard_ms >= begins);
  }

  label() {
    const items = this.rows.map(({ process }) => {
      const old = [...this.names.children].find((each) => each.dataset.key === process.instance);
      const item = old || h("li", { "data-key": process.instance }, h("b"), h("span", { "aria-hidden": "true" }), h("i", { class: "unseen" }));
      const label = this.called.get(process.instance);
      setText(item.children[0], label);
      setText(item.children[1], label.includes("(ended") ? "" : short(said(process)));
      setText(item.children[2], `: ${said(process)}`);
      item.title = `${label}: ${said(process)}\n${process.instance}`;
      setClass(item, process.standing === "at work" ? "" : "quiet");
      return item;
    });
    const left = this.data.processes.length - items.length;
    if (left > 0 && this.rows.length === MOST_ROWS) items.push(h("li", { class: "quiet" }, h("b", {}, `and ${left} more in the table`)));
    if (items.some((item, index) => this.names.children[index] !== item) || this.names.children.length !== items.length) this.names.replaceChildren(...items);
    this.buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(SIZES[index][0] === (this.size ?? 120e3))));
    this.back.hidden = this.end === null;
  }

  view() {
    const now = this.data ? this.data.head.now_ms : Date.now();
    const first = Math.min(now - 1000, ...(this.data ? this.data.processes.map((process) => process.began_ms) : [now]));
    const size = this.size === 0 ? now - first : Math.min(this.size || 120e3, Math.max(10e3, now - first));
    const ends = this.end ?? now;
    return { begins: ends - size, ends, now, first, size };
  }

  choose(size) { this.size = size; this.end = size === 0 ? null : this.end; this.update(this.data); }
  goTo(end) { const view = this.view(); this.end = end === null || end >= view.now ? null : Math.max(end, view.first + view.size); this.update(this.data); }
  toggle(key, button) { this.threads[key] = !this.threads[key]; button.setAttribute("aria-pressed", String(this.threads[key])); this.draw(); }
  recolor() { this.colors = null; this.draw(); }

  palette() {
    if (this.colors) return this.colors;
    const probe = h("i");
    this.element.append(probe);
    const read = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
    this.colors = Object.fromEntries(["work", "wait", "wait-ground", "weights", "keep", "trouble", "rest", "line", "soft", "ink", "card", "thread", "sample", "focus"].map((name) => [name, read(name)]));
    probe.remove();
    const tile = h("canvas", { width: 8, height: 8 });
    const pen = tile.getContext("2d");
    pen.fillStyle = this.colors["wait-ground"];
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = this.colors.wait;
    pen.lineWidth = 2;
    for (const shift of [-8, 0, 8]) { pen.beginPath(); pen.moveTo(shift - 1, 9); pen.lineTo(shift + 9, -1); pen.stroke(); }
    this.colors.hatch = tile;
    return this.colors;
  }

  draw() {
    if (!this.data || !this.rows) return;
    const width = this.canvas.parentElement.clientWidth;
    const height = TOP + this.names.children.length * ROW + AXIS;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const colors = this.palette();
    const view = this.view();
    const x = (at) => ((at - view.begins) / (view.ends - view.begins)) * width;
    this.axis(pen, { x, view, width, height, colors });
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const hatch = pen.createPattern(colors.hatch, "repeat");
    for (const row of this.rows) drawRow(pen, row, { spans: this.data.weave[row.process.instance] || [], x, view, width, colors, hatch });
    const seen = { x, begins: view.begins, ends: view.ends };
    let least = 1;
    if (this.threads.samples) least = drawThreads(pen, sampleThreads(this.rows, this.data.weave), { ...seen, color: colors.sample, dotted: true });
    if (this.threads.versions) least = Math.max(least, drawThreads(pen, versionThreads(this.rows, this.data.versions), { ...seen, color: colors.thread, dotted: false }));
    this.thinned.hidden = least < 1.5;
    setText(this.thinned, `one thread in about ${Math.round(least)} is drawn${this.size === SIZES[0][0] ? "" : "; a shorter time shows more"}`);
    if (this.cursor) this.mark(pen, { x, colors, view });
  }

  axis(pen, { x, view, width, height, colors }) {
    const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find((each) => (each * 1000 * width) / view.size > 92) || 86400;
    pen.strokeStyle = colors.line;
    pen.fillStyle = colors.soft;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "alphabetic";
    pen.lineWidth = 1;
    for (let at = Math.ceil(view.begins / (step * 1000)) * step * 1000; at <= view.ends; at += step * 1000) {
      const place = Math.round(x(at)) + 0.5;
      pen.beginPath();
      pen.moveTo(place, 0);
      pen.lineTo(place, height - AXIS + 4);
      pen.stroke();
      pen.textAlign = place < 30 ? "left" : place > width - 30 ? "right" : "center";
      pen.fillText(clock(at), Math.min(Math.max(place, 2), width - 2), height - 7);
    }
    pen.textAlign = "left";
  }

  mark(pen, { x, colors, view }) {
    const row = this.rows[this.cursor.row];
    const span = row && this.spanAt(row, this.cursor.at);
    if (!row) return;
    pen.strokeStyle = colors.focus;
    pen.lineWidth = 2;
    const left = x(span ? span.began_ms : this.cursor.at);
    const right = x(span ? span.ended_ms ?? view.now : this.cursor.at);
    pen.strokeRect(left - 1, row.y - 3, Math.max(3, right - left + 2), row.height + 6);
  }

  spanAt(row, at) {
    const spans = this.data.weave[row.process.instance] || [];
    return spans.find((span) => span.began_ms <= at && (span.ended_ms ?? this.data.head.now_ms) >= at);
  }

  tell(row, at) {
    const span = this.spanAt(row, at);
    const text = span ? `${words(span.phase)}, ${duration((span.ended_ms ?? this.data.head.now_ms) - span.began_ms)} from ${clock(span.began_ms)}` : `nothing known at ${clock(at)}`;
    const label = this.called.get(row.process.instance);
    setText(this.tip, `${label}: ${text}`);
    this.tip.hidden = false;
    const width = this.canvas.parentElement.clientWidth;
    const view = this.view();
    const place = ((at - view.begins) / view.size) * width;
    this.tip.style.left = `${Math.min(Math.max(0, place + 10), Math.max(0, width - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${row.y + row.height + 6}px`;
    return `${label}: ${text}`;
  }

  point(event) {
    if (!this.rows || !this.data) return;
    const box = this.canvas.getBoundingClientRect();
    const view = this.view();
    if (this.drag) return this.goTo(this.drag.end - ((event.clientX - this.drag.x) / box.width) * view.size);
    const row = this.rows[Math.floor((event.clientY - box.top - TOP) / ROW)];
    if (!row) { this.tip.hidden = true; return undefined; }
    return this.tell(row, view.begins + ((event.clientX - box.left) / box.width) * view.size);
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Escape") { this.cursor = null; this.tip.hidden = true; return this.draw(); }
    const move = moves[event.key];
    if (!move || !this.rows || !this.rows.length) return undefined;
    event.preventDefault();
    const view = this.view();
    if (event.shiftKey && move[0]) return this.goTo(view.ends + (move[0] * view.size) / 4);
    if (!this.cursor) this.cursor = { row: 0, at: view.ends - 1 };
    else this.step(move, view);
    this.draw();
    return this.announce(this.tell(this.rows[this.cursor.row], this.cursor.at));
  }

  step([along, across], view) {
    this.cursor.row = Math.min(Math.max(0, this.cursor.row + across), this.rows.length - 1);
    if (!along) return;
    const spans = this.data.weave[this.rows[this.cursor.row].process.instance] || [];
    const seen = spans.filter((span) => span.began_ms < view.ends && (span.ended_ms ?? view.now) > view.begins);
    const middle = (span) => (Math.max(span.began_ms, view.begins) + Math.min(span.ended_ms ?? view.now, view.ends)) / 2;
    const next = along > 0 ? seen.find((span) => span.began_ms > this.cursor.at) : seen.filter((span) => (span.ended_ms ?? view.now) < this.cursor.at).pop();
    if (next) this.cursor.at = middle(next);
  }
}

function drawRow(pen, row, { spans, x, view, width, colors, hatch }) {
  for (const { left, right, kind, phase } of pieces(spans, { x, view, width })) {
    pen.fillStyle = kind === "wait" ? hatch : colors[kind];
    pen.fillRect(left, row.y, right - left - (right - left > 4 ? 0.5 : 0), row.height);
    name(pen, phase, { left, right, row, kind, colors });
  }
}

// What is painted of a row. Of many spans in one pixel the kind that took longest is shown; then neighbours of one kind are
// one piece when they are too narrow to stand apart, also over a pixel of another kind between two that are wider.
function pieces(spans, seen) {
  const found = [];
  for (const piece of columns(spans, seen)) {
    const [before, last] = [found[found.length - 2], found[found.length - 1]];
    const size = piece.right - piece.left;
    if (last && isNear(last, piece) && (last.tail < 12 || size < 12 || last.phases[piece.phase])) extend(last, piece);
    else if (before && last.right - last.left <= leastOf(last, piece) && piece.left - last.right < 1 && isNear(before, piece, 3) && size > 1 && before.tail > 1) {
      found.pop();
      extend(before, piece);
    } else found.push({ ...piece, tail: size, phases: { [piece.phase]: size } });
  }
  for (const piece of found) piece.phase = longest(piece.phases);
  return found;
}

// Weights and checkpoints have threads and bars of their own: a little more of them may lie under the work around them.
const leastOf = (last, piece) => (["weights", "keep"].includes(last.kind) && piece.kind === "work" ? 2 : 1);
const longest = (times) => Object.entries(times).reduce((one, two) => (two[1] > one[1] ? two : one))[0];
const isNear = (one, two, most = 1) => one.kind === two.kind && two.left - one.right < most;

function extend(piece, next) {
  piece.right = next.right;
  piece.tail = next.right - next.left;
  piece.phases[next.phase] = (piece.phases[next.phase] || 0) + piece.tail;
}

// Spans as they lie, and of those below a pixel a column.
function columns(spans, { x, view, width }) {
  const found = [];
  let pixel = -1;
  let times = {};
  const flush = () => {
    if (Object.keys(times).length) {
      const kinds = {};
      for (const [phase, time] of Object.entries(times)) kinds[kindOf(phase)] = (kinds[kindOf(phase)] || 0) + time;
      const kind = longest(kinds);
      found.push({ left: pixel, right: pixel + 1, kind, phase: longest(Object.fromEntries(Object.entries(times).filter(([phase]) => kindOf(phase) === kind))) });
    }
    times = {};
  };
  for (const span of spans) {
    const ended = span.ended_ms ?? view.now;
    if (ended < view.begins || span.began_ms > view.ends) continue;
    const left = Math.max(0, x(span.began_ms));
    const right = Math.min(width, x(ended));
    if (right - left < 1) {
      if (Math.floor(left) !== pixel) { flush(); pixel = Math.floor(left); }
      times[span.phase] = (times[span.phase] || 0) + right - left;
    } else {
      flush();
      found.push({ left, right, kind: kindOf(span.phase), phase: span.phase });
    }
  }
  flush();
  return found;
}

function name(pen, phase, { left, right, row, kind, colors }) {
  const text = words(phase);
  if (right - left < 46) return;
  const size = pen.measureText(text).width;
  if (size > right - left - 10) return;
  if (kind === "wait") { pen.fillStyle = colors["wait-ground"]; pen.fillRect(left + 3, row.y + 2, size + 6, row.height - 4); }
  pen.fillStyle = kind === "wait" || kind === "rest" ? colors.ink : colors.card;
  pen.fillText(text, left + 6, row.y + row.height / 2 + 0.5);
}

export function said(process) {
  return process.standing === "at work" ? words(process.phase || "starting") : process.standing;
}

function shares(process) {
  const found = Object.entries(process.shares || {}).sort((one, two) => two[1] - one[1]).filter(([, share]) => share >= 0.005);
  return found.map(([phase, share]) => `${words(phase)} ${percent(share)}`).join(", ") || "–";
}

function arrivals(each, called) {
  const from = each.staged_ms ?? each.published_ms;
  return Object.entries(each.served_ms || {}).map(([instance, at]) => `${called.get(instance) || instance} after ${duration(at - from)}`).join(", ") || "nobody yet";
}
