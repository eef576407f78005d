"""Publishing in waves, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, Publishing, Snapshot, Standing
from consumers.scheduler.waves import Step, next_publish, num_at_once
from schemas.records import Version

SETTINGS = SchedulerSettings(silence_s=10.0, settle_s=5.0, wave_limit_s=30.0, keep_generating_share=0.5)
NOW_S = 1000.0


def v(step: int, lineage: int = 1) -> Version:
    return Version(lineage=lineage, step=step)


def engine(name: str, step: int | None, *, silent_s: float = 0.0, domain: str = "") -> InstanceSeen:
    return InstanceSeen(
        stage="rollout",
        instance=name,
        phase="generating",
        phase_since_s=0.0,
        heard_s=NOW_S - silent_s,
        seq=1,
        version=None if step is None else v(step),
        domain=domain,
    )


def seen(
    *engines: InstanceSeen,
    staged: int,
    publish: Publishing | None = None,
    observed_s: float = 100.0,
    horizon: Version | None = None,
    stopped: frozenset[str] = frozenset(),
) -> Snapshot:
    return Snapshot(
        now_s=NOW_S,
        observed_s=observed_s,
        instances=engines,
        staged=(v(staged),),
        horizon=horizon,
        stopped=stopped,
        standing=Standing(publish=publish),
    )


def waves(text: str) -> tuple[tuple[str, ...], ...]:
    """`ab c` is ("a", "b"), ("c",); `-` is an empty wave."""
    return tuple(tuple(part.replace("-", "")) for part in text.split())


def in_force(text: str, wave: int = 0, *, step: int = 1, since: Mapping[str, float] | None = None) -> Publishing:
    """The command in force; leave was given `since` so many seconds, else just now."""
    publish = Publishing(version=v(step), waves=waves(text), wave=wave)
    ages = since if since is not None else {}
    released = {name: NOW_S - ages.get(name, 0.0) for names in publish.released for name in names}
    return replace(publish, released_s=released)


def said(step: Step | None) -> str:
    """`1.2 ab|c d`: version, waves that may load | those that may not."""
    if step is None:
        return ""
    publish = step.publish
    parts = ["".join(names) if names else "-" for names in publish.waves]
    cut = publish.wave + 1
    return f"{publish.version} {' '.join(parts[:cut])}|{' '.join(parts[cut:])}"


ABCD = [engine(name, 0) for name in "abcd"]


@pytest.mark.parametrize(
    ("num_generating", "share", "expected"),
    [
        (0, 0.5, 1),
        (1, 0.5, 1),
        (2, 0.5, 1),
        (3, 0.5, 1),
        (4, 0.5, 2),
        (5, 0.5, 2),
        (8, 0.75, 2),
        (30, 0.1, 27),
        (2, 0.0, 1),
        (5, 0.0, 4),
        (5, 1.0, 1),
    ],
)
def test_how_many_may_stand_still(num_generating: int, share: float, expected: int) -> None:
    assert num_at_once(num_generating, share) == expected


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        # nobody, one, several
        (seen(staged=1), "1.1 |"),
        (seen(engine("a", 0), staged=1), "1.1 a|"),
        (seen(engine("a", 0), engine("b", 0), staged=1), "1.1 a|b"),
        (seen(*ABCD, staged=1), "1.1 ab|cd"),
        # furthest behind first, by name at last
        (seen(engine("a", 3), engine("b", 1), engine("c", 2), engine("d", 1), staged=4), "1.4 bd|ca"),
        # who serves it already needs no leave; who is silent is not waited for
        (seen(engine("a", 2), engine("b", 1), engine("c", 1), staged=2), "1.2 b|c"),
        (seen(engine("a", 0, silent_s=11), engine("b", 0), engine("c", 0), staged=1), "1.1 b|c"),
        # cold engines load without leave, and get it last
        (seen(engine("a", None), engine("b", 0), engine("c", 0), staged=1), "1.1 b|c a"),
        (seen(engine("a", None), engine("b", None), staged=1), "1.1 -|a b"),
        # one of each domain early
        (
            seen(
                engine("a", 0, domain="x"),
                engine("b", 0, domain="x"),
                engine("c", 0, domain="y"),
                engine("d", 0, domain="y"),
                staged=1,
            ),
            "1.1 ac|bd",
        ),
        # the next wave: when all before it are done, gone, silent or late
        (seen(engine("a", 1), engine("b", 0), *ABCD[2:], staged=1, publish=in_force("ab cd")), ""),
        (seen(engine("a", 1), engine("b", 1), *ABCD[2:], staged=1, publish=in_force("ab cd")), "1.1 ab cd|"),
        (seen(engine("a", 1), engine("c", 0), engine("d", 0), staged=1, publish=in_force("ab cd")), "1.1 ab c|d"),
        (
            seen(engine("a", 1), engine("b", 0, silent_s=11), *ABCD[2:], staged=1, publish=in_force("ab cd")),
            "1.1 ab c|d",
        ),
        (
            seen(engine("a", 1), *ABCD[1:], staged=1, publish=in_force("ab cd", since={"b": 30.0})),
            "1.1 ab cd|",
        ),
        (seen(engine("a", 1), *ABCD[1:], staged=1, publish=in_force("ab cd", since={"b": 29.9})), ""),
        # who is gone leaves a smaller wave, who joined is in a later one, and who came by itself in none
        (seen(engine("c", 0), engine("d", 0), staged=1, publish=in_force("ab cd")), "1.1 ab c|d"),
        (
            seen(engine("a", 1), engine("b", 1), *ABCD[2:], engine("e", 0), staged=1, publish=in_force("ab cd")),
            "1.1 ab cd|e",
        ),
        (seen(engine("a", 1), engine("b", 1), staged=1, publish=in_force("a b")), "1.1 a|"),
        (seen(engine("a", 1), engine("b", None), staged=1, publish=in_force("a b")), ""),
        # all waves are out: nothing is left to say
        (seen(*ABCD, staged=1, publish=in_force("ab cd", 1)), ""),
        (seen(*ABCD, staged=1, publish=in_force("")), ""),
        # a newer version: who has leave and did not use it keeps it and counts
        (seen(*ABCD, staged=2, publish=in_force("ab cd")), "1.2 ab|cd"),
        (seen(engine("a", 1), *ABCD[1:], staged=2, publish=in_force("ab cd")), "1.2 bc|da"),
        (seen(*ABCD, staged=2, publish=in_force("ab cd", 1)), "1.2 abcd|"),
        (seen(*ABCD, staged=2, publish=in_force("")), "1.2 abcd|"),
        (seen(*ABCD, staged=2, publish=in_force("d abc")), "1.2 da|bc"),
        # one that has had leave for too long keeps it, and holds nobody up
        (seen(*ABCD, staged=2, publish=in_force("ab cd", since={"a": 31.0, "b": 31.0})), "1.2 abcd|"),
        # a version that nobody made is as none
        (seen(*ABCD, staged=2, publish=in_force("ab cd", step=10**9), horizon=v(2)), "1.2 ab|cd"),
        (seen(*ABCD, staged=2, publish=Publishing(version=v(0, lineage=99)), horizon=v(2)), "1.2 ab|cd"),
        # after a restart: who was named is waited for until it was heard, or is known to be gone, or time is over
        (seen(*ABCD[:3], staged=2, publish=in_force("ab cd"), observed_s=4.9), ""),
        (seen(*ABCD[:3], staged=1, publish=in_force("ab cd"), observed_s=4.9), ""),
        (seen(*ABCD[:3], staged=2, publish=in_force("ab cd"), observed_s=4.9, stopped=frozenset("d")), "1.2 ab|c"),
        (seen(*ABCD[:3], staged=2, publish=in_force("ab cd"), observed_s=5.0), "1.2 ab|c"),
        (seen(*ABCD, staged=2, publish=in_force("ab cd"), observed_s=0.1), "1.2 ab|cd"),
    ],
)
def test_table(snapshot: Snapshot, expected: str) -> None:
    assert said(next_publish(snapshot, SETTINGS)) == expected


def test_engines_of_an_abandoned_lineage_are_not_waited_for() -> None:
    snapshot = replace(
        seen(staged=0, publish=in_force("ab cd"), observed_s=0.1, horizon=v(0, lineage=2)), staged=(v(0, lineage=2),)
    )
    assert said(next_publish(snapshot, SETTINGS)) == "2.0 |"


def test_targets_stay_and_others_get_no_leave() -> None:
    publish = replace(in_force("a"), targets=("a", "b"), waves=waves("a b"), wave=0)
    step = next_publish(seen(engine("a", 1), *ABCD[1:], staged=1, publish=publish), SETTINGS)
    assert said(step) == "1.1 a b|"
    assert step is not None
    assert step.publish.targets == ("a", "b")


def test_leave_that_is_kept_is_as_old_as_it_was() -> None:
    publish = in_force("ab cd", since={"a": 7.0, "b": 3.0})
    step = next_publish(seen(ABCD[0], engine("b", 1), *ABCD[2:], staged=2, publish=publish), SETTINGS)
    assert step is not None
    assert step.publish.released_s == {"a": NOW_S - 7.0, "c": NOW_S}


def test_a_late_engine_is_named() -> None:
    publish = in_force("ab cd", since={"b": 31.0})
    step = next_publish(seen(engine("a", 1), *ABCD[1:], staged=1, publish=publish), SETTINGS)
    assert step is not None
    assert step.reason == "wave 2 of 2: the engines before it are done or gone; b had leave for 30 s and did not use it"
