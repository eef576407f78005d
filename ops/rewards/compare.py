"""Two rewards of the same samples: how far they agree, and where they agree least.

Role: pure arithmetic over what two rewards said.
Data in: `Said` of each reward, by (group, member, attempt). Data out: a `Comparison`.
Invariants: only samples that both gave a value are compared; failures are counted apart and are no number. Shares and
correlations are None where they mean nothing (no pair, or no spread).
Failure: none.

Order agreement is what a group-relative advantage sees: of the pairs of members of one group that A tells apart and B
tells apart, the share that both put in the same order. Spearman's correlation is Pearson's over mean ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Key = tuple[int, int, str]  # group, member, attempt
Floats = NDArray[np.float64]
BINS = 10  # of the scatter, each way
_SAME = 1e-9  # two values that differ by no more are equal


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two rewards."""

    name: str
    values: Mapping[Key, float]
    failures: Mapping[Key, str] = field(default_factory=dict)

    @property
    def failure_words(self) -> dict[str, int]:
        """How often each word began a failure, most often first."""
        return dict(Counter(text.partition(":")[0] for text in self.failures.values()).most_common())


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Counts of pairs by value; rows are B from its highest bin down, columns A from its lowest up."""

    low_a: float
    high_a: float
    low_b: float
    high_b: float
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """One sample that the two see differently."""

    key: Key
    a: float
    b: float
    distance: float  # of the values, each in units of its own range


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two rewards have in common."""

    a: Side
    b: Side
    num_both: int
    mean_a: float | None
    mean_b: float | None
    equal_share: float | None
    order_share: float | None
    num_ordered: int  # pairs of members that both tell apart
    pearson: float | None
    spearman: float | None
    scatter: Scatter | None
    worst: tuple[Disagreement, ...]


def compare(a: Side, b: Side, *, num_worst: int = 5) -> Comparison:
    """Compare the samples that both gave a value.

    Args:
        num_worst: disagreements to name, the worst first, at a tie by (group, member).
    """
    keys = sorted(a.values.keys() & b.values.keys())
    of_a = np.array([a.values[key] for key in keys], dtype=np.float64)
    of_b = np.array([b.values[key] for key in keys], dtype=np.float64)
    same_order, num_ordered = _order(keys, of_a, b=of_b)
    return Comparison(
        a=a,
        b=b,
        num_both=len(keys),
        mean_a=float(of_a.mean()) if keys else None,
        mean_b=float(of_b.mean()) if keys else None,
        equal_share=float(np.mean(np.abs(of_a - of_b) <= _SAME)) if keys else None,
        order_share=same_order / num_ordered if num_ordered else None,
        num_ordered=num_ordered,
        pearson=_correlation(of_a, of_b),
        spearman=_correlation(_ranks(of_a), _ranks(of_b)),
        scatter=_scatter(of_a, of_b) if keys else None,
        worst=_worst(keys, of_a, b=of_b, limit=num_worst),
    )


def _order(keys: list[Key], a: Floats, *, b: Floats) -> tuple[int, int]:
    """Pairs of members of a group in the same order, and all that both tell apart."""
    num_same = num_ordered = begin = 0
    groups = np.array([key[0] for key in keys], dtype=np.int64)
    ends = [*(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(keys)] if keys else []
    for end in ends:
        signs = np.sign(_differences(a[begin:end])) * np.sign(_differences(b[begin:end]))
        num_same += int(np.sum(signs > 0)) // 2
        num_ordered += int(np.sum(signs != 0)) // 2
        begin = end
    return num_same, num_ordered


def _differences(values: Floats) -> Floats:
    found: Floats = values[:, None] - values[None, :]
    return np.where(np.abs(found) <= _SAME, 0.0, found)


def _ranks(values: Floats) -> Floats:
    """Mean ranks: equal values share theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = ((ends - counts + 1 + ends) / 2)[inverse]
    return ranks


def _correlation(a: Floats, b: Floats) -> float | None:
    if len(a) < 2 or np.ptp(a) <= _SAME or np.ptp(b) <= _SAME:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _scatter(a: Floats, b: Floats) -> Scatter:
    bounds = [_bounds(a), _bounds(b)]
    counts, _, _ = np.histogram2d(a, b, bins=BINS, range=bounds)
    rows = tuple(tuple(int(count) for count in row) for row in counts.T[::-1])
    (low_a, high_a), (low_b, high_b) = bounds
    return Scatter(low_a=low_a, high_a=high_a, low_b=low_b, high_b=high_b, counts=rows)


def _bounds(values: Floats) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _worst(keys: list[Key], a: Floats, *, b: Floats, limit: int) -> tuple[Disagreement, ...]:
    distances = np.abs(_scaled(a) - _scaled(b))
    order = sorted(range(len(keys)), key=lambda at: (-float(distances[at]), keys[at]))[:limit]
    return tuple(
        Disagreement(key=keys[at], a=float(a[at]), b=float(b[at]), distance=float(distances[at]))
        for at in order
        if distances[at] > _SAME
    )


def _scaled(values: Floats) -> Floats:
    if len(values) == 0 or np.ptp(values) <= _SAME:
        return np.zeros_like(values)
    scaled: Floats = (values - values.min()) / np.ptp(values)
    return scaled
