"""Who is missing, by the heartbeats that still arrive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from consumers.learner.ranks.missing import MissingRanks
from pipeline.settings import RunSettings
from pipeline.stage import StageContext, make_context
from schemas.errors import LogUnavailable
from topics.clock import ManualClock
from topics.log import Reader
from topics.memory import MemoryLog

NAMES = {0: "learner.0-host-1-aa", 1: "learner.1-host-2-bb", 2: "learner.2-host-3-cc"}


@dataclass
class Beats(ManualClock):
    """While somebody waits, those that live send a heartbeat."""

    living: tuple[StageContext, ...] = ()

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        for context in self.living:
            context.events.heartbeat()


@pytest.fixture
def clock() -> Beats:
    return Beats()


@pytest.fixture
def contexts(tmp_path: Path, clock: Beats) -> dict[int, StageContext]:
    log = MemoryLog(run="r", data_partitions=4)
    run = RunSettings(name="r", dir=tmp_path, heartbeat_s=0.1)
    return {
        rank: make_context(log, run=run, stage="learner", instance=name, clock=clock) for rank, name in NAMES.items()
    }


def said(context: StageContext) -> str:
    missing = MissingRanks(context=context, instances=NAMES, limit_s=7.0)
    return missing("summing gradients", RuntimeError("Connection closed\nand a long trace")).message


def test_a_rank_that_is_not_heard_is_named(contexts: dict[int, StageContext], clock: Beats) -> None:
    contexts[2].events.heartbeat()  # the last one, before it died
    clock.living = (contexts[0], contexts[1])
    message = said(contexts[1])
    assert "learner rank 2 is missing: learner.2-host-3-cc is not heard" in message
    assert "summing gradients: Connection closed)" in message
    assert "rank 0" not in message


def test_several_may_be_missing(contexts: dict[int, StageContext], clock: Beats) -> None:
    clock.living = (contexts[1],)
    message = said(contexts[1])
    assert "rank 0 is missing" in message
    assert "rank 2 is missing" in message


def test_slow_ranks_are_heard(contexts: dict[int, StageContext], clock: Beats) -> None:
    clock.living = tuple(contexts.values())
    message = said(contexts[0])
    assert "all learner ranks are heard" in message
    assert "more than 7 s" in message


def test_nobody_is_accused_when_nothing_arrives(contexts: dict[int, StageContext]) -> None:
    assert "the broker does not answer" in said(contexts[0])


def test_nobody_is_accused_when_the_broker_refuses(
    contexts: dict[int, StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Reader:
        raise LogUnavailable("of the test")

    monkeypatch.setattr("topics.memory.reader.MemoryReader.poll", fail)
    assert "the broker does not answer" in said(contexts[0])
