// What words mean: reasons of the ledger, and the terms of the page, in a list at its end that terms beside headings point to.

import { h } from "./dom.js";

export const MEANS = {
  stale: "older than the bound when its batch was cut", incomplete: "the deadline ended before enough valid members were there",
  never_arrived: "no sample of this member was read", not_scored: "required rewards did not come in time",
  no_signal: "all rewards of the group were equal", group_dropped: "valid, in a group that was dropped",
  duplicate: "a further copy of an id that had an outcome", abandoned_branch: "born of a version that no surviving history has",
  future_version: "born of a version that was not made yet", non_finite_logprob: "a log-probability that is no finite number, or above 0",
  non_finite_reward: "a reward that is no finite number", missing_logprobs: "no log-probabilities came along",
  length_mismatch: "tokens, log-probabilities, mask or versions differ in length", bad_loss_mask: "a mask value other than 0 and 1",
  out_of_vocabulary: "a token id outside the vocabulary", bad_sampling: "a temperature at which nothing can be computed",
  empty_completion: "no token was made", bad_group_size: "a member number outside its group", unverified: "made with weights that could not be checked",
  too_large: "over the topic's limit, or over the model's context", prompt_invalid: "the prompt cannot be rendered, or leaves no room",
  reward_failed: "a required reward failed", reference_failed: "the reference model failed", engine_failed: "the engine raised",
  environment_failed: "the environment raised", environment_timed_out: "the environment took too long", aborted: "aborted in flight",
  run_ended: "still open when the run ended",
};

// A reason of the ledger in words: what it means, and the detail that came with it.
export function whyLost(reason, bound) {
  const [word, ...rest] = String(reason || "").split(":");
  const detail = rest.join(":").trim();
  const known = bound !== null && bound !== undefined;
  const meant = word.trim() === "stale" && known ? `older than the bound of ${bound} version${bound === 1 ? "" : "s"} when its batch was cut` : MEANS[word.trim()];
  if (!meant) return detail || word || "–";
  return detail ? `${meant}: ${detail}` : meant;
}

export const TERMS = {
  "age at the cut": "How many versions old a sample is when the learner cuts the batch it is in: the learner's step less the step its oldest token was made with.",
  credit: "The most groups that may be open at a time. It follows from the bound on age, so that what is begun is not too old when it is trained.",
  lineage: "One life of a learner. A restart from a checkpoint begins the next one; versions are named v<lineage>.<step>.",
  open: "Groups that were begun and have no outcome yet, by the prompt producer's word. At most the credit.",
  peer: "The process beside the learner that serves the chunks of new versions to engines; they pass them on to each other.",
  ready: "Open groups of which all samples and required rewards are with the learner: they wait for a batch. They are among the open ones.",
  wave: "A part of the engines that loads a new version while the rest goes on generating.",
};
const idOf = (word) => `word-${word.replaceAll(" ", "-")}`;

// A word that says what it means when it is pointed at or focused, and to screen readers.
export const term = (word, text = word) => h("button", { type: "button", class: "term", "aria-describedby": idOf(word), "data-term": word }, text);

export const terms = (...list) => h("p", { class: "terms small" }, list.map((word) => term(word)));

export function glossary() {
  const items = Object.entries(TERMS).map(([word, text]) => h("div", {}, h("dt", {}, word), h("dd", { id: idOf(word) }, text)));
  return h("section", { "aria-labelledby": "words-title", id: "words" }, h("div", { class: "head" }, h("h2", { id: "words-title" }, "Words on this page")), h("dl", { class: "card words" }, items));
}

// One bubble for all terms. Escape takes it away; what it says is in the list, too.
export function showTerms(root = document) {
  const bubble = h("p", { class: "tip word", "aria-hidden": "true", hidden: true });
  root.body.append(bubble);
  let word = null; // that is explained now
  const close = () => { word = null; bubble.hidden = true; };
  const place = () => {
    if (!word || !word.isConnected) return close();
    const box = word.getBoundingClientRect();
    bubble.style.left = `${Math.max(8, Math.min(box.left, root.documentElement.clientWidth - bubble.offsetWidth - 8))}px`;
    bubble.style.top = `${box.bottom + 6 + bubble.offsetHeight > window.innerHeight ? box.top - bubble.offsetHeight - 6 : box.bottom + 6}px`;
    return undefined;
  };
  const open = (event) => {
    const under = event.target.closest?.("[data-term]");
    if (!under) return event.type === "pointerover" && word !== root.activeElement ? close() : undefined;
    word = under;
    bubble.textContent = TERMS[word.dataset.term] || "";
    bubble.hidden = false;
    return place();
  };
  for (const kind of ["pointerover", "focusin", "click"]) root.addEventListener(kind, open);
  root.addEventListener("focusout", close);
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  window.addEventListener("scroll", place, { passive: true }); // a focus far away scrolls, too
}
