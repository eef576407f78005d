// A line chart of bounded series as SVG: a line per series, told apart by colour and dash, its last value beside its name.

import { clock, h, number, s, setText } from "./dom.js";

const HEIGHT = 150;
const PAD = { left: 44, right: 8, top: 8, bottom: 20 };
const shared = new EventTarget(); // a look at one chart is a look at all of them

export class LineChart {
  // lines: [{ key, label }], key a name of a series or a function of all series that gives one.
  // more: elements beside the title; head: what is shown in its place.
  constructor({ title, lines, format = number, floor = null, ceiling = null, unit = "", more = null, head = title }) {
    this.lines = lines;
    this.format = format;
    this.floor = floor;
    this.ceiling = ceiling;
    this.svg = s("svg", { role: "img", tabindex: "0", preserveAspectRatio: "none" });
    this.legend = h("ul", { class: "legend" });
    this.title = h("h3", {}, head, unit ? h("span", { class: "soft small" }, ` ${unit}`) : null);
    this.none = h("p", { class: "empty small" }, "Nothing told yet.");
    this.element = h("figure", { class: "card chart" }, h("figcaption", {}, more ? h("div", { class: "row" }, this.title, more) : this.title, this.legend), this.svg, this.none);
    this.name = title;
    this.at = null;
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.svg.addEventListener("pointermove", (event) => this.look(this.timeAt(event.clientX)));
    this.svg.addEventListener("pointerleave", () => this.look(null));
    this.svg.addEventListener("blur", () => this.look(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    shared.addEventListener("look", (event) => { this.at = event.detail; this.draw(); });
  }

  look(at) { shared.dispatchEvent(new CustomEvent("look", { detail: at })); }

  // now: values of this moment by the name of their series, said in the legend while no other moment is looked at.
  update({ series, begins, ends, bound = null, now = {} }) {
    const told = this.lines.map((line, index) => ({ ...line, index: index % 6, now: now[line.key], data: typeof line.key === "function" ? line.key(series) : series[line.key] })).filter((line) => line.data);
    this.series = withoutTwins(told);
    this.begins = begins;
    this.ends = Math.max(ends, begins + 1000);
    this.bound = bound;
    this.draw();
  }

  timeAt(clientX) {
    const box = this.svg.getBoundingClientRect();
    const share = (clientX - box.left - PAD.left) / (box.width - PAD.left - PAD.right);
    return this.begins + Math.min(1, Math.max(0, share)) * (this.ends - this.begins);
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const step = (this.ends - this.begins) / 60;
    this.look(Math.min(this.ends, Math.max(this.begins, (this.at ?? this.ends) + move * step)));
    this.svg.setAttribute("aria-label", this.words());
  }

  valueOf(line) {
    return this.at === null && line.now !== null && line.now !== undefined ? line.now : valueAt(line.data, this.at);
  }

  words() {
    const values = (this.series || []).map((line) => `${line.label} ${this.format(this.valueOf(line))}`);
    return `${this.name}: ${values.join(", ") || "nothing told yet"}${this.at ? `, at ${clock(this.at)}` : ""}`;
  }

  draw() {
    if (!this.series) return;
    const width = this.element.clientWidth - 28;
    const has = this.has = this.series.some((line) => line.data.values.some((value) => value !== null));
    this.svg.toggleAttribute("hidden", !has);
    this.svg.style.display = has ? "" : "none";
    this.none.hidden = has;
    this.label();
    if (!has || width < 60) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const { low, high, at } = this.range();
    const x = (at) => PAD.left + ((at - this.begins) / (this.ends - this.begins)) * (width - PAD.left - PAD.right);
    const y = (value) => HEIGHT - PAD.bottom - ((value - low) / (high - low)) * (HEIGHT - PAD.top - PAD.bottom);
    const parts = [...this.grid(width, { at, x, y })];
    this.series.forEach((line) => parts.push(s("path", { class: `l l${line.index}`, d: path(line.data, { x, y, begins: this.begins, low, high }) })));
    if (this.at !== null) parts.push(s("line", { class: "cursor", x1: x(this.at), x2: x(this.at), y1: PAD.top, y2: HEIGHT - PAD.bottom }));
    this.svg.replaceChildren(...parts);
    if (document.activeElement !== this.svg) this.svg.setAttribute("aria-label", this.words());
  }

  grid(width, { at, x, y }) {
    const parts = [];
    const texts = marks(at, this.format);
    at.forEach((value, index) => {
      parts.push(s("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }));
      parts.push(s("text", { x: PAD.left - 6, y: y(value) + 4, "text-anchor": "end" }, texts[index]));
    });
    parts.push(s("text", { x: PAD.left, y: HEIGHT - 4 }, clock(this.begins)));
    parts.push(s("text", { x: width - PAD.right, y: HEIGHT - 4, "text-anchor": "end" }, clock(this.ends)));
    if (this.bound !== null) parts.push(s("line", { class: "bound", x1: PAD.left, x2: width - PAD.right, y1: y(this.bound), y2: y(this.bound) }));
    if (this.at !== null) parts.push(s("text", { x: Math.min(Math.max(x(this.at), PAD.left + 80), width - 80), y: HEIGHT - 4, "text-anchor": "middle" }, clock(this.at)));
    return parts;
  }

  range() {
    const values = this.series.flatMap((line) => line.data.values.filter((value) => value !== null));
    if (this.bound !== null) values.push(this.bound);
    let low = Math.min(...values);
    let high = Math.max(...values);
    if (this.floor !== null) low = Math.min(low, this.floor);
    if (this.ceiling !== null) high = Math.max(high, this.ceiling);
    if (high - low < 1e-12) { const room = Math.abs(high) * 0.1 || 1; low -= this.floor === null ? room : 0; high += room; }
    if (this.ceiling !== null && high <= this.ceiling) return { low, high: high + (high - low) * 0.04, at: ticks(low, high) };
    return rounded(low, high, { isFloored: this.floor !== null && low >= this.floor });
  }

  label() {
    const items = this.series.map((line) => {
      return h("li", {}, s("svg", { class: "swatch", viewBox: "0 0 18 8", "aria-hidden": "true" }, s("line", { class: `l${line.index}`, x1: 0, x2: 18, y1: 4, y2: 4 })),
        `${line.label} `, h("b", {}, this.format(this.valueOf(line))));
    });
    const text = items.map((item) => item.textContent).join("|");
    if (this.said !== text) { this.said = text; this.legend.replaceChildren(...items); }
  }
}

// Value of the bin a time is in; of the newest one with a value when no time is looked at.
export function valueAt(data, at) {
  if (!data) return null;
  const values = data.values;
  let index = at === null ? values.length - 1 : Math.min(values.length - 1, Math.floor((at - data.began_ms) / data.bin_ms));
  while (index >= 0 && values[index] === null) index -= 1;
  return index >= 0 ? values[index] : null;
}

function path(data, { x, y, begins, low, high }) {
  let text = "";
  data.values.forEach((value, index) => {
    if (value === null) return;
    const at = data.began_ms + (index + 0.5) * data.bin_ms;
    if (at < begins - data.bin_ms) return;
    text += `${text ? "L" : "M"}${x(at).toFixed(1)} ${y(Math.min(high, Math.max(low, value))).toFixed(1)}`;
  });
  return text;
}

// Round numbers between two, at least three where there is room for them.
function ticks(low, high) {
  const step = stepOf(low, high);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-6) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : Number(at.toPrecision(12)));
  return found;
}

// The largest of 1, 2, 5 times a power of ten that goes three times into a range.
function stepOf(low, high) {
  const most = (high - low) / 3;
  const size = 10 ** Math.floor(Math.log10(most));
  return [5, 2, 1].map((each) => each * size).find((each) => each <= most * (1 + 1e-9)) || size;
}

// A range that ends at round numbers, with room above what is highest.
function rounded(low, high, { isFloored }) {
  const step = stepOf(low, high);
  const first = Math.floor(low / step + 1e-6) * step;
  let last = Math.ceil(high / step - 1e-6) * step;
  if (last - high < 0.05 * (last - first)) last += step * 0.4;
  const all = ticks(first, last);
  const at = all.length > 5 ? all.filter((value) => Math.round(value / step) % 2 === 0) : all;
  return { low: isFloored || first > low - step * 0.05 ? first - (isFloored ? 0 : step * 0.1) : first, high: last, at };
}

// Texts of ticks, with as many digits as tell them apart.
function marks(at, format) {
  const texts = at.map((value) => format(value));
  return new Set(texts).size === texts.length ? texts : at.map((value) => number(value, 6));
}

// Lines that are the same all along are one, under both names.
function withoutTwins(lines) {
  const found = [];
  for (const line of lines) {
    const twin = found.find((each) => isSame(each.data.values, line.data.values));
    if (twin) twin.label = `${twin.label} = ${line.label}`;
    else found.push(line);
  }
  return found;
}

function isSame(one, two) {
  let num = 0;
  for (let index = 0; index < Math.max(one.length, two.length); index += 1) {
    const [a, b] = [one[index] ?? null, two[index] ?? null];
    if ((a === null) !== (b === null) || (a !== null && Math.abs(a - b) > 1e-9 * Math.max(1, Math.abs(a)))) return false;
    num += a === null ? 0 : 1;
  }
  return num > 2;
}

// Rows of bars: [{ label, parts: [{ share, kind, title }], text }]; with `named` the parts are named under the bar, too.
export class Bars {
  constructor({ title, empty, isWide = false }) {
    this.rows = h("div", { class: "bars" });
    this.none = h("p", { class: "empty small" }, empty);
    this.note = h("p", { class: "soft small" });
    this.title = h("h3", {}, title);
    this.element = h("figure", { class: `card chart ${isWide ? "wide" : ""}` }, h("figcaption", {}, this.title, this.note), this.rows, this.none);
  }

  update(items, note = "") {
    setText(this.note, note);
    this.none.hidden = items.length > 0;
    const said = JSON.stringify(items);
    if (said === this.said) return;
    this.said = said;
    this.rows.replaceChildren(...items.map((item) => {
      const track = h("span", { class: "track", "aria-hidden": "true" }, item.parts.map((part) => {
        const bar = h("i", { class: part.kind, title: part.title || null });
        bar.style.width = `${Math.min(100, part.share * 100)}%`;
        return bar;
      }));
      const names = item.named ? h("span", { class: "parts" }, item.named.map((part, index) => [index ? h("span", { class: "unseen" }, ", ") : null, h("span", { class: "part" }, h("i", { class: part.kind, "aria-hidden": "true" }), part.title)])) : null;
      return h("p", { class: "bar-row", title: item.title || null }, h("span", { title: item.label }, item.label), track, h("span", { class: "num" }, item.text), item.words ? h("span", { class: "unseen" }, item.words) : null, names);
    }));
  }
}
