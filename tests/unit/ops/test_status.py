"""Which processes of a run are at work, as `status` and `runs list` tell it."""

from __future__ import annotations

from collections.abc import Mapping

from ops.cli.status import lines_of
from ops.runs import last_heard_ms
from ops.status import RunStatus, processes_of
from schemas.records import StageEvent

NOW_MS = 1_790_000_000_000


def event(
    instance: str, *, ago_s: float, name: str = "heartbeat", details: Mapping[str, str] | None = None
) -> StageEvent:
    return StageEvent(
        run="r",
        stage=instance.partition("-")[0],
        instance=instance,
        kind="heartbeat" if name == "heartbeat" else "notice",
        name=name,
        seq=0,
        details=details if details is not None else {},
        monotonic_s=0.0,
        unix_ms=NOW_MS - int(ago_s * 1000),
    )


def status(*events: StageEvent, sealed: bool = False) -> RunStatus:
    return RunStatus(
        run="r",
        processes=processes_of(events, sealed_ms=NOW_MS - 60_000 if sealed else None),
        lag=(),
        lineage=1,
        step=4,
        num_closed=0,
        num_prompts=0,
        sealed=sealed,
        quiet_s=5.0,
    )


def shown(seen: RunStatus, *, show_all: bool = False) -> str:
    return "\n".join(lines_of(seen, now_ms=NOW_MS, show_all=show_all))


def rollout(pid: int, *, ago_s: float, slot: int) -> StageEvent:
    return event(f"rollout-vm-{pid}-aaaaaa", ago_s=ago_s, details={"slot": str(slot), "phase": "generating"})


def test_a_process_that_is_not_heard_is_marked() -> None:
    lines = shown(status(rollout(1, ago_s=114, slot=0), rollout(2, ago_s=1, slot=1))).splitlines()
    assert next(line for line in lines if "vm-1-" in line).split() == [
        *["rollout", "not", "heard", "for", "114", "s", "114", "s", "-"],
        "rollout-vm-1-aaaaaa",
    ]
    assert next(line for line in lines if "vm-2-" in line).split()[:2] == ["rollout", "generating"]
    assert "last: generating" in "\n".join(lines)
    assert max(map(len, lines)) <= 80


def test_a_process_that_another_one_of_its_slot_succeeded_is_gone() -> None:
    events = (rollout(1, ago_s=114, slot=0), rollout(2, ago_s=1, slot=0), rollout(3, ago_s=114, slot=1))
    text = shown(status(*events))
    assert "vm-1-" not in text
    assert "rollout-vm-3-aaaaaa" in text
    assert "(1 gone; --all shows them)" in text


def test_what_a_sealed_run_left_behind_is_gone() -> None:
    seen = status(rollout(1, ago_s=114, slot=0), event("prompts-vm-2-aaaaaa", ago_s=20, name="stopped"), sealed=True)
    assert "(1 stopped, 1 gone; --all shows them)" in shown(seen)
    assert "generating" not in shown(seen, show_all=True)
    assert [line.split()[:2] for line in shown(seen, show_all=True).splitlines() if "-vm-" in line] == [
        ["prompts", "stopped"],
        ["rollout", "gone"],
    ]


def test_rewards_have_their_names() -> None:
    lines = shown(
        status(
            *(
                event(f"reward-vm-{pid}-aaaaaa", ago_s=0, details={"reward": name, "phase": "scoring"})
                for pid, name in ((1, "sum"), (2, "brevity"))
            )
        )
    )
    assert "reward sum     scoring" in lines
    assert "reward brevity scoring" in lines


def test_a_run_is_not_running_when_all_its_processes_said_that_they_stopped() -> None:
    events = [
        *((event(f"{stage}-vm-1-aaaaaa", ago_s=ago_s), 100) for stage in ("learner", "prompts") for ago_s in (1, 0)),
        (event("learner-vm-1-aaaaaa", ago_s=0, name="stopped"), 200),
        (event("prompts-vm-1-aaaaaa", ago_s=0, name="stopped"), 300),
    ]
    assert last_heard_ms(events) == (300, 0)
    assert last_heard_ms(events[:-1]) == (200, 100)
    assert last_heard_ms([]) == (None, 0)


def test_who_scores_after_the_end_is_listed_apart() -> None:
    began = event("learner-vm-1-aaaaaa", ago_s=61)
    ended = event("learner-vm-1-aaaaaa", ago_s=60, name="stopped")
    late = event("reward-vm-2-aaaaaa", ago_s=1, details={"reward": "brevity", "phase": "scoring"})
    lines = shown(status(began, ended, late, sealed=True)).splitlines()
    at = lines.index("after the run's end:")
    assert lines[at - 1] == "(1 stopped; --all shows them)"
    assert lines[at + 1].split()[:3] == ["reward", "brevity", "scoring"]
    assert "brevity" not in "".join(lines[:at])
    assert "after the run's end:" not in shown(status(began, late), show_all=True), "it is not over"
