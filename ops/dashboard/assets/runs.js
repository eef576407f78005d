// The start page: every run on the broker.

import { day, h, KeyedTable, prose } from "./dom.js";

const AGAIN_MS = 5000;

export function runsPage() {
  const note = h("p", { class: "soft", role: "status" }, "Looking at the broker …");
  const table = new KeyedTable({
    caption: "Runs on the broker and in the folder of runs", key: (run) => run.name, empty: prose("No run yet: `rlweave demo` makes one."),
    columns: [
      { head: "Run", value: (run) => (run.on_broker ? h("a", { href: `/run/${encodeURIComponent(run.name)}` }, run.name) : run.name) },
      { head: "State", value: (run) => h("span", { class: `chip ${["running", "finished"].includes(run.state) ? run.state : ""}` }, run.state) },
      { head: "Version", value: (run) => (run.lineage ? `v${run.lineage}.${run.step}` : "–"), num: true },
      { head: "Last event", value: (run) => day(run.last_unix_ms) },
    ],
  });
  table.element.hidden = true;
  let timer = null;
  let isLeft = false;

  async function look() {
    try {
      const answer = await fetch("/api/runs");
      const found = await answer.json();
      if (!answer.ok) note.textContent = `${found.message}. ${found.hint}`;
      else {
        note.textContent = found.length === 1 ? "1 run" : `${found.length} runs`;
        table.element.hidden = false;
        table.update(found.sort((one, two) => (two.last_unix_ms || 0) - (one.last_unix_ms || 0)));
      }
    } catch {
      note.textContent = "Connection lost; trying again.";
    }
    if (!isLeft) timer = setTimeout(look, AGAIN_MS);
  }

  look();
  return {
    element: [h("section", { "aria-labelledby": "runs-title" }, h("div", { class: "head" }, h("h1", { id: "runs-title" }, "Runs"), note), h("div", { class: "card" }, table.element))],
    leave: () => { isLeft = true; clearTimeout(timer); },
  };
}
