"""What the viewer is told of a group and of one sample of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import orjson
import pytest
from tokenizers import Tokenizer as RealTokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from consumers.learner import algorithms
from ops.dashboard.advantage_view import OF_ALGORITHM, advantages_of
from ops.dashboard.finding import Finder, GroupRecords
from ops.dashboard.group_view import MAX_TOKENS, group_json, tokens_json
from ops.dashboard.pieces import TokenizerMissing, load_tokenizer, pieces_of
from schemas.packed import pack_f16, pack_f32, pack_i32, pack_u8
from schemas.records import MemberOutcome, Outcome, ReferenceScore, RewardUse, Version, VersionRun
from tests.unit.ops.dashboard.record_source import RecordSource
from tests.unit.ops.little_run import NOW_MS, RUN, attempt_of, prompt, reward, sample, trained
from topics.catalog import LEDGER, PROMPTS, REFERENCE_SCORES, REWARDS, SAMPLES, SHADOW_REWARDS


def scored(member: int, *, value: float) -> MemberOutcome:
    use = RewardUse(name="exact", value=value, weight=2.0)
    version = Version(lineage=1, step=0)
    return MemberOutcome(member=member, attempt=attempt_of(0), result="trained", version=version, age=1, rewards=(use,))


def outcome() -> Outcome:
    return replace(trained(0, at="1.1", seq=0), members=(scored(0, value=1.0), scored(1, value=0.0)))


@pytest.fixture
def found() -> GroupRecords:
    source = RecordSource(RUN, data_partitions=1)
    source.put(PROMPTS, prompt(0), partition=0)
    with_turns = replace(
        sample(0, 0),
        completion_text="<b>4</b>",
        completion_tokens=pack_i32([3, 4, 5, 6]),
        logprobs=pack_f32([-0.5, -0.25, -1.0, -2.0]),
        loss_mask=pack_u8([1, 1, 0, 1]),
        version_runs=(
            VersionRun(num_tokens=1, version=Version(lineage=1, step=0)),
            VersionRun(num_tokens=3, version=Version(lineage=1, step=1)),
        ),
        turns=pack_i32([2, 4]),
        step_rewards=pack_f32([0.5, 0.5]),
        seed=2**62,
    )
    source.put(SAMPLES, with_turns, partition=0)
    source.put(SAMPLES, sample(0, 1), partition=0)
    for member, value in ((0, 1.0), (1, 0.0)):
        source.put(REWARDS, reward(0, member, value=value), partition=0)
    source.put(SHADOW_REWARDS, replace(reward(0, 0, value=0.25, name="style"), weight=0.0), partition=0)
    score = ReferenceScore(
        run=RUN,
        group=0,
        member=0,
        attempt=attempt_of(0),
        model_digest="ab" * 32,
        logprobs=pack_f32([-1.0, -0.25, -1.0, -1.0]),
        sample_offset=0,
        scored_unix_ms=NOW_MS,
        producer="reference-0",
    )
    source.put(REFERENCE_SCORES, score, partition=0)
    source.put(LEDGER, outcome(), partition=0)
    return Finder(source).find(0, ledger=[(0, NOW_MS + 1_000)])


def test_members_stand_side_by_side_with_rewards_advantages_and_outcomes(found: GroupRecords) -> None:
    view = group_json(found, surviving=frozenset({0}), advantage="grpo")
    [attempt] = cast("list[dict[str, object]]", view["attempts"])
    assert attempt["won"] is True
    first, second = cast("list[dict[str, object]]", attempt["members"])
    rewards = cast("list[dict[str, object]]", first["rewards"])
    assert [(each["name"], each["value"], each["is_shadow"]) for each in rewards] == [
        ("exact", 1.0, False),
        ("style", 0.25, True),
    ]
    assert first["advantage"] == pytest.approx(1.0, abs=1e-5)
    assert second["advantage"] == pytest.approx(-1.0, abs=1e-5)
    assert cast("dict[str, object]", first["outcome"])["total"] == 2.0
    assert orjson.loads(orjson.dumps(view))["prompt"]["text"] == "0 + 1 ="


def test_tokens_come_with_versions_gap_mask_turns_and_advantage(found: GroupRecords) -> None:
    seen = tokens_json(found, place=(0, ""), skip=0, tokenizer=None, standing=(frozenset({0}), "grpo"))
    assert seen is not None
    tokens = cast("dict[str, object]", seen["tokens"])
    assert tokens["ids"] == [3, 4, 5, 6]
    assert tokens["gap"] == [0.5, 0.0, 0.0, -1.0]
    assert tokens["mask"] == [1, 1, 0, 1]
    assert tokens["turns"] == [2, 4]
    assert tokens["advantage"] == pytest.approx(1.0, abs=1e-5)
    versions = cast("list[dict[str, object]]", tokens["versions"])
    assert [(each["version"], each["num_tokens"]) for each in versions] == [("1.0", 1), ("1.1", 3)]
    assert seen["text"] == "<b>4</b>"  # as it is: the page puts it in as text
    assert seen["seed"] == str(2**62)


def test_the_gap_to_the_trainer_is_shown_where_the_ledger_keeps_it(found: GroupRecords) -> None:
    def seen(gap: bytes | None) -> dict[str, object]:
        own = outcome()
        told = replace(own, members=(replace(own.members[0], logprob_gap=gap), *own.members[1:]))
        found.records = [
            replace(each, record=told) if isinstance(each.record, Outcome) else each for each in found.records
        ]
        values = tokens_json(found, place=(0, ""), skip=1, tokenizer=None, standing=(frozenset({0}), "grpo"))
        assert values is not None
        return cast("dict[str, object]", orjson.loads(orjson.dumps(values))["tokens"])

    kept = seen(pack_f16([-0.5, 0.25, math.nan, -2.0]))
    assert (kept["trainer_gap"], kept["trainer_gap_why"]) == ([-0.25, None, 2.0], "")
    for gap in (None, pack_f16([1.0])):  # of another length: not of this completion
        assert (seen(gap)["trainer_gap"], seen(gap)["trainer_gap_why"]) != (None, "")


def test_a_member_of_which_no_sample_was_read_is_named(found: GroupRecords) -> None:
    found.records = [each for each in found.records if getattr(each.record, "member", None) != 1]
    view = group_json(found, surviving=frozenset({0}), advantage="grpo")
    assert cast("dict[str, object]", view["advantage"])["why"] == "not all of its samples were found"
    assert tokens_json(found, place=(1, ""), skip=0, tokenizer=None, standing=(frozenset({0}), "grpo")) is None


def test_long_completions_come_in_parts() -> None:
    source = RecordSource(RUN, data_partitions=1)
    source.put(PROMPTS, prompt(0), partition=0)
    long = replace(sample(0, 0), completion_tokens=pack_i32(range(MAX_TOKENS + 5)), logprobs=None, loss_mask=b"")
    source.put(SAMPLES, long, partition=0)
    records = Finder(source).find(0, ledger=[])
    standing: tuple[frozenset[int], str | None] = (frozenset(), None)
    first = tokens_json(records, place=(0, ""), skip=0, tokenizer=None, standing=standing)
    rest = tokens_json(records, place=(0, ""), skip=MAX_TOKENS, tokenizer=None, standing=standing)
    assert first is not None
    assert rest is not None
    assert len(cast("list[int]", cast("dict[str, object]", first["tokens"])["ids"])) == MAX_TOKENS
    assert cast("dict[str, object]", rest["tokens"])["ids"] == list(range(MAX_TOKENS, MAX_TOKENS + 5))


def test_every_algorithm_has_the_advantage_that_the_learner_gives_it() -> None:
    assert {name: parts.advantage for name, parts in algorithms.ALGORITHMS.items()} == OF_ALGORITHM


def test_an_advantage_of_a_plug_in_is_not_made_up() -> None:
    seen = advantages_of(outcome(), {0: sample(0, 0), 1: sample(0, 1)}, name="mine:advantage")
    assert seen.values == {}
    assert "plug-in" in seen.why


def test_pieces_add_up_to_the_text_and_a_character_is_whole_at_its_last_token() -> None:
    alphabet = {"Ġ": 0, "a": 1, "Ã": 2, "¼": 3, "b": 4}  # the bytes of a space, a, ü and b
    tokenizer = RealTokenizer(BPE(vocab=alphabet, merges=[]))
    tokenizer.decoder = ByteLevel()
    assert pieces_of(tokenizer, [1, 2, 3, 0, 4]) == ("a", "", "ü", " ", "b")


def test_a_model_folder_without_a_tokenizer_says_so() -> None:
    with pytest.raises(TokenizerMissing, match="settings are not at hand"):
        load_tokenizer(None)
