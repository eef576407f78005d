"""The scheduler over the memory log: waves, forged records, lost events."""

from __future__ import annotations

import pytest

from schemas.errors import LogError
from schemas.records import DeadLetter, Version
from tests.unit.consumers.rewards.helpers import read_all
from tests.unit.consumers.scheduler.rig import Rig, engines_heard, turn_until
from topics.catalog import DEAD_LETTERS
from topics.clock import ManualClock


def test_a_false_manifest_is_not_published_and_named_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.unbacked.PATIENCE_S", 0.1)
    rig.stage_version(1, 3)
    rig.stage_version(1, 10**9, backed=False)
    rig.stage_version(40, 0, backed=False)
    scheduler = rig.scheduler()
    turn_until(scheduler, lambda: len(rig.notices("manifest_ignored")) == 2)
    rig.stage_version(1, 4)
    turn_until(scheduler, lambda: rig.published() == ["1.3", "1.4"])
    named = [(event.details["version"], event.details["trained"]) for event in rig.notices("manifest_ignored")]
    assert named == [("1.1000000000", "1.3"), ("40.0", "1.3")]


def test_a_command_for_a_version_that_nobody_made_is_replaced(rig: Rig) -> None:
    rig.stage_version(1, 3)
    rig.command("publish", version=Version(lineage=1, step=10**9))
    scheduler = rig.scheduler()
    scheduler.turn()
    assert rig.published() == ["1.1000000000", "1.3"]


def test_a_forged_epoch_is_a_dead_letter_and_the_next_epoch_is_ours(rig: Rig) -> None:
    rig.command("heartbeat", epoch=7)
    rig.command("publish", epoch=2**63 - 1, version=Version(lineage=1, step=3))
    rig.stage_version(1, 3)
    scheduler = rig.scheduler()
    scheduler.turn()
    (letter,) = read_all(rig.log, DEAD_LETTERS)
    assert isinstance(letter, DeadLetter)
    assert "epoch 9223372036854775807" in letter.error
    assert [(command.epoch, str(command.version)) for command in rig.commands("publish")] == [(8, "1.3")]


def test_the_last_epoch_of_all_has_no_successor_and_says_so(rig: Rig) -> None:
    rig.command("heartbeat", epoch=2**53)
    with pytest.raises(LogError, match="epoch 9007199254740992 is on the commands topic"):
        rig.scheduler()


def test_waves_follow_the_swaps_of_engines_at_once(rig: Rig) -> None:
    """Between two decisions that nothing calls for lie 1,000 s here: only the swaps can have brought them on."""
    engines = {name: rig.engine(name) for name in ("a", "b", "c", "d")}
    scheduler = rig.scheduler(interval_s=1000.0, heartbeat_s=1000.0, publish_bytes_s=5e6)
    for engine in engines.values():
        rig.swap(engine, step=0)
    turn_until(scheduler, lambda: len(engines_heard(scheduler)) == 4)
    rig.stage_version(1, 1)
    turn_until(scheduler, lambda: rig.waves() == ["1.1 ab|cd"])
    rig.swap(engines["b"], step=1)
    rig.swap(engines["a"], step=1)
    turn_until(scheduler, lambda: rig.waves()[1:] == ["1.1 ab cd|"])
    rig.stage_version(1, 2)
    turn_until(scheduler, lambda: rig.waves()[2:] == ["1.2 cd|ab"])
    assert {rate for command in rig.commands("publish") for rate in command.rates.items()} == {("weights", 5e6)}
    assert rig.commands("publish")[1].reason == "wave 2 of 2: the engines before it are done or gone"


def test_a_restarted_scheduler_goes_on_with_the_waves_that_stand(rig: Rig) -> None:
    engines = {name: rig.engine(name) for name in ("a", "b")}
    first = rig.scheduler()
    for engine in engines.values():
        rig.swap(engine, step=0)
    turn_until(first, lambda: len(engines_heard(first)) == 2)
    rig.stage_version(1, 1)
    turn_until(first, lambda: rig.waves() == ["1.1 a|b"])
    second = rig.scheduler(settle_s=1000.0)
    rig.swap(engines["a"], step=1)
    turn_until(second, lambda: len(rig.commands("heartbeat")) >= 4)
    assert rig.waves() == ["1.1 a|b"], "b has not been heard by the new one"
    rig.swap(engines["b"], step=0)
    turn_until(second, lambda: rig.waves()[1:] == ["1.1 a b|"])
    assert rig.commands("publish")[-1].epoch == 2


def test_a_killed_engine_does_not_hold_up_the_others(rig: Rig) -> None:
    """By a clock that moves as the scheduler waits."""
    rig.clock = clock = ManualClock()
    engines = {name: rig.engine(name) for name in ("a", "b")}
    scheduler = rig.scheduler(silence_s=5.0, wave_limit_s=1000.0)
    for engine in engines.values():
        rig.swap(engine, step=0)
    turn_until(scheduler, lambda: len(engines_heard(scheduler)) == 2)
    rig.stage_version(1, 1)
    turn_until(scheduler, lambda: rig.waves() == ["1.1 a|b"])

    def released() -> bool:
        clock.advance(0.1)
        engines["b"].events.heartbeat()
        return rig.waves()[1:] == ["1.1 a b|"]

    turn_until(scheduler, released)
    assert rig.waves()[0] == "1.1 a|b"


def test_events_that_retention_took_are_counted_and_reading_goes_on(rig: Rig) -> None:
    """Case 8: the scheduler stood still for so long that part of the events is gone."""
    scheduler = rig.scheduler()
    scheduler.turn()
    engine = rig.engine("a")
    for _ in range(20):
        engine.events.heartbeat()
    assert scheduler._reader is not None
    wanted = scheduler._reader.positions()["events", 0]
    _, end = rig.log.admin().describe()["events"][0]
    rig.log.delete_records({("events", 0): end - 5})
    rig.swap(engine, step=0)
    turn_until(scheduler, lambda: engines_heard(scheduler) == ["a"])
    lost = rig.notices("offsets_lost")
    assert [event.gauges["num_lost"] for event in lost] == [end - 5 - wanted]
    assert [event.gauges["resumed_at"] for event in lost] == [end - 5]
