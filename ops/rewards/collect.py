"""What two rewards said, read from the topics.

Role: folds `rewards` and `shadow-rewards` of a run, or of a dump, into the sides of a comparison; fetches the texts of
single samples.
Data in: a `Source`; names, or `name@version` for what one version of a plug-in said. Data out: `Side`s, `Sample`s.
Invariants: what is on `rewards` goes before `shadow-rewards`; there the first copy counts, as it does for the learner;
of shadows the last one does, as a later version scores again under the same name. Nothing is committed.
Failure: `RewardUnknown` naming the rewards there are; `LogError`s of the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ops.replay.sources import Source, decode
from ops.rewards.compare import Comparison, Key, Side, compare
from schemas.errors import CodecError, RlweaveError
from schemas.records import Reward, Sample
from topics.catalog import REWARDS, SAMPLES, SHADOW_REWARDS, Topic

Place = tuple[int, int]  # partition, offset


class RewardUnknown(RlweaveError):
    """No record of a reward of this name was read."""


@dataclass(kw_only=True)
class _Fold:
    """One side in the making."""

    name: str
    version: str
    values: dict[Key, float] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)
    places: dict[Key, Place] = field(default_factory=dict)  # of the samples

    def add(self, reward: Reward, *, partition: int, is_shadow: bool) -> None:
        if reward.name != self.name or (self.version and reward.plugin_version != self.version):
            return
        key = (reward.group, reward.member, reward.attempt)
        if key in self.places and not is_shadow:
            return
        self.places[key] = (partition, reward.sample_offset)
        self.values.pop(key, None)
        self.failures.pop(key, None)
        if reward.value is not None:
            self.values[key] = reward.value
        else:
            self.failures[key] = "" if reward.failure is None else reward.failure

    def side(self) -> Side:
        return Side(
            name=f"{self.name}@{self.version}" if self.version else self.name,
            values=self.values,
            failures=self.failures,
        )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A comparison with the samples of its worst disagreements."""

    comparison: Comparison
    samples: dict[Key, Sample]


def compare_rewards(source: Source, names: tuple[str, str], *, num_worst: int) -> Compared:
    """Read, compare, and fetch the texts.

    Raises:
        RewardUnknown: one of them said nothing.
        LogError: the broker cannot be read.
    """
    folds = [_Fold(name=name.partition("@")[0], version=name.partition("@")[2]) for name in names]
    seen: Counter[str] = Counter()
    for topic in (SHADOW_REWARDS, REWARDS):
        _fold_topic(source, topic, folds=folds, seen=seen)
    for fold, given in zip(folds, names, strict=True):
        if not fold.places:
            known = ", ".join(f"{name} ({num} records)" for name, num in sorted(seen.items()))
            raise RewardUnknown(
                f"run {source.run!r} has no record of a reward {given!r}", hint=f"there are: {known or 'none'}"
            )
    comparison = compare(folds[0].side(), folds[1].side(), num_worst=num_worst)
    places = {each.key: folds[0].places[each.key] for each in comparison.worst}
    return Compared(comparison=comparison, samples=dict(_samples(source, places)))


def _fold_topic(source: Source, topic: Topic, *, folds: Sequence[_Fold], seen: Counter[str]) -> None:
    """Shadows are read first, and what is on `rewards` takes their place."""
    is_shadow = topic is SHADOW_REWARDS
    own = [_Fold(name=fold.name, version=fold.version) for fold in folds]
    for raw in source.read(topic, source.window(topic)):
        try:
            record = decode(topic, raw)
        except CodecError:
            continue  # a dead letter of whoever reads it
        if isinstance(record, Reward):
            seen[f"{record.name}@{record.plugin_version}"] += 1
            for fold in own:
                fold.add(record, partition=raw.partition, is_shadow=is_shadow)
    for fold, found in zip(folds, own, strict=True):
        for key, place in found.places.items():
            fold.places[key] = place
            fold.values.pop(key, None)
            fold.failures.pop(key, None)
        fold.values.update(found.values)
        fold.failures.update(found.failures)


def _samples(source: Source, places: dict[Key, Place]) -> Iterator[tuple[Key, Sample]]:
    held = source.window(SAMPLES)
    for key, (partition, offset) in places.items():
        first, end = held.get(partition, (0, 0))
        if not first <= offset < end:
            continue  # retention removed it
        for raw in source.read(SAMPLES, {partition: (offset, offset + 1)}):
            record = decode(SAMPLES, raw)
            if isinstance(record, Sample):
                yield key, record
