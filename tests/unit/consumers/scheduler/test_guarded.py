"""Policies that raise or return nonsense: `static` decides in their place, and it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from consumers.scheduler.guarded import GuardedPolicy
from consumers.scheduler.policy import CommandDraft, Policy, decide
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Snapshot
from tests.unit.consumers.scheduler.test_policy import snapshot, version

SETTINGS = SchedulerSettings()
SEEN = snapshot(staged=(version(1, 0),), heartbeat_s=None)
DRAFT = CommandDraft(target="rollout", kind="scale", reason="a test", replicas=2)


def of(returned: object) -> Policy:
    return cast("Policy", lambda _snapshot, _settings: returned)


@pytest.mark.parametrize(
    "returned",
    [None, {"rollout": 2}, (DRAFT,), [DRAFT, "more"], [replace(DRAFT, replicas="many")]],  # type: ignore[arg-type]
    ids=["nothing", "a table", "no list", "one that is no draft", "no number"],
)
def test_what_is_no_list_of_drafts_is_told_and_static_decides(returned: object) -> None:
    told: list[str] = []
    assert GuardedPolicy(of(returned), tell=told.append).decide(SEEN, SETTINGS) == decide(SEEN, SETTINGS) != []
    assert len(told) == 1
    assert told[0].startswith("TypeError: ")


def test_one_that_raises_is_told_at_once_and_then_once_a_minute() -> None:
    def fail(snapshot: Snapshot, settings: SchedulerSettings) -> list[CommandDraft]:
        raise KeyError("what a shame")

    told: list[str] = []
    guarded = GuardedPolicy(fail, tell=told.append)
    for later_s in (0, 1, 59, 60, 61):
        at = replace(SEEN, now_s=SEEN.now_s + later_s)
        assert guarded.decide(at, SETTINGS) == decide(at, SETTINGS)
    assert told == ["KeyError: 'what a shame'"] * 2


def test_what_a_good_one_decides_is_taken() -> None:
    assert GuardedPolicy(of([DRAFT]), tell=pytest.fail).decide(SEEN, SETTINGS) == [DRAFT]
