"""What takes the workload's time on real stages: the engine, the link and the board."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ops.bench.schedule.board import Board
from ops.bench.schedule.engine import TimedEngine
from ops.bench.schedule.workload import load_workload
from ops.bench.schedule.world import World
from pipeline.engines.base import FINISH_ABORT, FINISH_LENGTH, EngineState, Generation, GenerationRequest
from schemas.errors import EngineError
from schemas.records import PromptGroup, SamplingParams, Version
from topics.clock import Deadline

WORKLOAD = load_workload("drifting")
V1, V2 = Version(lineage=1, step=1), Version(lineage=1, step=2)
STATE = {"any": np.zeros(1)}


def world(tmp_path: Path, *, scale: float = 1e-4) -> World:
    return World(WORKLOAD, board=Board(tmp_path / "board"), scale=scale, num_steps=10)


class ModelTime:
    """The world's clock in model seconds; each look at it may move it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, each_look_s: float = 0.0) -> None:
        self.s = 0.0
        self._each_look_s = each_look_s
        monkeypatch.setattr(World, "now_s", lambda _: self.look())

    def look(self) -> float:
        self.s += self._each_look_s
        return self.s


def requests(engine: TimedEngine, group: int) -> list[GenerationRequest]:
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_tokens=4096)
    prompt = PromptGroup(
        run="r",
        group=group,
        group_size=8,
        text="x",
        sampling=sampling,
        seed=0,
        source="s",
        source_index=0,
        epoch=0,
        created_unix_ms=0,
    )
    tokens = engine.encode_prompt(prompt).tokens
    return [
        GenerationRequest(request_id=f"a{group}/{member}", prompt_tokens=tokens, sampling=sampling, seed=member)
        for member in range(8)
    ]


def to_the_end(engine: TimedEngine, *, num: int) -> list[Generation]:
    done: list[Generation] = []
    deadline = Deadline.after(10)
    while len(done) < num:
        deadline.check("all sequences")
        done += engine.step()
    return done


def test_responses_have_the_workloads_lengths_whoever_makes_them(tmp_path: Path) -> None:
    engine = TimedEngine(world(tmp_path), name="e", ready_s=0.0)
    assert engine.state == EngineState.COLD
    assert engine.num_free_slots == 0
    with pytest.raises(EngineError, match="no version"):
        engine.submit(requests(engine, 17))
    engine.load(V1, STATE)
    assert engine.num_free_slots == 32
    engine.submit([*requests(engine, 17), *requests(engine, 4095)])
    assert engine.num_running == 16
    done = {one.request_id: one for one in to_the_end(engine, num=16)}
    for group in (17, 4095):
        for member, length in enumerate(WORKLOAD.lengths(group)):
            one = done[f"a{group}/{member}"]
            assert (len(one.tokens), one.finish_reason) == (length, FINISH_LENGTH)
            assert sum(run.num_tokens for run in one.version_runs) == length
    assert engine.num_running == 0


def test_tokens_are_of_the_version_that_was_served_when_they_were_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = ModelTime(monkeypatch)
    engine = TimedEngine(world(tmp_path), name="e", ready_s=0.0)
    engine.load(V1, STATE)
    assert engine.num_free_slots == 32
    engine.submit(requests(engine, 3))
    now.s = 2.0  # 80 tokens
    engine.load(V2, STATE)
    now.s = 1e6
    longest = max(to_the_end(engine, num=8), key=lambda one: len(one.tokens))
    assert [run.version for run in longest.version_runs] == [V1, V2]
    assert longest.version_runs[0].num_tokens == 80


def test_what_is_aborted_has_the_tokens_it_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = ModelTime(monkeypatch)
    engine = TimedEngine(world(tmp_path), name="e", ready_s=0.0)
    engine.load(V1, STATE)
    assert engine.num_free_slots == 32
    engine.submit(requests(engine, 3))
    now.s = 0.25  # 10 tokens
    engine.abort(["a3/0", "nobody"])
    (one,) = engine.step()
    assert (one.request_id, one.finish_reason) == ("a3/0", FINISH_ABORT)
    assert len(one.tokens) == 10 < WORKLOAD.lengths(3)[0]
    assert engine.num_running == 7


def test_a_slot_under_way_has_no_room_and_is_in_no_book(tmp_path: Path) -> None:
    there = world(tmp_path, scale=1.0)
    engine = TimedEngine(there, name="e", ready_s=there.now_s() + 3600)
    engine.load(V1, STATE)
    assert engine.num_free_slots == 0
    there.board.stepped(1, at_s=time.monotonic())
    there.look()
    assert (there.marks[0].step, there.marks[0].room_s) == (1, 0.0)


def test_decoding_slows_down_in_the_second_half(tmp_path: Path) -> None:
    there = world(tmp_path)
    assert there.tokens_s == WORKLOAD.tokens_s
    there.board.stepped(5, at_s=time.monotonic())
    assert there.tokens_s == WORKLOAD.late_tokens_s


def test_who_fetches_a_version_waits_for_the_link_and_who_comes_later_does_not(tmp_path: Path) -> None:
    there = world(tmp_path, scale=0.01)  # 6.4 model seconds are 64 ms
    threads = [threading.Thread(target=there.fetch, args=(V1,)) for _ in range(3)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert time.monotonic() - began_s >= 0.06
    assert there.publishes_s[False] == [pytest.approx(6.4, abs=0.1)]
    there.fetch(V1)
    assert len(there.publishes_s[False]) == 1


def test_a_checkpoint_is_on_the_link_after_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ModelTime(monkeypatch, each_look_s=0.5)
    board = Board(tmp_path / "board")
    there = World(replace(WORKLOAD, checkpoint_every=2), board=board, scale=0.01, num_steps=10, managed=False)
    board.stepped(2, at_s=time.monotonic())
    there.look()
    there.fetch(V1)
    assert there.publishes_s[False] == []
    assert there.publishes_s[True][0] > 2 * 6.4 - 0.1


def test_both_sides_of_the_board_see_the_same(tmp_path: Path) -> None:
    ours, theirs = Board(tmp_path / "board"), Board(tmp_path / "board")
    ours.ranks, ours.began_s = 5, 12.5
    theirs.working = True
    theirs.stepped(3, at_s=99.25)
    assert (theirs.ranks, theirs.began_s) == (5, 12.5)
    assert (ours.working, ours.step, ours.stepped_s) == (True, 3, 99.25)
