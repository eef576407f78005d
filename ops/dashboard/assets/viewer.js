// One group: its prompt, its members side by side, and one of its samples token by token.

import { day, duration, h, KeyedTable, number, words } from "./dom.js";
import { groupPage } from "./overview.js";
import { Tokens } from "./tokens.js";

const RESULTS = ["trained", "dropped", "failed"];

export function groupView(run, query, announce) {
  const group = query.get("n");
  const holder = h("section", { "aria-label": "The group", "aria-busy": "true" }, h("p", { class: "soft", role: "status" }, "Looking for its records …"));
  load(run, query, { holder, announce });
  return [h("section", {}, h("form", { class: "row", on: { submit: (event) => jump(event, run) } }, h("label", {}, "Group number ", h("input", { name: "n", inputmode: "numeric", pattern: "[0-9]{1,15}", required: true, value: group, size: "10" })), h("button", { type: "submit" }, "Show"))), holder];
}

function jump(event, run) {
  event.preventDefault();
  document.dispatchEvent(new CustomEvent("go", { detail: groupPage(run, new FormData(event.target).get("n")) }));
}

async function load(run, query, { holder, announce }) {
  const ask = new URLSearchParams({ group: query.get("n") ?? "" });
  for (const name of ["member", "attempt", "skip"]) if (query.get(name)) ask.set(name, query.get(name));
  let found;
  try {
    const answer = await fetch(`/api/run/${encodeURIComponent(run)}/group?${ask}`);
    found = await answer.json();
    if (!answer.ok) throw new Error(`${found.message}. ${found.hint}`);
  } catch (error) {
    holder.replaceChildren(h("p", { class: "note", role: "alert" }, `It cannot be shown: ${error.message}`));
    return;
  }
  holder.setAttribute("aria-busy", "false");
  // The ledger may not be read far enough yet: look again until its outcome is there, or all is read.
  if (found.share_read < 1 && !found.is_full && !found.view.outcomes.length) setTimeout(() => { if (holder.isConnected) load(run, query, { holder, announce }); }, 2000);
  const view = found.view;
  const parts = [head(view), ...view.notes.map((note) => h("p", { class: "note" }, note)), promptCard(view.prompt), ...view.attempts.map((attempt) => members(run, view, { attempt, chosen: found.sample }))];
  if (view.missing.length) parts.push(missing(view.missing));
  if (!view.attempts.length) parts.push(h("p", { class: "note" }, "No sample of this group was found."));
  if (query.get("member") !== null) parts.push(...sampleParts(run, query, { found, announce }));
  holder.replaceChildren(...parts);
  holder.style.display = "grid";
  holder.style.gap = "16px";
  holder.style.gridTemplateColumns = "minmax(0, 1fr)";
}

function head(view) {
  const outcomes = view.outcomes.map((each) => h("li", {}, h("span", { class: `chip ${RESULTS.includes(each.result) ? each.result : ""}` }, each.result),
    ` by step ${each.step} of lineage ${each.lineage}${each.reason ? `: ${each.reason}` : ""}, ${day(each.closed_unix_ms)} `, h("code", {}, each.place), each.is_void ? " (void: of a branch that was abandoned)" : ""));
  return h("div", {}, h("h1", {}, `Group ${view.group}`), h("p", { class: "soft small" }, `partition ${view.partition}`),
    outcomes.length ? h("ul", { class: "legend", "aria-label": "Outcomes" }, outcomes) : h("p", { class: "soft" }, "Open: it has no outcome yet, or its outcome is not read yet."));
}

function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function promptCard(prompt) {
  if (!prompt) return h("p", { class: "note" }, "Its prompt was not found.");
  const text = prompt.messages ? prompt.messages.flatMap(([role, content]) => [h("h3", {}, role), h("pre", {}, content)]) : [h("pre", {}, prompt.text ?? `${prompt.num_token_ids} token ids`)];
  return h("div", { class: "card texts" }, h("div", {}, h("h2", {}, "Prompt"), text),
    facts([["answer", prompt.answer], ["source", `${prompt.source}, item ${prompt.source_index} of epoch ${prompt.epoch}`], ["members", prompt.group_size], ["written", day(prompt.created_unix_ms)], ["place", prompt.place], ...Object.entries(prompt.metadata)]));
}

function members(run, view, { attempt, chosen }) {
  const names = [...new Set(attempt.members.flatMap((member) => member.rewards.map((reward) => JSON.stringify([reward.name, reward.is_shadow]))))].sort().map((each) => JSON.parse(each));
  const isChosen = (member) => chosen && chosen.member === member.member && chosen.attempt === attempt.attempt;
  const table = new KeyedTable({
    caption: `Attempt ${attempt.attempt} by ${attempt.producer}${attempt.won ? ", the one that counts" : ""}`, key: (member) => member.member,
    rowClass: (member) => (isChosen(member) ? "chosen" : ""),
    columns: [
      { head: "Member", value: (member) => h("a", { href: groupPage(run, view.group, { member: member.member, attempt: attempt.attempt }), "aria-current": isChosen(member) ? "true" : null }, `member ${member.member}`) },
      { head: "Outcome", value: (member) => outcomeOf(member) },
      ...names.map(([name, isShadow]) => ({ head: isShadow ? `${name} (shadow)` : name, num: true, value: (member) => rewardOf(member, name, isShadow) })),
      { head: "Reward", num: true, value: (member) => (member.outcome ? number(member.outcome.total, 4) : "–") },
      { head: "Advantage", num: true, value: (member) => number(member.advantage, 3) },
      { head: "Age", num: true, value: (member) => (member.outcome && member.outcome.age !== null ? member.outcome.age : "–") },
      { head: "Versions", value: (member) => member.versions.join(", ") || "–" },
      { head: "Tokens", num: true, value: (member) => `${member.num_tokens}${member.num_turns ? ` in ${member.num_turns} turns` : ""}` },
      { head: "Ended", value: (member) => (member.failure ? "failed" : `${member.finish_reason}, ${duration(member.took_ms)}`) },
      { head: "Completion", class: "excerpt", value: (member) => member.failure ?? member.text },
    ],
  });
  table.update(attempt.members);
  const why = attempt.won && view.advantage.why ? h("p", { class: "note" }, `No advantages: ${view.advantage.why}.`) : null;
  return h("div", { class: "card" }, table.element, why);
}

function outcomeOf(member) {
  if (!member.outcome) return "–";
  const { result, reason } = member.outcome;
  return h("span", {}, h("span", { class: `chip ${RESULTS.includes(result) ? result : ""}` }, result), reason ? ` ${reason}` : "");
}

function rewardOf(member, name, isShadow) {
  const found = member.rewards.filter((reward) => reward.name === name && reward.is_shadow === isShadow);
  if (!found.length) return "–";
  const last = found[found.length - 1];
  const text = last.value === null ? `failed: ${last.failure}` : number(last.value, 4);
  return h("span", { title: `weight ${last.weight}, plug-in ${last.plugin_version}, took ${duration(last.took_ms)}, ${last.place}` }, text, found.length > 1 ? ` (${found.length} scores)` : "");
}

function missing(items) {
  const table = new KeyedTable({
    caption: "Members of which no sample was found", key: (each) => each.member,
    columns: [{ head: "Member", value: (each) => `member ${each.member}` }, { head: "Result", value: (each) => each.result }, { head: "Reason", value: (each) => each.reason, class: "wide" }],
  });
  table.update(items);
  return h("div", { class: "card" }, table.element);
}

function sampleParts(run, query, { found, announce }) {
  const sample = found.sample;
  if (!sample) return [h("p", { class: "note", role: "alert" }, `No sample of member ${query.get("member")} was found; the outcome says why it is not there.`)];
  const tokens = new Tokens(sample, { noTokenizer: found.no_tokenizer, advantage: found.view.advantage, announce });
  const page = (skip) => `${groupPage(run, found.view.group, { member: sample.member, attempt: sample.attempt })}&skip=${skip}`;
  const shown = sample.tokens.skip + sample.tokens.ids.length;
  const more = shown < sample.tokens.num_tokens || sample.tokens.skip ? h("p", { class: "row" }, h("span", { class: "soft small" }, `tokens ${sample.tokens.skip} to ${shown} of ${sample.tokens.num_tokens}`), shown < sample.tokens.num_tokens ? h("a", { class: "button", href: page(shown) }, "Further tokens") : null, sample.tokens.skip ? h("a", { class: "button", href: page(0) }, "From the first") : null) : null;
  return [
    h("div", { class: "card", id: "sample" }, h("h2", {}, `Member ${sample.member}`), tokens.element, more),
    h("div", { class: "card texts" },
      h("div", {}, h("h3", {}, "Prompt as the engine saw it"), h("pre", {}, sample.prompt_text)),
      h("div", {}, h("h3", {}, "Completion"), h("pre", {}, sample.text)),
      facts([["answer", sample.answer], ["sampling", Object.entries(sample.sampling).filter(([, value]) => String(value)).map(([name, value]) => `${words(name)} ${value}`).join(", ")], ["seed", sample.seed], ["log-probabilities", sample.logprobs_kind], ["place", sample.place], ["environment", sample.environment], ...Object.entries(sample.environment_facts), ...Object.entries(sample.metadata)])),
  ];
}
