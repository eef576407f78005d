"""Two rewards compared: against numbers worked out by hand, and over records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from ops.rewards.collect import RewardUnknown, compare_rewards
from ops.rewards.compare import Key, Side, compare
from ops.rewards.show import as_json, lines_of
from schemas.codec import encode
from schemas.records import Record, Reward, Sample
from tests.unit.consumers.rewards.helpers import sample
from topics.catalog import REWARDS, SAMPLES, SHADOW_REWARDS, Topic
from topics.kafka.raw import RawRecord


def side(name: str, *values: float) -> Side:
    """Members of groups of four."""
    return Side(name=name, values={(at // 4, at % 4, "a"): value for at, value in enumerate(values)})


def test_numbers_by_hand() -> None:
    found = compare(side("a", 0, 0, 1, 1, 2, 2, 3, 3), side("b", 0, 1, 1, 0, 5, 9, 9, 9))
    assert found.num_both == 8
    assert found.equal_share == 2 / 8
    # Group 0: A tells (0,2) (0,3) (1,2) (1,3) apart; of these B tells (0,2) and (1,3) apart: one each way.
    # Group 1: (0,2) (0,3) in the same order; (1,2) (1,3) are equal in B.
    assert (found.order_share, found.num_ordered) == (3 / 4, 4)
    assert found.pearson == pytest.approx(32 / 1255**0.5)
    assert found.spearman == pytest.approx(34 / 1560**0.5)
    assert found.scatter is not None
    assert sum(map(sum, found.scatter.counts)) == 8
    assert found.scatter.counts[0][-1] == 2, "top right: the highest of both"
    assert found.worst[0].key == (1, 1, "a"), "9 of 9 where A says 2 of 3 is as far as it gets"


def test_without_a_spread_there_is_no_correlation() -> None:
    found = compare(side("a", 1, 1, 1), side("b", 0, 1, 2))
    assert (found.pearson, found.spearman, found.order_share, found.num_ordered) == (None, None, None, 0)


def test_nothing_in_common_is_no_error() -> None:
    found = compare(side("a"), side("b", 1))
    assert (found.num_both, found.equal_share, found.scatter, found.worst) == (0, None, None, ())


class Records:
    """A source of records in memory, on one partition."""

    run = "r"
    data_partitions = 1
    may_grow = False

    def __init__(self, topics: Mapping[Topic, Iterable[Record]]) -> None:
        self._topics = {topic.name: [encode(one) for one in records] for topic, records in topics.items()}

    def window(self, topic: Topic) -> dict[int, tuple[int, int]]:
        return {0: (0, len(self._topics.get(topic.name, ())))}

    def read(self, topic: Topic, ranges: Mapping[int, tuple[int, int]]) -> Iterator[RawRecord]:
        first, end = ranges[0]
        for offset in range(first, end):
            value = self._topics[topic.name][offset]
            yield RawRecord(topic=topic.name, partition=0, offset=offset, key=None, value=value, headers=(), unix_ms=0)

    def first_at(self, topic: Topic, partitions: Sequence[int], *, unix_ms: int) -> dict[int, int | None]:
        return dict.fromkeys(partitions)


def said(name: str, group: int, value: float | None, *, version: str = "1") -> Reward:
    return Reward(
        run="r",
        group=group,
        member=0,
        attempt="a",
        name=name,
        plugin_version=version,
        weight=0.0,
        value=value,
        failure=None if value is not None else "Boom: no",
        sample_offset=group,
        scored_unix_ms=0,
        duration_ms=1.0,
        producer="p",
    )


def source() -> Records:
    samples: list[Sample] = [
        replace(sample(group), prompt_text=f"question\n{group}", completion_text=f"answer {group}")
        for group in range(6)
    ]
    old = [said("long", group, 9.0 - group, version="0") for group in range(6)]
    return Records(
        {
            SAMPLES: samples,
            REWARDS: [*(said("math", group, float(group > 2)) for group in range(6)), said("math", 0, 1.0)],
            SHADOW_REWARDS: [
                *old,
                *(said("long", group, None if group == 5 else float(group)) for group in range(6)),
            ],
        }
    )


def test_records_are_joined_and_the_texts_of_the_worst_are_shown() -> None:
    compared = compare_rewards(source(), ("math", "long"), num_worst=2)
    found = compared.comparison
    assert found.num_both == 5
    assert found.a.values[(0, 0, "a")] == 0.0, "the first copy counts, as for the learner"
    assert found.b.failures == {(5, 0, "a"): "Boom: no"}, "the later version counts, and its failure is no number"
    assert [each.key[0] for each in found.worst] == [2, 1]
    lines = "\n".join(lines_of(compared))
    assert "1 failures (Boom 1)" in lines
    assert "question 2" in lines
    assert "completion  answer 2" in lines
    values = as_json(compared)
    assert values["num_both"] == 5
    worst = values["worst"]
    assert isinstance(worst, list)
    assert worst[0]["completion"] == "answer 2"


def test_a_version_can_be_named() -> None:
    compared = compare_rewards(source(), ("long@0", "long@1"), num_worst=0)
    assert compared.comparison.num_both == 5
    assert compared.comparison.spearman == pytest.approx(-1.0)


def test_an_unknown_reward_names_those_there_are() -> None:
    with pytest.raises(RewardUnknown) as caught:
        compare_rewards(source(), ("math", "nope"), num_worst=1)
    assert "math@1 (7 records)" in caught.value.hint


def test_texts_that_retention_removed_are_missed_aloud() -> None:
    records = source()
    records._topics[SAMPLES.name] = []
    compared = compare_rewards(records, ("math", "long"), num_worst=1)
    assert "its text is no longer in the log" in "\n".join(lines_of(compared))


def test_keys_are_of_attempts() -> None:
    keys: dict[Key, float] = {(0, 0, "a"): 1.0}
    assert compare(Side(name="a", values=keys), Side(name="b", values={(0, 0, "other"): 1.0})).num_both == 0
