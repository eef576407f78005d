// Elements and words. What came over the wire only ever becomes a text node, an attribute value or a class we made.

const NS = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(NS, tag), props, children);

export function setText(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

export function setClass(element, name) {
  if (element.getAttribute("class") !== name) element.setAttribute("class", name);
}

// A class from a word of the wire: only what is in `known`.
export const wordClass = (word, known) => (known.includes(word) ? word : "");

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return trim(value / 1e9, digits) + " G";
  if (size >= 1e6) return trim(value / 1e6, digits) + " M";
  if (size >= 1e4) return trim(value / 1e3, digits) + " k";
  if (size >= 1000 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  if (size >= 0.001 || size === 0) return trim(value, digits);
  return value.toExponential(1);
}

function trim(value, digits) {
  const text = value.toPrecision(digits);
  return text.includes("e") ? String(Number(text)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
export const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`);

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (value >= size) return `${trim(value / size, 3)} ${unit}`;
  return `${Math.round(value)} B`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const size = Math.max(0, ms) / 1000;
  if (size < 1) return `${Math.round(size * 1000)} ms`;
  if (size < 10) return `${size.toFixed(1)} s`;
  if (size < 120) return `${Math.round(size)} s`;
  if (size < 7200) return `${Math.round(size / 60)} min`;
  return size < 172800 ? `${Math.round(size / 3600)} h` : `${Math.round(size / 86400)} d`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
export const clock = (ms) => (ms ? CLOCK.format(ms) : "–");
export const day = (ms) => (ms ? DAY.format(ms) : "–");
export const version = (value) => (value ? `v${value.lineage}.${value.step}` : "–");
export const named = (text) => (text ? `v${text}` : "–"); // a version that came as text

// Text in which names are between backticks, as nodes: those are code.
export const prose = (text) => h("span", {}, String(text).split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part)));
export function setProse(element, text) {
  if (element.dataset.said === text) return;
  element.dataset.said = text;
  element.replaceChildren(...prose(text).childNodes);
}
export const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");
export const words = (name) => String(name).replaceAll("_", " ");

// A table whose rows stay the same elements while their key is there, so that focus and selection stay, too.
export class KeyedTable {
  constructor({ caption, columns, key, empty, rowClass }) {
    this.columns = columns;
    this.key = key;
    this.rowClass = rowClass;
    this.rows = new Map();
    this.body = h("tbody");
    this.none = h("p", { class: "empty" }, empty || "Nothing yet.");
    const heads = columns.map((column) => h("th", { scope: "col", class: column.num ? "num" : null }, column.head));
    this.table = h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), this.body);
    this.element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, this.table, this.none);
  }

  update(items) {
    const seen = new Set();
    items.forEach((item, index) => {
      const key = this.key(item, index);
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = h("tr", {}, this.columns.map((column, at) => h(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, class: column.class || (column.num ? "num" : null) })));
        this.rows.set(key, row);
      }
      this.columns.forEach((column, at) => this.cell(row.children[at], column.value(item)));
      if (this.rowClass) setClass(row, this.rowClass(item));
      if (this.body.children[index] !== row) this.body.insertBefore(row, this.body.children[index] || null);
    });
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    this.none.hidden = items.length > 0;
    this.table.hidden = items.length === 0;
  }

  cell(element, value) {
    if (!(value instanceof Node)) return setText(element, value === null || value === undefined ? "–" : value);
    const old = element.firstChild;
    if (old && old.isEqualNode && old.isEqualNode(value) && old.dataset && !old.dataset.fresh) return undefined;
    return element.replaceChildren(value);
  }
}
