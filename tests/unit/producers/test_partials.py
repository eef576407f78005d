"""What is remembered of groups given up: the newest, of open groups, within a bound, and only what counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.history import LedgerView
from pipeline.settings import RunSettings
from producers.rollout.partials import Partials
from schemas.records import LineageStarted, MemberOutcome, Outcome, Partial, Version, VersionRun
from tests.unit.schemas.examples import PARTIAL, SAMPLE
from topics.log import Envelope


def lineage(number: int, *, parent: int = 0, branch_step: int = 0) -> LineageStarted:
    return LineageStarted(
        run="demo", lineage=number, parent=parent, branch_step=branch_step, seq=0, holder="l", started_unix_ms=0
    )


def outcome(group: int, *, step: int, lineage: int = 1) -> Outcome:
    return Outcome(
        run="demo",
        group=group,
        lineage=lineage,
        step=step,
        seq=1,
        result="trained",
        members=(MemberOutcome(member=0, result="trained"),),
        closed_unix_ms=0,
    )


def partial(group: int, *, step: int = 5, attempt: str = "a") -> Partial:
    version = Version(lineage=1, step=step)
    members = tuple(
        replace(member, version_runs=(VersionRun(num_tokens=2, version=version),) if member.tokens else ())
        for member in PARTIAL.members
    )
    return replace(PARTIAL, group=group, attempt=attempt, born=version, members=members)


def envelope(record: Partial, *, num_bytes: int = 100) -> Envelope:
    return Envelope(
        topic="partials",
        partition=0,
        offset=0,
        key=None,
        record=record,
        headers={},
        unix_ms=0,
        num_bytes=num_bytes,
    )


def made(*, horizon: int = 6, **fields: object) -> tuple[Partials, LedgerView]:
    ledger = LedgerView(1)
    ledger.add(0, lineage(1))
    ledger.add(0, outcome(1_000, step=horizon))
    run = RunSettings.model_validate({"name": "demo", "partitions": 1, "max_staleness": 2, **fields})
    return Partials(ledger, run=run, max_bytes=250), ledger


def test_the_newest_of_a_group_counts_and_is_news_once() -> None:
    partials, _ = made()
    for attempt in "ab":
        partials.add(envelope(partial(1, attempt=attempt)))
    assert [each.attempt for each in partials.news()] == ["b"]
    assert partials.news() == []
    found = partials.usable(1)
    assert found is not None
    assert found.attempt == "b"
    assert partials.num_bytes == 100


def test_nothing_is_kept_of_a_closed_group() -> None:
    partials, ledger = made()
    partials.add(envelope(partial(1)))
    ledger.add(0, outcome(2, step=6))
    partials.add(envelope(partial(2)))
    partials.forget(1)
    assert (partials.num_bytes, partials.news(), partials.usable(1), partials.usable(2)) == (0, [], None, None)


def test_the_oldest_go_when_there_are_too_many() -> None:
    partials, _ = made()
    for group in range(4):
        partials.add(envelope(partial(group)))
    assert [group for group in range(4) if partials.usable(group)] == [2, 3]
    partials.add(envelope(partial(9), num_bytes=251))
    assert partials.num_bytes == 0


@pytest.mark.parametrize(
    ("step", "horizon", "on_stale", "usable"),
    [(4, 6, "drop", True), (3, 6, "drop", False), (3, 6, "wait", False), (3, 6, "train", True), (7, 6, "train", False)],
    ids=["at the bound", "beyond it", "beyond it, wait", "no bound", "of the future"],
)
def test_age_is_counted_as_the_learner_counts_it(step: int, horizon: int, on_stale: str, usable: bool) -> None:
    partials, _ = made(horizon=horizon, on_stale=on_stale)
    partials.add(envelope(partial(1, step=step)))
    assert (partials.usable(1) is not None) == usable


def test_what_a_branch_left_behind_does_not_count() -> None:
    partials, ledger = made(on_stale="train")
    partials.add(envelope(partial(1, step=6)))
    partials.add(envelope(partial(2, step=4)))
    ledger.add(0, lineage(2, parent=1, branch_step=5))
    assert partials.usable(1) is None
    assert partials.usable(2) is not None


def test_other_records_are_nobodys_partial() -> None:
    partials, _ = made()
    partials.add(replace(envelope(PARTIAL), record=SAMPLE))
    assert partials.news() == []


def test_news_are_within_the_bound_too() -> None:
    """A process that starts reads all of the topic before it looks at the news for the first time."""
    partials, _ = made()
    for group in range(4):
        partials.add(envelope(partial(group)))
    assert len(partials._news) == 2
    assert [each.group for each in partials.news()] == [2, 3]
