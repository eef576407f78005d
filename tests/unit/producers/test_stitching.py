"""Completions of several engines put together: lengths, versions and log-probabilities, as properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.base import FINISH_ABORT, FINISH_LENGTH, PROCESSED, Generation, PromptTokens
from producers.rollout.groups import GroupInFlight
from producers.rollout.partials import partial_of
from producers.rollout.samples import Attempt
from producers.rollout.stitching import joined, open_member, unusable
from schemas.packed import pack_f32, pack_i32, unpack_f32, unpack_i32
from schemas.records import Partial, PartialMember, PromptGroup, SamplingParams, Version, VersionRun, birth_version
from schemas.validation import check_sample
from tests.unit.schemas.examples import PARTIAL, PROMPT

MAX_TOKENS = 64
PROMPT_TOKENS = PromptTokens(text="abc", tokens=np.array([7, 8, 9], dtype=np.int32))
PIECE = st.tuples(st.integers(0, 9), st.integers(1, 3), st.booleans())  # tokens, step of the version, verified
MEMBERS = st.lists(st.lists(PIECE, min_size=1, max_size=4), min_size=1, max_size=4)


def generation(name: str, pieces: list[tuple[int, int, bool]], *, first: int, reason: str) -> Generation:
    """Tokens are numbered on; the log-probability says the token's number and the step."""
    runs = tuple(
        VersionRun(num_tokens=num, version=Version(lineage=1, step=step), verified=verified)
        for num, step, verified in pieces
        if num
    )
    num = sum(run.num_tokens for run in runs)
    tokens = np.arange(first, first + num, dtype=np.int32)
    return Generation(
        request_id=name,
        tokens=tokens,
        text="",
        logprobs=np.asarray(-tokens / 8, dtype=np.float32),
        logprobs_kind=PROCESSED,
        version_runs=runs,
        finish_reason=reason,
    )


def prompt(size: int) -> PromptGroup:
    return replace(PROMPT, group_size=size, sampling=SamplingParams(max_tokens=MAX_TOKENS))


def attempt(size: int, name: str, *, started_unix_ms: int = 0) -> GroupInFlight[str]:
    made = Attempt(prompt=prompt(size), attempt=name, producer=name, started_unix_ms=started_unix_ms)
    return GroupInFlight(ticket="t", attempt=made, tokens=PROMPT_TOKENS)


@given(MEMBERS)
def test_a_group_over_many_engines_is_as_long_as_its_pieces_and_keeps_what_each_made(
    members: list[list[tuple[int, int, bool]]],
) -> None:
    size = len(members)
    group, partial = attempt(size, "0"), None
    for hop in range(max(map(len, members))):
        last = hop + 1 == max(map(len, members))
        for member, request in group.requests().items():
            ours = members[member]
            ends = last or hop + 1 >= len(ours)
            piece = [ours[hop]] if hop < len(ours) else []
            made = generation(
                request.request_id,
                [(max(1, num), step, verified) for num, step, verified in piece] if ends else piece,
                first=request.num_made,
                reason=FINISH_LENGTH if ends else FINISH_ABORT,
            )
            if ends:
                group.ended(member, made, unix_ms=10 * (hop + 1))
            else:
                group.left(member, made, unix_ms=10 * (hop + 1))
        assert group.is_through
        if not group.parts:
            break
        parted = group.parted()
        partial = partial_of(parted, producer="p", holder="", taker="", reason="retired", unix_ms=0)  # type: ignore[arg-type]
        assert unusable(partial, prompt(size)) == ""
        group = attempt(size, str(hop + 1), started_unix_ms=10 * (hop + 1))
        group.go_on(partial)
    finished = group.finished()
    assert len({sample.attempt for sample in finished.samples}) == 1
    for sample, pieces in zip(finished.samples, members, strict=True):
        check_sample(sample, group_size=size)
        tokens = unpack_i32(sample.completion_tokens)
        assert tokens.tolist() == list(range(len(tokens)))
        assert sample.logprobs is not None
        assert np.array_equal(unpack_f32(sample.logprobs), -tokens.astype(np.float32) / 8)
        said = [(run.version.step, run.verified) for run in sample.version_runs for _ in range(run.num_tokens)]
        wanted = [(step, verified) for num, step, verified in pieces for _ in range(num)]
        assert said[: len(wanted)] == wanted, "at most one token more, of the last piece"
        assert len(said) - len(wanted) <= 1
        assert all(one != other for one, other in zip(sample.version_runs, sample.version_runs[1:], strict=False))
        assert sample.finished_unix_ms - sample.started_unix_ms == 10 * min(len(pieces), 10)
    assert partial is None or partial.born == birth_version_of(partial)


def birth_version_of(partial: Partial) -> Version | None:
    runs = tuple(run for member in partial.members for run in member.version_runs)
    return birth_version(runs) if runs else None


def member(number: int = 0, **fields: object) -> PartialMember:
    whole: dict[str, object] = {
        "tokens": pack_i32([1, 2]),
        "logprobs": pack_f32([0, 0]),
        "version_runs": (VersionRun(num_tokens=2, version=Version(lineage=1, step=1)),),
    }
    return PartialMember(member=number, **{**whole, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "members"),
    [
        ("1 members", (member(),)),
        ("members, or others", (member(1), member(0))),
        ("bytes of tokens", (member(), member(1, logprobs=b""))),
        ("bytes of tokens", (member(), member(1, tokens=b"123", logprobs=b"123"))),
        ("version runs", (member(), member(1, version_runs=()))),
        ("ended without a token", (member(), PartialMember(member=1, finish_reason="stop"))),
        ("no end", (member(), member(1, tokens=pack_i32(range(64)), logprobs=pack_f32([0.0] * 64),
                    version_runs=(VersionRun(num_tokens=64, version=Version(lineage=1, step=1)),)))),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_not_gone_on_with(what: str, members: tuple[PartialMember, ...]) -> None:
    wanted = prompt(2)
    given_up = replace(PARTIAL, prompt=wanted, members=members)
    assert what in unusable(given_up, wanted)
    assert unusable(replace(given_up, members=(member(), member(1))), wanted) == ""
    assert unusable(given_up, prompt(3)) == "it is of another prompt"


def test_a_stretch_that_goes_on_with_the_same_version_is_one_run() -> None:
    first = open_member(0, generation("a", [(2, 1, True)], first=0, reason=FINISH_ABORT), spent_ms=5)
    whole = joined(first, generation("a", [(3, 1, True), (1, 2, True)], first=2, reason=FINISH_LENGTH))
    assert [(run.num_tokens, run.version.step) for run in whole.version_runs] == [(5, 1), (1, 2)]
