// Which page is shown, the stream behind it, the theme. Links inside this server change the page without loading it anew.

import { h, setClass, setText } from "./dom.js";
import { Overview } from "./overview.js";
import { runsPage } from "./runs.js";
import { samplesPage } from "./samples.js";
import { groupView } from "./viewer.js";
import { showTerms } from "./words.js";

const main = document.getElementById("main");
const linkState = document.getElementById("link-state");
const PARTS = ["head", "verdict", "processes", "weave", "tail", "versions", "lag", "commands", "notices", "drops", "series"];
let stream = null;
let leave = () => {};

export const announce = (text) => setText(document.getElementById("announce"), text);

function said(state, text) {
  setClass(linkState, `link-state ${state}`);
  setText(linkState, text);
}

// Listens to a run; the browser connects again by itself, and what comes then is the newest of everything.
function listen(run, page) {
  let heard = Date.now();
  let live = null;
  stream = new EventSource(`/api/run/${encodeURIComponent(run)}/events`);
  stream.addEventListener("open", () => { heard = Date.now(); said("live", "Connected"); });
  stream.addEventListener("error", () => {
    said("lost", `Connection lost ${new Date(heard).toLocaleTimeString("en-GB")}; trying again`);
    if (stream.readyState === EventSource.CLOSED) explain(run, page);
  });
  for (const part of PARTS) {
    stream.addEventListener(part, (event) => {
      heard = Date.now();
      const value = JSON.parse(event.data);
      page.take(part, value);
      if (part === "head" && live !== value.is_live) { live = value.is_live; said("live", live ? "Live" : "From the topics"); }
    });
  }
  stream.addEventListener("trouble", (event) => {
    const trouble = JSON.parse(event.data);
    if (trouble) said("lost", `The broker cannot be read: ${trouble.message}`);
    else if (live !== null) said("live", live ? "Live" : "From the topics");
  });
}

// The stream was refused: ask once more in a way that says why.
async function explain(run, page) {
  try {
    const answer = await fetch(`/api/run/${encodeURIComponent(run)}/lost?limit=0`);
    if (answer.ok) { setTimeout(() => { if (current === page) listen(run, page); }, 2000); return; }
    const why = await answer.json();
    main.replaceChildren(h("section", { class: "card" }, h("h1", {}, "This run cannot be shown"), h("p", {}, why.message), h("p", { class: "soft" }, why.hint)));
    said("lost", "Not connected; looking again every few seconds");
    setTimeout(() => { if (current === page) show(); }, 5000); // it may be about to begin
  } catch {
    setTimeout(() => { if (current === page) listen(run, page); }, 2000);
  }
}

let current = null;

function where(parts) {
  document.getElementById("where").replaceChildren(...parts);
  document.title = `${document.getElementById("where").textContent || "runs"} – rlweave`;
}

async function show() {
  leave();
  leave = () => {};
  if (stream) { stream.close(); stream = null; }
  said("", "");
  const url = new URL(location.href);
  const [, kind, name, view] = url.pathname.split("/").map(decodeURIComponent);
  const query = url.searchParams;
  window.scrollTo(0, 0);
  if (kind !== "run") {
    where([]);
    const page = runsPage();
    leave = page.leave;
    main.replaceChildren(...page.element);
    return;
  }
  const home = h("a", { href: `/run/${encodeURIComponent(name)}` }, name);
  if (view === "samples") { where([home, ": samples"]); main.replaceChildren(...samplesPage(name, query)); }
  else if (view === "group") { where([home, `: group ${query.get("n") ?? ""}`]); main.replaceChildren(...groupView(name, query, announce)); }
  else {
    where([h("span", { class: "soft" }, "run "), h("b", {}, name)]);
    const page = new Overview(name, announce);
    current = page;
    leave = () => { current = null; };
    main.replaceChildren(...page.element);
    listen(name, page);
  }
}

export function go(href) {
  history.pushState({}, "", href);
  show();
  main.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || url.hash) return;
  event.preventDefault();
  go(url.pathname + url.search);
});
window.addEventListener("popstate", show);
document.addEventListener("go", (event) => go(event.detail));

const theme = document.getElementById("theme");
theme.value = localStorage.getItem("theme") || "auto";
function setTheme() {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("theme", theme.value);
  document.dispatchEvent(new Event("themechange"));
}
theme.addEventListener("change", setTheme);
setTheme();
showTerms();
show();
