"""What `rlweave top` shows: it fits, it reads without colour, and what others wrote stays text."""

from __future__ import annotations

import math
import os
import pty
import signal
import termios
from collections import Counter
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from ops.live.follower import Follower
from ops.live.picture import (
    HeldPicture,
    LagPicture,
    LatelyPicture,
    NoticePicture,
    RunPicture,
    Span,
    StepsPicture,
)
from ops.top.screen import screen
from ops.top.strip import MARKS, strip
from ops.top.watch import show_once, watch
from ops.top.words import clock, number
from tests.unit.ops.live.pictures import NOW_MS, learner, picture, process, reward, rollout
from tests.unit.ops.report.made_run import PARTITIONS, two_lineages
from topics.memory import MemoryLog

IDLE = {"generating": 0.1, "waiting_for_prompts": 0.9}


def slow_reward() -> RunPicture:
    return picture(learner(0.9), reward(1.0, scored_per_s=40), rollout(IDLE, in_flight=2), lag_records=1_300)


def crowded() -> RunPicture:
    """More of everything than has room."""
    crew = [process("rollout", IDLE, number=number) for number in range(40)]
    seen = picture(*crew, learner(0.9))
    notice = seen.notices[0]
    return replace(seen, notices=(notice,) * 50, commands=seen.commands * 50)


def text(seen: RunPicture, *, width: int = 80, height: int | None = 24) -> str:
    return "\n".join(line.plain for line in screen(seen, width=width, height=height, keys="q ends"))


@pytest.mark.parametrize("size", [(80, 24), (140, 50), (40, 12), (80, 5), (9, 4), (1, 1)])
@pytest.mark.parametrize("make", [slow_reward, picture, crowded])
def test_it_fits(make: object, size: tuple[int, int]) -> None:
    assert callable(make)
    lines = screen(make(), width=size[0], height=size[1], keys="q ends")
    assert len(lines) <= size[1]
    assert max(line.cell_len for line in lines) <= size[0]
    assert "step 40 of 150" in lines[0].plain or size[0] < 80


def test_the_verdict_is_on_top_with_what_to_do() -> None:
    shown = text(slow_reward()).splitlines()
    assert shown[1].startswith(" SLOW: REWARD the learner waits 90% of its time for rewards: reward sum scores")
    assert any(line.startswith(" -> more processes of it") for line in shown[:6])


def test_at_80_by_24_everything_that_decides_is_there() -> None:
    shown = text(slow_reward())
    for part in ("24/s", "380/s", "1,300 smp", "40/s", "0.75/s", "90/96 open", "stale 32", "step 40", "1.40"):
        assert part in shown
    assert "R scoring" in shown


def test_what_has_no_room_is_said() -> None:
    assert "lines more in a taller window" in text(crowded())
    assert "lines more" not in text(picture(), width=140, height=50)


def test_a_strip_is_in_proportion_however_short_the_phases_are() -> None:
    spans = []
    for at_ms in range(0, 60_000, 100):  # 30 ms of waiting in each 100
        spans += [Span(phase="waiting_for_data", began_ms=at_ms, ended_ms=at_ms + 30)]
        spans += [Span(phase="forward_backward", began_ms=at_ms + 30, ended_ms=at_ms + 100)]
    counts = Counter(strip(spans, began_ms=0, ended_ms=60_000, num_cells=40))
    assert counts == {"waiting_for_data": 12, "forward_backward": 28}


def test_a_strip_begins_where_the_process_began_and_ends_now() -> None:
    spans = [Span(phase="generating", began_ms=30_000, ended_ms=None)]
    assert strip(spans, began_ms=0, ended_ms=60_000, num_cells=4) == ["", "", "generating", "generating"]


def test_letters_tell_phases_apart_and_waiting_from_work() -> None:
    letters = [mark.letter for mark in MARKS.values()]
    assert len(set(letters)) == len(letters)
    assert all(mark.letter.islower() for phase, mark in MARKS.items() if phase.startswith("waiting"))


def test_text_of_others_is_neither_markup_nor_control() -> None:
    bad = NoticePicture(at_ms=NOW_MS, stage="x", instance="x", name="x", text="[red]\x1b[2J\nend :smile:")
    shown = text(replace(picture(), notices=(bad,)))
    assert "[red]?[2J end :smile:" in shown
    assert "\x1b" not in shown


def test_numbers_and_times_that_are_none_are_unknown() -> None:
    assert (number(math.nan), number(math.inf), clock(1e30)) == ("-", "-", "-")


def test_a_silent_process_says_so() -> None:
    silent = replace(process("rollout", IDLE, standing="not heard"), heard_ms=NOW_MS - 20_000)
    shown = text(picture(silent))
    assert "MISSING" in shown
    assert "silent 20 s" in shown


def late(*, drops: bool = True) -> RunPicture:
    """Weights that come late, on a screen with more than has room."""
    shares = {"generating": 0.05, "waiting_for_weights": 0.4, "waiting_for_prompts": 0.55}
    crew = [process("rollout", shares, number=number) for number in (1, 2, 3)]
    seen = picture(*crew, learner(0.8), serve_s=6.0)
    seen = replace(seen, lately=LatelyPicture(trained=902, lost={"stale": 98}), run="observe-weights")
    return seen if drops else replace(seen, drops={}, lately=LatelyPicture())


def test_what_is_lost_is_shown_before_commands_and_notices() -> None:
    shown = text(late())
    assert "lost    32 of 30,032 ids (0.1%): stale 32" in shown
    assert "9.8% of samples are dropped as stale" in " ".join(shown.split())
    assert "command" not in shown
    assert "notice" not in shown


def test_the_title_keeps_the_time_in_a_narrow_window() -> None:
    for width in (60, 70, 80, 120):
        title = text(late(), width=width).splitlines()[0]
        assert title.endswith(clock(NOW_MS))
        assert "step 40 of 150" in title
    assert "age 0.8 max 2/2" in text(late()).splitlines()[0]


def test_the_legend_begins_with_the_letters_of_the_slow_stage_and_of_the_rollouts() -> None:
    assert " R scoring, p waits for prompts, G generating, " in text(slow_reward())
    assert " p waits for prompts, w waits for weights, G generating, " in text(late())


def test_an_engine_says_what_it_waits_for() -> None:
    row = next(line for line in text(late()).splitlines() if line.startswith("rollout 1"))
    assert row.split()[-5:] == ["p", "55", "w", "40", "1.40"]
    assert any(line.startswith("prompts") and " 90% " in line for line in text(late()).splitlines())


def test_only_commands_that_matter_to_people_are_shown() -> None:
    shown = text(picture(), height=None)
    assert "credit prompts: begun up to 1 late" in shown
    assert "publish rollout" not in shown


def test_lag_is_labelled_and_an_empty_one_has_no_growth() -> None:
    lag = LagPicture(group="reward.sum", topic="samples", records=200, seconds=8, versions=1.8, records_per_s=23.2)
    shown = text(replace(picture(), lag=(lag,)))
    assert "reward.sum on samples 200 (8.0 s, grows 23/s, 1.8 steps' worth)" in shown
    assert "reward.sum on samples 0\n" in text(replace(picture(), lag=(replace(lag, records=0),)))


def test_one_estimate_of_lag_is_on_the_screen() -> None:
    shown = " ".join(text(slow_reward()).split())
    assert "1,300 samples wait for it (32 s of its work)" in shown
    assert "samples 1,300 (32 s," in shown


def test_since_when_and_that_it_is_of_a_start_is_said() -> None:
    held = replace(slow_reward(), held=HeldPicture(kind="reward", since_ms=NOW_MS - 80_000), is_settled=False)
    assert text(held).splitlines()[1].startswith(" SLOW: REWARD (so far, for 80 s) the learner waits 90%")


def test_a_stopped_run_says_why_and_a_replaced_process_is_one() -> None:
    seen = picture()
    ended = tuple(replace(each, standing="stopped", ended="SIGTERM") for each in seen.processes)
    shown = text(replace(seen, processes=ended, is_live=False))
    assert " STOPPED all processes stopped (SIGTERM), at step 40; the run is not sealed" in " ".join(shown.split("\n"))
    old = replace(
        process("scheduler", {}, number=9, standing="stopped"), ended="exit code 1", is_replaced=True, stage="scheduler"
    )
    notice = NoticePicture(
        at_ms=NOW_MS, stage="scheduler", instance=old.instance, name="stopped", text="scheduler: stopped: exit code 1"
    )
    shown = text(replace(seen, processes=(*seen.processes, old), notices=(notice,)))
    assert "beside: scheduler watching, 1 replaced (exit code 1)" in shown
    assert "scheduler: stopped: exit code 1; another has taken its place" in shown


def test_rates_are_over_the_same_steps() -> None:
    steps = StepsPicture(num=8, per_s=0.6, step_s=1.5, trained_per_s=330)
    shown = text(replace(picture(), steps=steps))
    assert "0.6 steps/s (1.5 s each, mean of 8), 380 samples/s made, 330 trained" in shown


class Ending(Follower):
    """One during whose first picture the process is told to end."""

    def picture(self, *, spans_s: float | None = None) -> RunPicture:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().picture(spans_s=spans_s)


def test_once_prints_a_picture_without_colours() -> None:
    log = MemoryLog(run="made", data_partitions=PARTITIONS)
    two_lineages(log)
    file = StringIO()
    with Follower(log) as follower:
        show_once(follower, Console(file=file, width=100, markup=False, highlight=False, emoji=False))
    assert "step 3" in file.getvalue()
    assert "\x1b" not in file.getvalue()
    assert "abandoned_branch 2" in file.getvalue()


def test_a_signal_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = pty.openpty()
    terminal = os.fdopen(its)
    monkeypatch.setattr("sys.stdin", terminal)
    before, file = termios.tcgetattr(its), StringIO()
    with Ending(MemoryLog(run="made", data_partitions=PARTITIONS)) as follower, pytest.raises(SystemExit) as ended:
        watch(follower, Console(file=file, force_terminal=True, width=80, height=24))
    assert ended.value.code == 128 + signal.SIGTERM
    assert termios.tcgetattr(its) == before
    assert "\x1b[?1049l" in file.getvalue().partition("\x1b[?1049h")[2]
    terminal.close()
    os.close(ours)


def test_who_joined_after_the_end_is_listed_apart() -> None:
    stopped = replace(learner(), standing="stopped")
    twice = tuple(process("reward", {}, number=number, standing="stopped", reward="digits") for number in (8, 9))
    seen = replace(picture(stopped), is_live=False, afterwards=twice)
    assert f"afterwards: reward digits, twice (last at {clock(NOW_MS - 400)})" in text(seen)
    assert "still at work" in text(replace(seen, afterwards=(replace(twice[0], standing="at work"),)))
    assert "afterwards" not in text(replace(seen, afterwards=()))
