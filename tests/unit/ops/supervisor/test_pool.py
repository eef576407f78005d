"""The pool under any sequence of commands and deaths: the supervisor itself, over slots without processes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.supervisor.pool import TeamSize, room
from ops.supervisor.processes import Program, Slot
from ops.supervisor.settings import SupervisorSettings
from ops.supervisor.supervisor import Supervisor
from pipeline.stage import StopSignal
from tests.unit.ops.supervisor.test_supervisor import Ends
from topics.clock import Clock, Deadline, ManualClock

MOST = {"rollout": 4, "learner": 3}
LEAST = 1
Deed = tuple[str, int]  # a target and its number; "die" and which; "leave": who was asked to is through; "wait" seconds


def test_room_is_what_nobody_holds() -> None:
    assert room(None, held=[3, 4]) == sys.maxsize
    assert room(8, held=[3, 4]) == 1
    assert room(2, held=[3]) == 0


def test_a_team_goes_on_until_there_is_room_for_all_of_its_new_size() -> None:
    team = TeamSize(1)
    assert not team.may_change(5), "nothing else is wanted"
    team.want(3)
    assert not team.may_change(1)
    assert team.may_change(2)
    team.leave()
    assert (team.is_leaving, team.held, team.may_change(2)) == (True, 3, False)
    assert team.begin_again(0) == 3
    team.want(1)
    assert team.may_change(0), "fewer need no room"
    team.leave()
    assert team.held == 3, "until all have ended"
    assert (team.begin_again(0), team.held) == (1, 1)


@pytest.mark.parametrize(("wanted", "room_left", "begins_with"), [(1, 0, 1), (3, 0, 2), (3, 1, 3), (2, 0, 2)])
def test_a_team_begins_again_with_what_is_wanted_by_then(wanted: int, room_left: int, begins_with: int) -> None:
    team = TeamSize(1)
    team.want(2)
    team.leave()
    team.want(wanted)
    assert team.begin_again(room_left) == begins_with
    assert not team.is_leaving


def test_a_team_that_dies_by_itself_begins_with_the_newest_size_if_there_is_room() -> None:
    team = TeamSize(1)
    team.want(2)
    assert team.begin_again(0) == 1
    assert team.begin_again(1) == 2


class BareSlot(Slot):
    """A slot whose process is a note."""

    made: list[BareSlot]

    def __init__(self, program: Program, *, clock: Clock) -> None:
        super().__init__(program, clock=clock)
        self.lives = self.is_asked = False
        self.code: int | None = None
        self.made.append(self)

    def start(self) -> int:
        assert not self.lives, "two processes in one slot"
        self.lives, self.is_asked, self.code = True, False, None
        self.pids.append(1)
        return 1

    def poll(self) -> int | None:
        code, self.code = self.code, None
        if code is not None:
            self.lives = False
        return code

    @property
    def alive(self) -> bool:
        return self.lives

    def ask_to_retire(self) -> None:
        self.is_asked = self.lives

    def ask_to_stop(self) -> None:
        self.is_asked = self.lives

    def kill(self) -> None:
        if self.lives:
            self.code = -9

    def wait_stopped(self, *, deadline: Deadline) -> int | None:
        return 0 if self.lives else None


class Impatient(StopSignal):
    """Waiting costs no time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, seconds: float) -> bool:
        self._clock.advance(seconds)
        return self.requested


@dataclass
class Play:
    """Deeds, one per turn; then everybody who was asked to leave leaves, until nothing changes any more."""

    slots: int
    deeds: list[Deed]
    clock: ManualClock = field(default_factory=ManualClock)
    wanted: dict[str, int] = field(default_factory=lambda: {"rollout": 1, "learner": 1})
    num_quiet_turns: int = 0

    def __post_init__(self) -> None:
        self.bare: list[BareSlot] = []
        self.stop = Impatient(self.clock)
        self.supervisor = Supervisor(
            [_program(target, number) for target, most in MOST.items() for number in range(most)],
            SupervisorSettings(max_restarts=10_000, max_backoff_s=5.0, retire_s=20.0, change_ranks_s=30.0),
            clock=self.clock,
            stop=self.stop,
            ends=Ends(complete=[False]),
            on_event=lambda _: None,
            each_turn=self._turn,
        )
        self.supervisor.slots = self.slots

    def _turn(self) -> None:
        self._check()
        if self.deeds:
            self._do(*self.deeds.pop(0))
        elif self.num_quiet_turns > 300:
            self.stop.request("test")
        else:
            self.num_quiet_turns += 1
            self._leave()

    def _do(self, what: str, number: int) -> None:
        if what in MOST:
            self.wanted[what] = number
            self.supervisor.scale(what, number)
        elif what == "leave":
            self._leave()
        elif what == "wait":
            self.clock.advance(number)
        else:
            living = [each for each in self.bare if each.lives]
            if living:
                living[number % len(living)].code = -9

    def _leave(self) -> None:
        ranks = [each for each in self.bare if each.program.target == "learner"]
        if any(each.is_asked for each in ranks):
            for each in ranks:
                each.is_asked = each.lives  # rank 0 tells the others
        for each in self.bare:
            if each.lives and each.is_asked and each.code is None:
                each.code = 0

    def _check(self) -> None:
        living = [each for each in self.bare if each.lives]
        assert len(living) <= self.slots
        assert len({each.more for each in living if each.program.target == "learner"}) <= 1, "ranks of two sizes"
        kinds = self.supervisor.replicas
        assert sum(each.running + each.retiring for each in kinds.values()) <= self.slots


def _program(target: str, number: int) -> Program:
    return Program(
        name=f"{target}-{number}",
        stage=target,
        arguments=(),
        log_file=Path("/dev/null"),
        unit="learner" if target == "learner" else "",
        target=target,
        spare=number > 0,
        pooled=True,
        size_setting="learner.ranks" if target == "learner" else "",
    )


commands = st.sampled_from([(target, number) for target, most in MOST.items() for number in range(LEAST, most + 1)])
others = st.tuples(st.sampled_from(["die", "leave", "wait"]), st.integers(0, 40))


@settings(max_examples=300, deadline=None)
@given(slots=st.integers(2, 7), deeds=st.lists(commands | others, max_size=40))
def test_the_pool_holds_and_what_fits_comes_about(slots: int, deeds: list[Deed]) -> None:
    BareSlot.made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ops.supervisor.supervisor.Slot", BareSlot)
        play = Play(slots, list(deeds))
    play.bare = BareSlot.made
    assert play.supervisor.run() == 0
    if sum(play.wanted.values()) <= slots:
        kinds = play.supervisor.replicas
        assert {target: each.running for target, each in kinds.items()} == play.wanted
        assert not any(each.retiring for each in kinds.values())
