"""Whether a server computes with the weights that were published, judged by log-probabilities of fixed prompts.

Role: the probe's arithmetic (promise 9: what cannot be hashed is checked by probe log-probabilities).
Data in: log-probabilities of the prompts' tokens, from the server before and after a load, and from the published
tensors by torch. Data out: what is wrong, or nothing.
What it can see: a state that is off by more than the tolerance on average, and a server that says yes and loads
nothing. What it cannot see: two versions whose log-probabilities differ by less than the rounding of the server's
kernels; of those it sees only that the weights moved.
Failure: none; a pure function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Logprobs: TypeAlias = Sequence[Sequence[float]]  # [prompts][tokens but the first]

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}  # nats; kernels differ in rounding and order
_MOVED = 1e-6  # a difference that no kernel's noise makes in torch itself: the same tensors give the same numbers


@dataclass(frozen=True, kw_only=True)
class Before:
    """What was so before a load."""

    server: Logprobs
    reference: Logprobs


def problem(after: Logprobs, *, reference: Logprobs, tolerance: float, before: Before | None) -> str | None:
    """What is wrong with a server after a load; None: nothing that can be seen.

    Args:
        after: the server's, after the load.
        reference: of the published tensors.
        before: of the version served before it, if there was one.
    """
    off = mean_difference(after, reference)
    if not off <= tolerance:
        return (
            f"its log-probabilities of fixed prompts differ from the published weights' by {off:.3g} on average, "
            f"{tolerance:g} is allowed"
        )
    if before is None or mean_difference(before.reference, reference) <= _MOVED:
        return None
    if mean_difference(before.server, after) == 0.0:
        return "its log-probabilities of fixed prompts are exactly those from before the load, so nothing was loaded"
    return None


def mean_difference(first: Logprobs, second: Logprobs) -> float:
    """Mean absolute difference over all tokens; infinite when the lengths differ."""
    if [len(each) for each in first] != [len(each) for each in second]:
        return float("inf")
    pairs = [pair for one, other in zip(first, second, strict=True) for pair in zip(one, other, strict=True)]
    return sum(abs(one - other) for one, other in pairs) / len(pairs) if pairs else 0.0
