"""Folding events, manifests and lag."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from consumers.scheduler.lag_watch import LagWatch, total
from consumers.scheduler.signals import Signals
from consumers.scheduler.snapshot import Standing
from pipeline.history import LedgerView
from schemas.errors import LogUnavailable
from schemas.records import LineageStarted, Outcome, StageEvent, Version
from topics.catalog import SAMPLES, Topic
from topics.clock import ManualClock
from topics.log import PartitionLag
from topics.memory import MemoryBroker
from topics.memory.log import MemoryAdmin


def event(seq: int, kind: str, name: str, **changes: object) -> StageEvent:
    values: dict[str, object] = {"stage": "rollout", "instance": "rollout-1", "monotonic_s": 1e9, "unix_ms": 0}
    return StageEvent(run="r", seq=seq, kind=kind, name=name, **(values | changes))  # type: ignore[arg-type]


def ledger_to(step: int) -> LedgerView:
    """A first lineage that trained `step` steps."""
    ledger = LedgerView(1)
    ledger.add(0, LineageStarted(run="r", lineage=1, parent=0, branch_step=0, seq=0, holder="h", started_unix_ms=0))
    if step:
        ledger.add(0, trained(step))
    return ledger


def trained(step: int) -> Outcome:
    return Outcome(run="r", group=step, lineage=1, step=step, seq=step, result="trained", members=(), closed_unix_ms=0)


def folded(*events: tuple[float, StageEvent]) -> Signals:
    signals = Signals(began_s=0.0, ledger=LedgerView(1))
    for now_s, one in events:
        signals.add_event(one, now_s=now_s)
    return signals


def seen_at(signals: Signals, now_s: float) -> dict[str, tuple[str, float, float]]:
    snapshot = signals.snapshot(now_s=now_s, lag={}, standing=Standing())
    return {one.instance: (one.phase, one.phase_since_s, one.age_s(now_s)) for one in snapshot.instances}


def test_phases_and_ages_are_by_the_local_clock() -> None:
    signals = folded((1.0, event(0, "phase_began", "generating")), (2.0, event(1, "heartbeat", "heartbeat")))
    assert seen_at(signals, 5.0) == {"rollout-1": ("generating", 1.0, 3.0)}


def test_a_heartbeat_tells_the_phase_to_who_came_late() -> None:
    signals = folded((4.0, event(7, "heartbeat", "heartbeat", details={"phase": "swapping"})))
    assert seen_at(signals, 4.0) == {"rollout-1": ("swapping", 4.0, 0.0)}


def test_an_older_event_changes_nothing() -> None:
    signals = folded((1.0, event(5, "phase_began", "generating")), (2.0, event(4, "phase_began", "starting")))
    assert seen_at(signals, 2.0) == {"rollout-1": ("generating", 1.0, 1.0)}


def test_gauges_are_those_of_the_last_heartbeat_without_nan() -> None:
    signals = folded(
        (1.0, event(0, "heartbeat", "heartbeat", gauges={"a": 1.0, "b": float("nan")})),
        (2.0, event(1, "notice", "started", gauges={"a": 9.0})),
    )
    (one,) = signals.snapshot(now_s=2.0, lag={}, standing=Standing()).instances
    assert one.gauges == {"a": 1.0}


def test_the_version_served_stays_known() -> None:
    signals = folded(
        (1.0, event(0, "heartbeat", "heartbeat", version=Version(lineage=1, step=2))),
        (2.0, event(1, "phase_began", "swapping")),
    )
    assert signals.snapshot(now_s=2.0, lag={}, standing=Standing()).served() == {
        "rollout-1": Version(lineage=1, step=2)
    }


def test_stopped_and_silent_instances_go() -> None:
    signals = folded(
        (1.0, event(0, "notice", "started")),
        (2.0, event(0, "notice", "started", instance="rollout-2")),
        (3.0, event(1, "notice", "stopped")),
    )
    assert list(seen_at(signals, 3.0)) == ["rollout-2"]
    assert signals.forget_silent(now_s=12.0, after_s=10.0) == []
    assert signals.forget_silent(now_s=12.1, after_s=10.0) == ["rollout-2"]


def staged(signals: Signals) -> list[str]:
    return [str(version) for version in signals.snapshot(now_s=0, lag={}, standing=Standing()).staged]


def test_what_an_instance_says_after_its_good_bye_does_not_bring_it_back() -> None:
    """The phase it was in ends last."""
    signals = folded(
        (1.0, event(0, "phase_began", "generating")),
        (2.0, event(1, "notice", "stopped")),
        (2.0, event(2, "phase_ended", "generating", gauges={"spent_s": 1.0})),
    )
    assert seen_at(signals, 2.0) == {}


def test_a_pruned_manifest_is_not_staged() -> None:
    signals = Signals(began_s=0.0, ledger=ledger_to(3))
    for step in (2, 1, 3):
        signals.add_manifest(Version(lineage=1, step=step))
    signals.prune_manifest(Version(lineage=1, step=1))
    assert staged(signals) == ["1.2", "1.3"]


def test_a_manifest_is_staged_once_the_ledger_shows_its_step_as_trained() -> None:
    ledger = ledger_to(1)
    signals = Signals(began_s=0.0, ledger=ledger)
    for version in (Version(lineage=1, step=2), Version(lineage=1, step=10**9), Version(lineage=7, step=0)):
        signals.add_manifest(version)
    assert staged(signals) == []
    ledger.add(0, trained(2))
    snapshot = signals.snapshot(now_s=0, lag={}, standing=Standing())
    assert (staged(signals), str(snapshot.horizon)) == (["1.2"], "1.2")


def test_the_domain_comes_with_heartbeats_and_a_good_bye_is_remembered_for_a_while() -> None:
    signals = folded(
        (1.0, event(0, "heartbeat", "heartbeat", details={"domain": "east", "phase": "generating"})),
        (1.0, event(1, "heartbeat", "heartbeat")),
        (2.0, event(0, "notice", "stopped", instance="rollout-2")),
    )
    snapshot = signals.snapshot(now_s=2.0, lag={}, standing=Standing())
    assert [one.domain for one in snapshot.instances] == ["east"]
    assert snapshot.stopped == {"rollout-2"}
    signals.forget_silent(now_s=12.1, after_s=10.0)
    assert signals.snapshot(now_s=12.1, lag={}, standing=Standing()).stopped == frozenset()


def lag(records: int | None) -> PartitionLag:
    return PartitionLag(topic="samples", partition=0, committed=0, end=0, lag_records=records)


@pytest.mark.parametrize(
    ("parts", "sum_records"),
    [([], None), ([0, 0], 0), ([2, 3], 5), ([2, None], None), ([None], None), ([3, -2], None)],
)
def test_a_sum_with_an_unknown_part_is_unknown(parts: list[int | None], sum_records: int | None) -> None:
    """Case 47: no commits, an error, a negative answer."""
    assert total([lag(part) for part in parts]) == sum_records


class _Admin(MemoryAdmin):
    """The memory admin, with a lag that tests set; as a broker away, or slow."""

    answer: list[PartitionLag] | LogUnavailable = LogUnavailable("no broker")
    gate: threading.Event | None = None

    def lag(self, group: str, topics: Sequence[Topic]) -> list[PartitionLag]:
        if self.gate is not None:
            self.gate.wait(10)
        if isinstance(self.answer, LogUnavailable):
            raise self.answer
        return self.answer


def lag_watch(clock: ManualClock) -> tuple[LagWatch, _Admin]:
    admin = _Admin(MemoryBroker(), run="r", data_partitions=1)
    return LagWatch(admin, clock=clock, interval_s=5.0, max_age_s=30.0), admin


def test_an_error_makes_lag_unknown_and_an_old_answer_too() -> None:
    """Case 47."""
    clock = ManualClock()
    watch, admin = lag_watch(clock)
    wanted = [("g", SAMPLES)]
    watch.measure(wanted)
    assert watch.latest() == {("g", "samples"): None}
    admin.answer = [lag(7)]
    watch.measure(wanted)
    assert watch.latest() == {("g", "samples"): 7}
    clock.advance(30.1)
    assert watch.latest() == {("g", "samples"): None}


def test_a_slow_broker_holds_nobody_up() -> None:
    clock = ManualClock()
    watch, admin = lag_watch(clock)
    admin.answer, admin.gate = [lag(7)], threading.Event()
    watch.refresh([("g", SAMPLES)])
    assert watch.latest() == {}
    clock.advance(100.0)
    watch.refresh([("g", SAMPLES)])  # one is under way: no second one
    admin.gate.set()
    watch.join(10.0)
    assert watch.latest() == {("g", "samples"): 7}


def test_an_engine_that_was_killed_and_comes_back_serves_nothing_until_it_swapped() -> None:
    """Case 40: up, at version 20 before, and not ready: neither its predecessor's version nor version 0 is its own."""
    v20, back = Version(lineage=1, step=20), {"instance": "rollout-2"}
    signals = folded(
        (1.0, event(0, "heartbeat", "heartbeat", version=v20, details={"phase": "generating"})),
        (5.0, event(0, "notice", "started", **back)),
        (6.0, event(1, "heartbeat", "heartbeat", details={"phase": "waiting_for_weights"}, **back)),
    )
    assert signals.forget_silent(now_s=12.0, after_s=10.0) == ["rollout-1"]
    cold = signals.snapshot(now_s=12.0, lag={}, standing=Standing())
    assert cold.served() == {"rollout-2": None}
    assert [one.phase for one in cold.instances] == ["waiting_for_weights"]
    signals.add_event(event(2, "heartbeat", "heartbeat", version=v20, **back), now_s=13.0)
    assert signals.snapshot(now_s=13.0, lag={}, standing=Standing()).served() == {"rollout-2": v20}
