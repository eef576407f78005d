"""Who gives up its stragglers to whom: as a table, and what holds for all loads."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.scheduler.packing import Load, next_pack, pack
from consumers.scheduler.policy import CommandDraft, decide
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, Packing, Scalable, Snapshot, Standing
from consumers.scheduler.standing import StandingCommands

SETTINGS = SchedulerSettings(pack_below=0.25, pack_cool_down_s=20.0)
NOW_S = 1000.0
LAG = ("rlweave.r.rollout", "prompts")
ROLLOUTS = Scalable(target="rollout", group=LAG[0], least=1, most=3, initial=1)


def engine(name: str, running: int, *, slots: int = 32, prompts: int = 1, silent_s: float = 0.0) -> InstanceSeen:
    return InstanceSeen(
        stage="rollout",
        instance=name,
        phase="generating",
        phase_since_s=NOW_S,
        heard_s=NOW_S - silent_s,
        seq=1,
        gauges={"running_sequences": running, "free_slots": slots - running, "prompts_in_flight": prompts},
    )


def parked(one: InstanceSeen) -> InstanceSeen:
    return replace(one, gauges={**one.gauges, "parked_sequences": 1.0})


def run(*engines: InstanceSeen, lag: int | None = None, packed_s: float | None = None) -> Snapshot:
    taken = sum(int(one.gauges.get("prompts_in_flight", 0)) for one in engines)
    standing = Standing(heartbeat_s=NOW_S)
    if packed_s is not None:
        standing = replace(standing, pack=Packing(givers=(), takers=(), at_s=packed_s))
    return Snapshot(
        now_s=NOW_S,
        observed_s=100.0,
        instances=engines,
        lag={LAG: taken if lag is None else lag},
        standing=standing,
    )


def packed(snapshot: Snapshot, settings: SchedulerSettings = SETTINGS) -> dict[str, tuple[str, ...]] | None:
    step = next_pack(snapshot, settings)
    return None if step is None else dict(zip(step.packing.givers, step.packing.takers, strict=True))


def test_the_engines_with_the_least_give_up_to_the_fewest_that_hold_it_all() -> None:
    four = (engine("a", 3), engine("b", 9), engine("c", 1), engine("d", 4))
    assert packed(run(*four)) == {"d": ("b",), "a": ("b",), "c": ("b",)}
    full = (engine("a", 3), engine("b", 28), engine("c", 6), engine("d", 4), *(engine(f"e{n}", 0) for n in range(9)))
    assert packed(run(*full)) == {"d": ("c",), "a": ("c",)}, "two are needed for 41"


@pytest.mark.parametrize(
    ("why", "snapshot", "settings"),
    [
        ("not asked for", run(engine("a", 1), engine("b", 1)), SchedulerSettings()),
        ("too much runs", run(engine("a", 8), engine("b", 9)), SETTINGS),
        ("nothing runs", run(engine("a", 0), engine("b", 0)), SETTINGS),
        ("one engine", run(engine("a", 1)), SETTINGS),
        ("all is on one", run(engine("a", 2), engine("b", 0)), SETTINGS),
        ("a prompt waits", run(engine("a", 1), engine("b", 1), lag=3), SETTINGS),
        ("one is silent", run(engine("a", 1), engine("b", 1, silent_s=11.0)), SETTINGS),
        ("one has not said", run(engine("a", 1), replace(engine("b", 1), gauges={})), SETTINGS),
        ("one waits for its environment", run(engine("a", 1), parked(engine("b", 1))), SETTINGS),
        ("lag unknown", replace(run(engine("a", 1), engine("b", 1)), lag={LAG: None}), SETTINGS),
        ("lag not measured", replace(run(engine("a", 1), engine("b", 1)), lag={}), SETTINGS),
        ("a moment ago", run(engine("a", 1), engine("b", 1), packed_s=NOW_S - 19.0), SETTINGS),
        ("one retires", replace(run(engine("a", 1), engine("b", 1)), fleet=(ROLLOUTS,)), SETTINGS),
        ("just begun to listen", replace(run(engine("a", 1), engine("b", 1)), observed_s=1.0), SETTINGS),
    ],
)
def test_nothing_is_packed(why: str, snapshot: Snapshot, settings: SchedulerSettings) -> None:
    assert packed(snapshot, settings) is None, why


def test_the_cool_down_ends() -> None:
    assert packed(run(engine("a", 1), engine("b", 2), packed_s=NOW_S - 21.0)) == {"a": ("b",)}


LOADS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=6).map(
    lambda pairs: [Load(instance=f"e{at}", running=run, slots=run + free) for at, (run, free) in enumerate(pairs)]
)


@given(LOADS)
def test_what_is_kept_holds_everything_and_is_as_few_as_can_be(loads: list[Load]) -> None:
    givers, kept = pack(loads)
    names = {load.instance: load for load in loads}
    running = sum(load.running for load in loads)
    assert kept, "never the last one"
    assert set(givers).isdisjoint(kept)
    assert all(names[giver].running for giver in givers)
    assert {load.instance for load in loads if load.running} <= {*givers, *kept}
    assert sum(names[name].slots for name in kept) >= running
    assert all(takers and set(takers) <= set(kept) for takers in givers.values())
    fewest = next(
        num
        for num in range(1, len(loads) + 1)
        if any(sum(each.slots for each in some) >= running for some in combinations(loads, num))
    )
    assert len(kept) == fewest


def test_the_command_says_it_and_is_read_back() -> None:
    (draft,) = [each for each in decide(run(engine("a", 1), engine("b", 2)), SETTINGS) if each.kind == "pack"]
    commands = StandingCommands(run="r")
    command = commands.issue(draft, unix_ms=0)
    assert (command.target, command.targets, command.waves) == ("rollout", ("a",), (("b",),))
    commands.issued(draft, now_s=NOW_S)
    assert commands.standing.pack == draft.pack
    successor = StandingCommands(run="r")
    successor.add(command, now_s=5.0)
    assert successor.standing.pack == Packing(givers=("a",), takers=(("b",),), at_s=5.0)
    assert isinstance(draft, CommandDraft)
