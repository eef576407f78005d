// Ids that were not trained, by reason, and all groups: lists that lead to the samples.

import { day, h, KeyedTable, named, number, percent, whole, words } from "./dom.js";
import { groupPage } from "./overview.js";
import { MEANS } from "./words.js";

const PAGE = 50;
const AGAIN_MS = 1500;
export function samplesPage(run, query) {
  const isGroups = query.get("list") === "groups";
  const isApart = query.get("list") === "apart";
  const reason = query.get("reason");
  const skip = Number(query.get("skip")) || 0;
  const here = (changes) => { const next = new URLSearchParams(query); for (const [name, value] of Object.entries(changes)) { if (value === null) next.delete(name); else next.set(name, value); } return `/run/${encodeURIComponent(run)}/samples?${next}`; };
  const note = h("p", { class: "soft small", role: "status" }, "Reading the ledger …");
  const pager = h("nav", { class: "row", "aria-label": "Pages of the list" });
  const counts = countsTable(here, reason);
  const list = isGroups ? groupsTable(run) : isApart ? apartTable(run) : idsTable(run);
  const title = isApart ? "Furthest from the trainer" : isGroups ? "Groups, newest first" : reason ? `Dropped: ${words(reason)}` : "What was not trained";

  async function load() {
    try {
      const ask = new URLSearchParams({ skip, limit: PAGE });
      if (reason && !isGroups && !isApart) ask.set("reason", reason);
      if (query.get("result")) ask.set("result", query.get("result"));
      const answer = await fetch(`/api/run/${encodeURIComponent(run)}/${isGroups ? "outcomes" : isApart ? "apart" : "lost"}?${ask}`);
      const found = await answer.json();
      if (!answer.ok) { note.textContent = `${found.message}. ${found.hint}`; return; }
      list.update(found.rows);
      if (found.counts) counts.update(Object.entries(found.counts));
      note.textContent = `${whole(found.num_all)} in all${found.share_read < 1 && !found.is_full ? `, ${percent(found.share_read)} of the ledger is read${isApart ? "" : ", newest first"}` : ""}${found.is_full ? "; older ones are left out, since memory is bounded" : ""}`;
      pages(pager, { skip, num: found.rows.length, all: found.num_all, here, ways: isApart ? ["Larger", "Smaller"] : ["Newer", "Older"] });
      if (found.share_read < 1 && !found.is_full && list.element.isConnected) setTimeout(load, AGAIN_MS);
    } catch {
      note.textContent = "Connection lost; trying again.";
      if (list.element.isConnected) setTimeout(load, AGAIN_MS);
    }
  }

  setTimeout(load, 0);
  const lists = [[null, "Ids that were not trained"], ["groups", "All groups"], ["apart", "Furthest from the trainer"]].filter(([name]) => name !== (isGroups ? "groups" : isApart ? "apart" : null));
  const other = h("nav", { class: "row", "aria-label": "Other lists" }, lists.map(([name, text]) => h("a", { class: "button", href: here({ list: name, skip: null, result: null, reason: null }) }, text)));
  const results = isGroups ? h("nav", { class: "row", "aria-label": "Which groups" }, ["all", "trained", "dropped", "failed"].map((word) => h("a", { class: "button", href: here({ result: word === "all" ? null : word, skip: null }), "aria-current": (query.get("result") || "all") === word ? "true" : null }, word))) : null;
  return [
    h("section", { "aria-labelledby": "list-title" }, h("div", { class: "head" }, h("h1", { id: "list-title" }, title), other),
      isApart ? h("p", { class: "soft" }, "Of each step the learner keeps, token by token, the sample on which its log-probabilities differ most from those of the engine that made it (learner.keep_gaps: how many). Large gaps mean that the engine computes otherwise than the trainer, or that the samples are old.") : isGroups ? results : h("div", { class: "card" }, counts.element)),
    h("section", { "aria-label": "The list" }, h("div", { class: "head" }, note, pager), h("div", { class: "card" }, list.element)),
  ];
}

const stepOf = (row) => (row.lineage > 1 ? `${row.step} of lineage ${row.lineage}` : row.step);

function pages(pager, { skip, num, all, here, ways: [back, on] }) {
  const items = [];
  if (skip > 0) items.push(h("a", { class: "button", href: here({ skip: Math.max(0, skip - PAGE) || null }) }, back));
  if (num) items.push(h("span", { class: "soft small" }, `${whole(skip + 1)} to ${whole(skip + num)}`));
  if (skip + num < all) items.push(h("a", { class: "button", href: here({ skip: skip + PAGE }) }, on));
  const text = items.map((item) => item.outerHTML).join("");
  if (pager.dataset.said !== text) { pager.dataset.said = text; pager.replaceChildren(...items); }
}

function countsTable(here, reason) {
  return new KeyedTable({
    caption: "Sample ids by reason, in the history that survives", key: ([word]) => word, empty: "Nothing was dropped so far.",
    rowClass: ([word]) => (word === reason ? "chosen" : ""),
    columns: [
      { head: "Reason", value: ([word]) => h("a", { href: here({ reason: word, skip: null, list: null }), "aria-current": word === reason ? "true" : null }, words(word) || "no reason given") },
      { head: "Ids", value: ([, count]) => whole(count), num: true },
      { head: "What it means", value: ([word]) => MEANS[word] || "–", class: "wide" },
    ],
  });
}

function idsTable(run) {
  return new KeyedTable({
    caption: "Sample ids, newest first", key: (row) => `${row.group}/${row.member}/${row.lineage}.${row.step}`, empty: "None.",
    columns: [
      { head: "Sample", value: (row) => h("a", { href: groupPage(run, row.group, { member: row.member }) }, `group ${row.group}, member ${row.member}`) },
      { head: "Reason", value: (row) => words(row.reason) }, { head: "Closed", value: (row) => day(row.at_ms) },
      { head: "By step", value: (row) => stepOf(row), num: true }, { head: "Born of", value: (row) => named(row.born), num: true },
      { head: "Age", value: (row) => row.age, num: true },
    ],
  });
}

function apartTable(run) {
  return new KeyedTable({
    caption: "Trained samples, by the mean gap of their tokens, largest first", key: (row) => `${row.group}/${row.member}/${row.lineage}.${row.step}`, empty: "None is kept.",
    columns: [
      { head: "Sample", value: (row) => h("a", { href: groupPage(run, row.group, { member: row.member }) }, `group ${row.group}, member ${row.member}`) },
      { head: "Mean gap, nats", value: (row) => number(row.mean, 3), num: true }, { head: "Largest gap, nats", value: (row) => number(row.most, 3), num: true },
      { head: "Trained by step", value: (row) => stepOf(row), num: true }, { head: "Closed", value: (row) => day(row.at_ms) },
    ],
  });
}

function groupsTable(run) {
  return new KeyedTable({
    caption: "Groups with an outcome, newest first", key: (row) => `${row.partition}/${row.offset}`, empty: "None.",
    columns: [
      { head: "Group", value: (row) => h("a", { href: groupPage(run, row.group) }, `group ${row.group}`) },
      { head: "Result", value: (row) => h("span", { class: `chip ${["trained", "dropped", "failed"].includes(row.result) ? row.result : ""}` }, row.result) },
      { head: "Reason", value: (row) => words(row.reason) || "–" }, { head: "Closed", value: (row) => day(row.at_ms) },
      { head: "By step", value: (row) => stepOf(row), num: true },
    ],
  });
}
