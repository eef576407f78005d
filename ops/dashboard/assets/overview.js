// One run: the verdict, the weave, the curves, the tables.

import { Bars, LineChart } from "./chart.js";
import { bytes, clock, day, duration, h, KeyedTable, named, number, percent, prose, sentence, setClass, setProse, setText, version, whole, wordClass, words } from "./dom.js";
import { labels, noticeText } from "./names.js";
import { kindOf, said, Weave } from "./weave.js";
import { glossary, term, terms, whyLost } from "./words.js";

const VERDICTS = ["balanced", "reward", "rollout", "weights", "learner", "prompts", "credit", "nobody", "missing", "scheduler", "starting", "finished", "stopped", "trouble"];
const TITLES = {
  balanced: "Nobody waits much", reward: "A reward is the slow side", rollout: "Generation is the slow side", weights: "Weights come late",
  learner: "The learner is the slow side", prompts: "Prompts run dry", nobody: "Nobody is heard", missing: "A stage is missing",
  scheduler: "The scheduler is silent", starting: "Starting", stopped: "All processes stopped", finished: "The run has ended",
  credit: "The credit is tight", trouble: "The broker cannot be read",
};
const MOST_AGES = 12; // rows
const TRAFFIC = /^bytes_per_s\{traffic=(.+)\}$/;
const WAITS = /^waiting_share\{stage=(.+)\}$/;

export class Overview {
  constructor(run, announce) {
    this.run = run;
    this.announce = announce;
    this.parts = {};
    this.kind = null;
    this.verdict = { box: h("div", { class: "card verdict starting" }), kicker: h("p", { class: "kicker" }), text: h("h1"), advice: h("p", { class: "advice" }), evidence: h("ul"), reading: h("p", { class: "soft small", hidden: true }) };
    this.verdict.box.append(this.verdict.kicker, this.verdict.text, this.verdict.advice, this.verdict.evidence, this.verdict.reading);
    this.figures = h("dl", { class: "figures" });
    this.weave = new Weave(announce);
    this.charts = charts();
    this.ages = new Bars({ title: "Age of what was trained", empty: "Nothing was trained yet." });
    this.shares = new Bars({ title: "How the last minute went", empty: "Nobody was heard yet.", isWide: true });
    this.tables = tables(run);
    this.element = [
      h("section", { "aria-label": "Verdict", id: "verdict" }, this.verdict.box),
      h("section", { "aria-label": "Figures" }, this.figures),
      this.weave.element,
      h("section", { "aria-labelledby": "curves-title" }, h("div", { class: "head" }, h("h2", { id: "curves-title" }, "Curves"), h("p", { class: "soft small" }, "Arrow keys or the pointer read values.")),
        h("div", { class: "charts" }, this.shares.element, this.charts[0].chart.element, this.charts[1].chart.element, this.ages.element, this.charts.slice(2).map((each) => each.chart.element))),
      ...this.tables.sections,
      glossary(),
    ];
    this.late = null;
  }

  // A part of the picture came; what depends on it is drawn once the browser has time.
  take(name, value) {
    if (name === "weave") this.parts.weave = this.whole = unpack(value);
    else if (name === "tail") this.parts.weave = this.whole && value ? join(this.whole, unpack(value), value.since_ms) : this.parts.weave;
    else this.parts[name] = value;
    if (this.late === null) this.late = requestAnimationFrame(() => { this.late = null; this.show(); });
  }

  show() {
    if (!this.parts.head) return;
    const parts = { ...this.parts };
    if (!parts.head.is_live && parts.processes && parts.weave) parts.processes = parts.processes.map((process) => ({ ...process, ...wholeShares(parts.weave[process.instance] || []) }));
    if (parts.verdict) this.showVerdict(parts.verdict, parts.head);
    this.showFigures(parts);
    if (parts.processes && parts.weave && parts.versions) this.weave.update(parts);
    if (parts.series && parts.processes) this.showCurves(parts);
    this.tables.update(parts);
  }

  showVerdict(verdict, head) {
    const kind = wordClass(verdict.kind, VERDICTS);
    setClass(this.verdict.box, `card verdict ${kind}`);
    setText(this.verdict.kicker, kicker(verdict, head));
    setProse(this.verdict.text, sentence(verdict.text));
    setProse(this.verdict.advice, sentence(verdict.advice));
    this.verdict.advice.hidden = !verdict.advice;
    const lines = verdict.evidence || [];
    this.verdict.evidence.hidden = !lines.length;
    const text = lines.join("\n");
    if (this.evidenceSaid !== text) { this.evidenceSaid = text; this.verdict.evidence.replaceChildren(...lines.map((line) => h("li", {}, prose(line)))); }
    this.verdict.reading.hidden = head.share_read >= 1;
    if (head.share_read < 1) this.verdict.reading.replaceChildren(h("progress", { max: "1", value: head.share_read, "aria-label": "Part of the topics that is read" }), ` Reading the topics: ${percent(head.share_read)}. Totals grow until it is done.`);
    if (this.kind !== verdict.kind && head.share_read >= 1) {
      this.kind = verdict.kind;
      this.announce(`${TITLES[verdict.kind] || ""}: ${verdict.text}`);
    }
  }

  showFigures({ head }) {
    const { totals, values = {} } = head;
    const facts = head.facts || {};
    const step = head.last_step || {};
    const known = (value) => value !== null && value !== undefined;
    const mean = head.is_live ? "" : "over the whole run";
    const ages = [step.age_max === undefined ? "" : `oldest ${number(step.age_max)}`, known(facts.max_staleness) ? `bound ${facts.max_staleness}` : ""].filter(Boolean).join(", ");
    const open = known(values.open_groups)
      ? ["groups open", whole(values.open_groups), known(values.credit_groups) ? `of ${whole(values.credit_groups)}` : "", known(values.ready_groups) ? `${whole(values.ready_groups)} ready` : ""]
      : ["groups closed", number(totals.groups_closed), "", ""];
    const items = [
      ["step", whole(totals.step), facts.max_steps ? `of ${whole(facts.max_steps)}` : "", totals.lineage > 1 ? `lineage ${totals.lineage}` : ""],
      ["reward, last step", number(step.reward_mean), "", ""],
      ["mean age, last step", number(step.age_mean), known(step.age_mean) ? (step.age_mean === 1 ? "version" : "versions") : "", ages],
      ["samples trained", number(totals.trained), "", ""],
      ["dropped", number(totals.dropped), "", totals.failed ? `${number(totals.failed)} failed` : ""],
      open,
      ["samples/s trained", number(values.trained_per_s), "", mean],
      ["tokens/s made", number(values.tokens_per_s), "", mean],
    ];
    const text = JSON.stringify(items);
    if (text === this.figuresSaid) return;
    this.figuresSaid = text;
    this.figures.replaceChildren(...items.map(([name, value, small, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, small ? h("small", {}, ` ${small}`) : null), more ? h("dd", { class: "more" }, more) : null)));
  }

  showCurves({ head, series, processes }) {
    const all = Object.values(series);
    const begins = Math.min(head.now_ms - 1000, ...all.map((each) => each.began_ms));
    const bound = head.facts && head.facts.max_staleness;
    for (const { chart, lines, isAge } of this.charts) {
      if (lines) chart.lines = lines(series);
      chart.update({ series, begins, ends: head.now_ms, bound: isAge && bound !== undefined ? bound : null, now: head.is_live ? head.values || {} : {} });
      chart.element.hidden = !chart.has && !["Reward", "Loss"].includes(chart.name);
    }
    const ages = agesOf(head.totals.ages || {});
    const total = ages.reduce((sum, [, count]) => sum + count, 0) || 1;
    const isOver = (age) => bound !== null && bound !== undefined && age > bound;
    this.ages.update(ages.map(([age, count, isRest]) => ({ label: isRest ? `${age} versions or more` : age === 1 ? "1 version" : `${age} versions`, parts: [{ share: count / total, kind: isOver(age) ? "old" : "key work" }], text: percent(count / total), title: `${whole(count)} sample ids` })),
      bound === null || bound === undefined ? "Learner step less birth step, when the batch was cut." : `Learner step less birth step, when the batch was cut; the bound is ${bound}.`);
    const shown = processes.filter((process) => process.standing === "at work" || !head.is_live);
    setText(this.shares.title, head.is_live ? "How the last minute went" : "How the time went");
    this.shares.update(shown.filter((process) => Object.keys(process.shares || {}).length).slice(0, 14).map((process) => shareRow(process, labels(processes))), "Coloured as the weave; the figure at the end is the part spent waiting.");
  }
}

// Age, how many of it, and whether those of every greater age are among them; the greatest ages together, as room is short.
export function agesOf(counts) {
  const ages = Object.entries(counts).map(([age, count]) => [Number(age), count, false]).sort((one, two) => one[0] - two[0]);
  if (ages.length <= MOST_AGES) return ages;
  const rest = ages.slice(MOST_AGES - 1);
  return [...ages.slice(0, MOST_AGES - 1), [rest[0][0], rest.reduce((sum, [, count]) => sum + count, 0), true]];
}

// What is found, since when, and how sure it is.
function kicker(verdict, head) {
  const since = verdict.since_ms && head.is_live ? `, since ${clock(verdict.since_ms)}` : "";
  const sure = verdict.is_provisional ? ", provisional: the learner is hardly past its first step" : "";
  return `${TITLES[verdict.kind] || words(verdict.kind)}${since}${sure}${head.is_live ? "" : `, last heard ${day(head.now_ms)}`}`;
}

// Shares of all the time that a process was in phases.
function wholeShares(spans) {
  const shares = {};
  let total = 0;
  for (const { phase, began_ms: began, ended_ms: ended } of spans) {
    if (ended !== null) { shares[phase] = (shares[phase] || 0) + ended - began; total += ended - began; }
  }
  for (const phase of Object.keys(shares)) shares[phase] /= total || 1;
  return { shares, waits: Object.fromEntries(Object.entries(shares).filter(([phase]) => ["wait", "trouble"].includes(kindOf(phase)))) };
}

const SHADES = 4; // of one colour, so that phases of one kind are told apart

function shareRow(process, called) {
  const nums = {};
  const parts = Object.entries(process.shares).sort((one, two) => two[1] - one[1]).map(([phase, share]) => {
    const kind = kindOf(phase);
    nums[kind] = (nums[kind] ?? -1) + 1;
    return { share, kind: `key ${kind} shade${Math.min(nums[kind], SHADES - 1)}`, title: `${words(phase)} ${percent(share)}` };
  });
  const waits = Object.values(process.waits || {}).reduce((sum, share) => sum + share, 0);
  return { label: called.get(process.instance) || process.name, parts, text: percent(waits), title: parts.map((part) => part.title).join(", "), words: "waiting: ", named: parts.filter((part) => part.share >= 0.005) };
}

// Spans by process, of what the server packs as [number of the phase, begin, end].
function unpack({ phases, rows }) {
  return Object.fromEntries(Object.entries(rows).map(([instance, spans]) => [instance, spans.map(([phase, began, ended]) => ({ phase: phases[phase], began_ms: began, ended_ms: ended }))]));
}

// A timeline with the part after `since` in a newer version.
function join(whole, tail, since) {
  return Object.fromEntries(Object.entries(tail).map(([instance, spans]) => [instance, [...(whole[instance] || []).filter((span) => span.ended_ms !== null && span.ended_ms <= since), ...spans]]));
}

function byLabel(series, pattern) {
  return Object.keys(series).map((name) => [name, pattern.exec(name)]).filter(([, found]) => found).slice(0, 6).map(([key, found]) => ({ key, label: words(found[1]) }));
}

function charts() {
  const line = (key, label) => ({ key, label });
  const chart = (options) => ({ chart: new LineChart({ lines: [], ...options }) });
  return [
    chart({ title: "Reward", lines: [line("reward_mean", "trained"), line("reward_seen_mean", "seen")] }),
    chart({ title: "Loss", lines: [line("loss", "loss")] }),
    { ...chart({ title: "Age at the cut", unit: "versions", head: term("age at the cut", "Age at the cut"), lines: [line("age_mean", "mean"), line("age_max", "oldest")], floor: 0 }), isAge: true },
    { ...chart({ title: "Waiting", unit: "share of time", format: percent, floor: 0, ceiling: 1 }), lines: (series) => byLabel(series, WAITS) },
    chart({ title: "Samples per second", lines: [line("samples_per_s", "made"), line("rewards_per_s", "rewards"), line("trained_per_s", "trained")], floor: 0 }),
    chart({ title: "Tokens per second", lines: [line("tokens_per_s", "made")], floor: 0 }),
    { ...chart({ title: "Network by class", unit: "per second", format: bytes, floor: 0 }), lines: (series) => byLabel(series, TRAFFIC) },
    chart({ title: "Lag", unit: "records", lines: [line("lag_records", "not yet committed")], floor: 0 }),
    chart({ title: "Groups", more: terms("open", "ready", "credit"), lines: [line("open_groups", "open"), line("ready_groups", "ready"), line("credit_groups", "credit")], floor: 0 }),
    chart({ title: "Sampler against trainer", unit: "nats", lines: [line("logprob_mismatch", "mean distance"), line("sampler_kl", "KL")], floor: 0 }),
    chart({ title: "Entropy", unit: "nats", lines: [line("entropy", "entropy")] }),
    chart({ title: "Step time", unit: "s", lines: [line("step_s", "seconds per step")], floor: 0 }),
  ];
}

function tables(run) {
  let bound = null;
  let processList = [];
  let called = new Map();
  const page = (query) => `/run/${encodeURIComponent(run)}/samples?${query}`;
  const drops = new KeyedTable({
    caption: "Sample ids that were not trained, by reason", key: ([reason]) => reason, empty: "Nothing was dropped.",
    columns: [
      { head: "Reason", value: ([reason]) => h("a", { href: page(`reason=${encodeURIComponent(reason)}`) }, words(reason) || "no reason given") },
      { head: "Ids", value: ([, count]) => whole(count), num: true },
      { head: "The last one", value: ([, , last]) => (last ? h("a", { href: groupPage(run, last.group, { member: last.member, attempt: last.attempt }) }, `group ${last.group}, member ${last.member}`) : "–") },
      { head: "Why", value: ([reason, , last]) => prose(whyLost(last ? last.reason : reason, bound)), class: "wide" },
    ],
  });
  const command = (each) => `${each.what}${each.version ? ` ${named(each.version)}` : ""}`;
  const commands = new KeyedTable({
    caption: "What the scheduler decided, newest first", key: (each, index) => `${each.at_ms}/${each.what}/${index}`, empty: "Nothing but versions that were sent out.",
    columns: [
      { head: "When", value: (each) => clock(each.at_ms) },
      { head: "Command", value: command },
      { head: "Why", value: (each) => prose(each.why), class: "wide" },
    ],
  });
  const folded = new KeyedTable({
    caption: "What recurs, each the last one", key: (each) => each.what, empty: "No version was sent out yet.",
    columns: [
      { head: "When", value: (each) => clock(each.at_ms) },
      { head: "Command", value: command },
      { head: "Why", value: (each) => prose(each.why), class: "wide" },
      { head: "Lately", value: (each) => whole(each.num), num: true },
    ],
  });
  const notices = new KeyedTable({
    caption: "What processes found worth saying, newest first", key: (each, index) => `${each.at_ms}/${each.instance}/${each.name}/${index}`, empty: "No notice.",
    columns: [{ head: "When", value: (each) => clock(each.at_ms) }, { head: "Who", value: (each) => called.get(each.instance) || each.stage }, { head: "What", value: (each) => prose(noticeText(each, processList)), class: "wide" }],
  });
  const processes = new KeyedTable({
    caption: "Everybody who was heard; those that ended are grey", key: (process) => process.instance, rowClass: (process) => (process.standing === "at work" ? "" : "soft"),
    columns: [
      { head: "Process", value: (process) => called.get(process.instance) || process.name }, { head: "Now", value: said },
      { head: "Heard", value: (process) => clock(process.heard_ms) }, { head: "Version", value: (process) => version(process.version), num: true },
      { head: "Waits", value: (process) => percent(Object.values(process.waits || {}).reduce((sum, share) => sum + share, 0)), num: true },
      { head: "Host", value: (process) => process.host + (process.domain ? ` (${process.domain})` : "") }, { head: "Instance", value: (process) => process.instance, class: "mono small" },
    ],
  });
  const lag = new KeyedTable({
    caption: "How far each reader is behind", key: (each) => `${each.group}/${each.topic}`, empty: "None is measured: the scheduler has not yet, or the run is over.",
    columns: [
      { head: "Reader", value: (each) => each.group.replace(".", " ") }, { head: "Topic", value: (each) => each.topic }, { head: "Records", value: (each) => number(each.records), num: true },
      { head: "Time", value: (each) => (each.seconds === null ? "–" : duration(each.seconds * 1000)), num: true }, { head: "Steps' worth", value: (each) => number(each.versions, 2), num: true },
      { head: "Grows per s", value: (each) => growth(each.records_per_s), num: true },
    ],
  });
  const afterwards = h("p", { class: "muted", hidden: true });
  const section = (id, title, more, ...content) => h("section", { "aria-labelledby": id }, h("div", { class: "head" }, h("h2", { id }, title), more), content);
  const link = (query, text) => h("a", { class: "button", href: page(query) }, text);
  return {
    sections: [
      section("drops-title", "What was not trained", h("p", { class: "row" }, link("", "All of them"), link("list=groups", "All groups")), h("div", { class: "card" }, drops.element)),
      h("div", { class: "two" }, section("commands-title", "Commands and why", terms("credit", "wave"), h("div", { class: "card" }, commands.element, folded.element)), section("notices-title", "Notices", null, h("div", { class: "card" }, notices.element))),
      section("processes-title", "Processes", terms("lineage", "peer"), h("div", { class: "card" }, processes.element, afterwards)),
      section("lag-title", "Lag", null, h("div", { class: "card" }, lag.element)),
    ],
    update(parts) {
      if (parts.processes) { processList = parts.processes; called = labels(processList); }
      if (parts.head) { setText(afterwards, `Joined after the run's end, no part of its time: ${parts.head.afterwards}.`); afterwards.hidden = !parts.head.afterwards; }
      if (parts.head && parts.head.facts) bound = parts.head.facts.max_staleness;
      if (parts.drops) {
        const last = {};
        for (const each of parts.drops.lost || []) { const word = String(each.reason || "").split(":")[0].trim(); if (!last[word] || last[word].at_ms <= each.at_ms) last[word] = each; }
        drops.update(Object.entries(parts.drops.counts).sort((one, two) => two[1] - one[1]).map(([reason, count]) => [reason, count, last[reason]]));
      }
      if (parts.commands) { commands.update(parts.commands.decided); folded.update(parts.commands.folded); }
      if (parts.notices) notices.update(parts.notices.slice(-12).reverse());
      if (parts.processes) processes.update(parts.processes.slice(0, 64));
      if (parts.lag) lag.update(parts.lag);
    },
  };
}

// Records per second; what is nearly nothing is 0.
function growth(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 0.05 ? "0" : `${value > 0 ? "+" : ""}${number(value, 2)}`;
}

export function groupPage(run, group, { member = null, attempt = null } = {}) {
  const query = new URLSearchParams({ n: group });
  if (member !== null) query.set("member", member);
  if (attempt) query.set("attempt", attempt);
  return `/run/${encodeURIComponent(run)}/group?${query}`;
}
