"""What ranks say to each other: nothing is lost on the way, and nothing else than that is understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.learner.batch import PlannedGroup
from consumers.learner.outcomes import OutcomeDraft
from consumers.learner.ranks.messages import Command, Summary, Taken, pack_report, unpack_report, waiting_of
from consumers.learner.ranks.part import partitions_of
from consumers.learner.ready import Offer
from consumers.learner.reports import Waiting
from schemas.codec import encode
from schemas.errors import CodecError
from schemas.reasons import Result
from schemas.records import MemberOutcome, RewardUse, Version
from tests.unit.consumers.learner.material import prompt

DRAFTS = [
    OutcomeDraft(
        group=7,
        result=Result.TRAINED,
        reason=None,
        attempt="a",
        members=(
            MemberOutcome(
                member=0,
                attempt="a",
                result=Result.TRAINED,
                version=Version(lineage=2, step=3),
                age=1,
                rewards=(RewardUse(name="match", value=0.1 + 0.2, weight=1e-300),),
            ),
            MemberOutcome(member=1, result=Result.DROPPED, reason="never_arrived"),
        ),
    ),
    OutcomeDraft(group=9, result=Result.DROPPED, reason="incomplete: 0/8", attempt=None, members=()),
]
POSITIONS = {("prompts", 1): 5, ("samples", 3): 2**40}
TAKEN = Taken(drafts=DRAFTS, positions=POSITIONS, topic_ids={"prompts": "p", "samples": "s"})
NOTHING = Taken(drafts=[], positions={}, topic_ids={})


def test_a_report_arrives_as_it_was() -> None:
    assert unpack_report(pack_report(TAKEN)) == TAKEN
    assert unpack_report(pack_report(NOTHING)) == NOTHING


@given(st.integers(0, 600), st.integers(1, 255))
def test_a_report_with_a_changed_byte_is_refused_or_still_a_report(place: int, change: int) -> None:
    content = bytearray(pack_report(TAKEN))
    content[place % len(content)] ^= change
    try:
        found = unpack_report(bytes(content))
    except CodecError:
        return
    assert all(isinstance(draft, OutcomeDraft) for draft in found.drafts)
    assert all(isinstance(position, int) for position in found.positions.values())


@given(st.binary(max_size=200))
def test_noise_is_no_report(content: bytes) -> None:
    with pytest.raises(CodecError):
        unpack_report(content)


def test_a_report_that_holds_other_records_is_refused() -> None:
    body = encode(prompt(1))
    head = f'{{"sizes":[{len(body)}]}}'.encode()
    with pytest.raises(CodecError, match="PromptGroup where an Outcome belongs"):
        unpack_report(len(head).to_bytes(4, "little") + head + body)


def test_a_command_arrives_as_it_was_and_an_unknown_one_is_refused() -> None:
    command = Command(do="train", step=4, groups=((3, 8, ()), (6, 8, (1, 7))))
    again = Command.parse(command.to_bytes())
    assert again == command
    assert again.plan() == (PlannedGroup(group=3, size=8), PlannedGroup(group=6, size=8, absent=(1, 7)))
    assert again.plan()[1].members == [0, 2, 3, 4, 5, 6]
    for text in (
        b'{"do":"erase"}',
        b'{"do":"read","wait_s":1e9}',
        b'{"do":"read","more":1}',
        b"[]",
        b'{"do":"read","step":-1}',
    ):
        with pytest.raises(CodecError, match="no Command"):
            Command.parse(text)


def test_a_summary_arrives_as_it_was() -> None:
    summary = Summary(num_ready=2, blocked=True, unscored={"match": 3}, offered=((-1, 5, 8, ()), (4, 6, 8, (2,))))
    assert Summary.parse(summary.to_bytes()) == summary
    assert summary.offers() == [
        Offer(birth_step=-1, group=5, size=8),
        Offer(birth_step=4, group=6, size=8, absent=(2,)),
    ]


def test_what_groups_lack_is_summed_over_the_ranks() -> None:
    summaries = [Summary(num_open=1, unscored={"a": 2}), Summary(num_open=4, unsampled=3, unscored={"a": 1, "b": 5})]
    assert waiting_of(summaries) == Waiting(num_open=5, num_unsampled=3, num_unscored={"a": 3, "b": 5})


@given(st.integers(1, 9), st.integers(1, 40))
def test_every_partition_has_one_rank(num_ranks: int, num_partitions: int) -> None:
    parts = [partitions_of(rank, num_ranks=num_ranks, num_partitions=num_partitions) for rank in range(num_ranks)]
    assert sorted(number for part in parts for number in part) == list(range(num_partitions))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
