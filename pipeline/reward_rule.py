"""How the named rewards of a run become one number: weights, gates, and what is done without one that is missing.

Role: a plain model, read from `[rewards.NAME]` and used where the learner combines and where a report does.
Data in and out: values by reward name in; the number that enters the training signal, and how it came about, out.
Invariants: the number is always `sum(use.weight * use.value)` in the order of the names, so the ledger says all that
there is to it; what failed or never came is left out or ends the sample, and never counts as a 0 (promise 8).
Failure: `ValueError` for rules that cannot work.

A *gate* is a reward with `gate_above`: unless its value is greater, the rewards that are no gates count with weight 0;
the gate's own weight counts in either case. An optional reward that one member of a group lacks is left out for all of
them, for advantages compare the members of a group with each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.reasons import Reason, Result
from schemas.records import MemberOutcome, RewardUse
from schemas.validation import MAX_REWARD

Missing = Literal["wait", "fail", "leave_out"]


@dataclass(frozen=True, kw_only=True)
class RewardTerm:
    """What one reward is to the training signal."""

    weight: float = 1.0
    gate_above: float | None = None  # None: no gate
    required: bool = True  # False: a sample is trained without it
    missing: Missing = "wait"  # see `consumers.rewards.settings.RewardSettings.missing`

    @property
    def is_shadow(self) -> bool:
        """True when it enters no training signal."""
        return self.weight == 0 and self.gate_above is None

    def problem(self) -> str:
        """Why it cannot work; empty: it can."""
        if not math.isfinite(self.weight):
            return f"weight = {self.weight} is not finite"
        if self.gate_above is not None and not self.required:
            return "gate_above belongs to a required reward: without its value nobody knows whether the others count"
        if self.required and self.missing == "leave_out":
            return 'missing = "leave_out" belongs to an optional reward: add required = false'
        if not self.required and self.missing == "fail":
            return 'missing = "fail" belongs to a required reward: take out required = false'
        return ""


class RewardRule:
    """The rewards that enter the training signal.

    Args:
        terms: by reward name; a plain number is the weight of a required reward.

    Raises:
        ValueError: none is required, or one of them cannot work.
    """

    def __init__(self, terms: Mapping[str, float | RewardTerm]) -> None:
        plain = {
            name: term if isinstance(term, RewardTerm) else RewardTerm(weight=term)
            for name, term in sorted(terms.items())
        }
        wrong = [f"{name}: {term.problem()}" for name, term in plain.items() if term.problem()]
        if wrong or not any(term.required for term in plain.values()):
            raise ValueError("; ".join(wrong) or f"at least one required reward is needed, got {dict(terms)}")
        self.weights = {name: term.weight for name, term in plain.items()}
        self.required = frozenset(name for name, term in plain.items() if term.required)
        self.failing = tuple(name for name, term in plain.items() if term.missing == "fail")
        self._gates = {name: term.gate_above for name, term in plain.items() if term.gate_above is not None}
        self._awaited = tuple(name for name, term in plain.items() if term.missing != "leave_out")

    def can_use(self, name: str, value: float) -> bool:
        """Whether weight * value is a number that a step can be computed with."""
        return math.isfinite(value) and abs(self.weights[name] * value) <= MAX_REWARD

    def is_settled(self, values: Collection[str], absent: Collection[str]) -> bool:
        """Whether nothing is waited for any more.

        Args:
            values: names of rewards with a value.
            absent: names of optional rewards that said they have none.
        """
        return len(values) == len(self.weights) or all(name in values or name in absent for name in self._awaited)

    def is_enough(self, values: Collection[str]) -> bool:
        """Whether every required reward has a value."""
        return self.required.issubset(values)

    def common(self, members: Iterable[Collection[str]]) -> list[str]:
        """Names of the rewards that count in a group: the required ones, and optional ones that all members have."""
        names = set(self.weights)
        for values in members:
            names.intersection_update(values)
        return [name for name in self.weights if name in names or name in self.required]

    def combine(self, values: Mapping[str, float], *, names: Collection[str] | None = None) -> float:
        """The number a sample is trained with.

        Args:
            values: by reward name; every required one is there.
            names: rewards that count, as of `common`; None: all that have a value.
        """
        return sum(use.weight * use.value for use in self._used(values, names))

    def uses(self, values: Mapping[str, float], *, names: Collection[str] | None = None) -> tuple[RewardUse, ...]:
        """What `combine` adds up, sorted by name: values with the weight they count with, 0 behind a closed gate."""
        return tuple(self._used(values, names))

    def _used(self, values: Mapping[str, float], names: Collection[str] | None) -> Iterator[RewardUse]:
        is_open = all(values[name] > above for name, above in self._gates.items() if name in values)
        for name, weight in self.weights.items():
            if name in values and (names is None or name in names):
                counts = is_open or name in self._gates
                yield RewardUse(name=name, value=values[name], weight=weight if counts else 0.0)


def rewards_seen(members: Iterable[MemberOutcome]) -> list[float]:
    """Whole rewards of those members of a group that were trained, or dropped for nothing but that all had the same:
    what a policy is worth. Without the latter, one that solves everything would look half as good."""
    return [
        sum(use.weight * use.value for use in member.rewards)
        for member in members
        if member.result == Result.TRAINED or member.reason == Reason.NO_SIGNAL
    ]
