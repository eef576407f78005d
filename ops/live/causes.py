"""Clauses of a verdict that say why, and since when it is not as it was.

Data in: a picture and its measures. Data out: parts of sentences; empty where the numbers do not say so.
Invariants: unknown says nothing.
Failure: none.
"""

from __future__ import annotations

from collections import Counter

from ops.live.measures import Measures, RewardMeasures
from ops.live.picture import RunPicture

LOST = 0.02  # share of lost ids that is worth a word
_WAITS = 0.1  # share of waiting that is
_TOGETHER_MS = 60_000  # processes that end within so much time end together


def lost(measures: Measures) -> str:
    """What share of the samples goes lost lately, and as what."""
    if measures.lost_share is None or measures.lost_share < LOST:
        return ""
    return f"; {measures.lost_share:.1%} of samples are dropped as {measures.lost_reason.replace('_', ' ')}"


def credit_chain(measures: Measures) -> str:
    """Late weights make engines begin groups so far behind that fewer may be open, so they wait for prompts, too."""
    credit, most, lag = measures.credit, measures.most_credit, measures.publish_lag
    if credit is None or most is None or credit >= most:
        return ""
    begun = "" if not lag else f"as groups are begun up to {lag:.0f} behind, "
    return f"{begun}only {credit:.0f} groups may be open, not {most:.0f}"


def waits(measures: Measures) -> str:
    """Who waits for what, where weights come late."""
    rollouts = (("weights", measures.rollouts_wait_weights), ("prompts", measures.rollouts_wait_prompts))
    said = [f"{share:.0%} for {what}" for what, share in rollouts if share >= _WAITS]
    parts = [f"rollouts wait {' and '.join(said)}"] if said else []
    if measures.learner_waits >= _WAITS:
        parts.append(f"the learner waits {measures.learner_waits:.0%} of its time for data")
    return ", ".join(parts)


def fetch(measures: Measures) -> str:
    """How much a version is, and how fast it comes in."""
    parts = []
    if measures.version_bytes is not None:
        parts.append(f"a version is {_kilo(measures.version_bytes)}")
    if measures.fetch_s is not None:
        rate = "" if measures.fetch_bytes_s is None else f" at {_kilo(measures.fetch_bytes_s)}/s"
        parts.append(f"a fetch takes {measures.fetch_s:.1f} s{rate}")
    return f" ({', '.join(parts)})" if parts else ""


def best_scored(reward: RewardMeasures) -> str:
    """How fast a reward was in this run."""
    if reward.best_per_s is None or reward.scored_per_s is None or reward.best_per_s <= reward.scored_per_s:
        return ""
    return f" ({reward.best_per_s:.0f}/s at its best)"


def best_step(measures: Measures) -> str:
    """How short steps were in this run."""
    return "" if measures.best_step_s is None else f", {measures.best_step_s:.2g} s at its best"


def stopped(picture: RunPicture) -> str | None:
    """Why all that took part last stopped, by their own word; None: not all said that they did."""
    last_ms = max(each.heard_ms for each in picture.processes)
    crew = [each for each in picture.processes if each.heard_ms > last_ms - _TOGETHER_MS]
    if any(each.standing == "not heard" for each in crew) or not any(each.standing == "stopped" for each in crew):
        return None
    reasons = Counter(each.ended for each in crew if each.ended and not each.is_replaced)
    return f" ({', '.join(reason for reason, _ in reasons.most_common(2))})" if reasons else ""


def _kilo(num_bytes: float) -> str:
    return f"{num_bytes / 1000:,.0f} kB" if num_bytes < 10_000_000 else f"{num_bytes / 1_000_000:,.0f} MB"
