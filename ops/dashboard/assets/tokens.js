// The tokens of a completion, coloured by one of their columns, and read one by one.

import { h, number, setText } from "./dom.js";

const NUM_VERSION_COLORS = 6;

export class Tokens {
  constructor(sample, { noTokenizer, advantage, announce }) {
    this.tokens = sample.tokens;
    this.announce = announce;
    this.at = null;
    this.versions = spread(this.tokens.versions || [], this.tokens);
    this.names = [...new Set(this.versions.filter(Boolean))];
    this.flow = h("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens of the completion; arrow keys go from one to the next" });
    this.readout = h("p", { class: "soft small readout" }, "Point at a token, or go to it with the arrow keys.");
    this.scale = h("ul", { class: "legend", "aria-label": "What the colours mean" });
    this.modes = this.kinds(advantage);
    const first = this.modes.find((mode) => mode.has) || this.modes[0];
    this.choice = h("fieldset", {}, h("legend", {}, "Colour by"), this.modes.map((mode) => h("label", { class: mode.has ? null : "off", title: mode.has ? null : mode.why },
      h("input", { type: "radio", name: "color-by", value: mode.name, checked: mode === first, disabled: !mode.has, on: { change: () => this.paint(mode) } }), mode.text)));
    const notes = [...this.modes.filter((mode) => !mode.has && mode.why).map((mode) => `${mode.text}: ${mode.why}.`), noTokenizer ? `Token ids are shown instead of text: ${noTokenizer}.` : "", this.tokens.why || ""].filter(Boolean);
    this.element = h("div", {}, this.choice, this.scale, this.flow, this.readout, notes.length ? h("details", {}, h("summary", {}, "What is not shown, and why"), notes.map((note) => h("p", { class: "note" }, note))) : null);
    this.build();
    this.paint(first);
    this.flow.addEventListener("pointerover", (event) => this.look(Number(event.target.dataset.at ?? NaN), false));
    this.flow.addEventListener("keydown", (event) => this.key(event));
  }

  kinds(advantage) {
    const { tokens } = this;
    const has = (column) => column !== null && column !== undefined;
    return [
      { name: "version", text: "version", has: this.names.length > 0, why: "none is named" },
      { name: "advantage", text: "advantage", has: has(tokens.advantage), why: advantage.why || "this sample was not trained" },
      { name: "trainer_gap", text: "log-probability gap to the trainer", has: has(tokens.trainer_gap), why: tokens.trainer_gap_why || "" },
      { name: "gap", text: "log-probability gap to the reference", has: has(tokens.gap), why: tokens.gap_why || "the sample has no log-probabilities" },
      { name: "logprob", text: "log-probability", has: has(tokens.logprobs), why: "the sample has none" },
      { name: "mask", text: "trained or not", has: has(tokens.mask), why: "" },
    ];
  }

  build() {
    const { tokens } = this;
    const ends = new Map((tokens.turns || []).map((end, index) => [end - tokens.skip, index]));
    const parts = [];
    if (ends.size && tokens.skip === 0) parts.push(this.turn(0));
    this.spans = tokens.ids.map((id, index) => {
      const text = tokens.pieces ? tokens.pieces[index] : String(id);
      const span = h("span", { "data-at": index }, tokens.pieces ? shown(text) : text);
      parts.push(span);
      const turn = ends.get(index + 1);
      if (turn !== undefined && turn + 1 < tokens.turns.length) parts.push(this.turn(turn + 1));
      return span;
    });
    this.flow.replaceChildren(...parts);
  }

  turn(index) {
    const earned = this.tokens.step_rewards[index];
    return h("span", { class: "turn" }, `turn ${index + 1}${earned === undefined ? "" : `, earned ${number(earned)}`}`);
  }

  value(mode, index) {
    const { tokens } = this;
    if (mode === "version") return this.versions[index];
    if (mode === "advantage") return Array.isArray(tokens.advantage) ? tokens.advantage[index] : tokens.advantage;
    return { gap: tokens.gap, trainer_gap: tokens.trainer_gap, logprob: tokens.logprobs, mask: tokens.mask }[mode]?.[index];
  }

  paint(mode) {
    const color = colors(mode.name, this.names);
    this.spans.forEach((span, index) => {
      const isOthers = this.tokens.mask && this.tokens.mask[index] === 0;
      span.setAttribute("class", [this.tokens.pieces ? "" : "id", isOthers ? "env" : "", color(this.value(mode.name, index)), index === this.at ? "now" : ""].filter(Boolean).join(" "));
    });
    const items = scale(mode.name, this.names);
    if ((this.tokens.mask || []).includes(0)) items.push(["env", "of the environment, not trained"]);
    this.scale.replaceChildren(...items.map(([name, text]) => h("li", {}, h("i", { class: `key ${name}` }), text)));
    this.mode = mode;
  }

  look(index, isKey) {
    if (!Number.isInteger(index) || !this.spans[index]) return;
    if (this.at !== null) this.spans[this.at].classList.remove("now");
    this.at = index;
    this.spans[index].classList.add("now");
    const { tokens } = this;
    const said = [`token ${tokens.skip + index}: id ${tokens.ids[index]}`, tokens.pieces ? JSON.stringify(tokens.pieces[index]) : "", tokens.logprobs ? `log-probability ${number(tokens.logprobs[index], 4)}` : "",
      gapOf(tokens.trainer_gap, index, "trainer"), gapOf(tokens.gap, index, "reference"), this.versions[index] ? `version ${this.versions[index]}` : "", this.value("advantage", index) === null || this.value("advantage", index) === undefined ? "" : `advantage ${number(this.value("advantage", index))}`,
      tokens.mask[index] === 0 ? "of the environment, not trained" : ""].filter(Boolean).join(", ");
    setText(this.readout, said);
    if (isKey) { this.announce(said); this.spans[index].scrollIntoView({ block: "nearest" }); }
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!move || !this.spans.length) return;
    event.preventDefault();
    const next = Number.isFinite(move) ? (this.at ?? -1) + move : move < 0 ? 0 : this.spans.length - 1;
    this.look(Math.min(this.spans.length - 1, Math.max(0, next)), true);
  }
}

const gapOf = (gaps, index, name) => (gaps && gaps[index] !== null && gaps[index] !== undefined ? `gap to the ${name} ${number(gaps[index], 3)}` : "");

// Version per token of the part that is shown.
function spread(runs, { skip, ids }) {
  const found = [];
  let at = 0;
  for (const run of runs) {
    for (let index = Math.max(at, skip); index < Math.min(at + run.num_tokens, skip + ids.length); index += 1) found[index - skip] = run.version + (run.verified ? "" : " unverified");
    at += run.num_tokens;
  }
  return found;
}

// White space and control characters as signs, so that every token can be seen.
const shown = (text) => (text === "" ? "·" : text.replaceAll("\n", "⏎\n").replace(/[\u0000-\u0009\u000b-\u001f\u007f]/g, "␣"));

function colors(mode, names) {
  if (mode === "version") return (value) => (value ? `t-v${names.indexOf(value) % NUM_VERSION_COLORS}` : "");
  if (mode === "advantage") return (value) => signed(value, [0.05, 0.5, 1.2]);
  if (mode.endsWith("gap")) return (value) => signed(value, [0.05, 0.3, 1]);
  if (mode === "mask") return (value) => (value === 0 ? "t-v5" : "t-v0");
  return (value) => { const size = value === null || value === undefined ? 0 : [0.1, 0.7, 2, 4].filter((edge) => -value > edge).length; return size ? `t-s${size}` : ""; };
}

function signed(value, edges) {
  if (value === null || value === undefined) return "";
  const size = edges.filter((edge) => Math.abs(value) > edge).length;
  return size ? `t-${value < 0 ? "n" : "p"}${size}` : "";
}

function scale(mode, names) {
  if (mode === "version") return names.slice(0, 24).map((name, index) => [`t-v${index % NUM_VERSION_COLORS}`, `version ${name}`]);
  if (mode === "advantage") return [["t-n3", "below −1.2"], ["t-n2", "below −0.5"], ["t-n1", "below −0.05"], ["t-p1", "above 0.05"], ["t-p2", "above 0.5"], ["t-p3", "above 1.2"]];
  if (mode.endsWith("gap")) return [["t-n3", "sampler less sure by 1 nat"], ["t-n2", "by 0.3"], ["t-n1", "by 0.05"], ["t-p1", "surer by 0.05"], ["t-p2", "by 0.3"], ["t-p3", "by 1 nat"]];
  if (mode === "mask") return [["t-v0", "trained"], ["t-v5", "not trained"]];
  return [["t-s1", "below −0.1"], ["t-s2", "below −0.7"], ["t-s3", "below −2"], ["t-s4", "below −4 nats: a surprise"]];
}
