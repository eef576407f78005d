"""What joins a run after its end is told apart from what took part in it."""

from __future__ import annotations

from ops.live.late import SILENT_MS, LateComers
from schemas.records import StageEvent


def event(who: str, *, at_s: float, stops: bool = False) -> StageEvent:
    return StageEvent(
        run="r",
        stage=who.partition("-")[0],
        instance=who,
        kind="notice" if stops else "heartbeat",
        name="stopped" if stops else "heartbeat",
        seq=round(at_s * 10),
        monotonic_s=at_s,
        unix_ms=round(at_s * 1000),
    )


def ended() -> LateComers:
    late = LateComers()
    for who in ("learner-h-1", "reward-h-2", "supervisor-h-3"):
        assert not late.add(event(who, at_s=1))
    for who in ("learner-h-1", "reward-h-2", "supervisor-h-3"):
        assert not late.add(event(who, at_s=10, stops=True))
    return late


def test_who_joins_when_all_have_stopped_is_late() -> None:
    late = ended()
    assert late.add(event("reward-h-9", at_s=11))
    assert late.add(event("reward-h-9", at_s=12, stops=True))
    assert "reward-h-9" in late
    assert not late.add(event("learner-h-1", at_s=13)), "a last word of one that stopped is the run's"


def test_who_joins_while_one_is_at_work_is_of_the_run() -> None:
    late = LateComers()
    late.add(event("learner-h-1", at_s=1))
    assert not late.add(event("reward-h-2", at_s=2))
    assert not late.add(event("reward-h-9", at_s=2 + SILENT_MS / 1000))
    killed = LateComers()
    killed.add(event("learner-h-1", at_s=1))
    assert killed.add(event("reward-h-9", at_s=2 + SILENT_MS / 1000)), "silence for long is an end, too"


def test_a_reward_that_is_heard_first_is_no_late_comer() -> None:
    assert not LateComers().add(event("reward-h-2", at_s=1))


def test_a_run_that_goes_on_takes_them_in() -> None:
    late = ended()
    assert late.add(event("reward-h-9", at_s=11))
    assert not late.add(event("supervisor-h-4", at_s=12))
    assert not late.add(event("reward-h-9", at_s=13))


def test_after_the_seal_who_joins_is_late_though_others_are_at_work() -> None:
    late = LateComers(sealed_ms=5_000)
    late.add(event("supervisor-h-1", at_s=1))
    assert not late.add(event("reward-h-2", at_s=4))
    assert late.add(event("reward-h-9", at_s=6))
    assert not late.add(event("reward-h-2", at_s=6))
