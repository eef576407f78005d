"""Rollouts in environments: turns, masks, parking, failures, and swaps between turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pipeline.engines.base import GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from pipeline.environments.base import Action, Observation, Task, TryAgain
from producers.rollout.stage import RolloutStage
from schemas.packed import unpack_f32, unpack_i32, unpack_u8
from schemas.records import Sample, SamplingParams
from schemas.validation import check_sample
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.test_rollout import begin, finish, samples
from tests.unit.producers.world import events_of, until
from topics.clock import Deadline, ManualClock

HERE = "tests.unit.producers.test_rollout_environment"


class Talk:
    """Two turns; says `hi` first and `go` between them."""

    async def reset(self, task: Task) -> Observation:
        return Observation(text="hi", facts={"seed": str(task.seed), "prompt": task.prompt})

    async def step(self, action: Action) -> Observation:
        if action.turn == 0:
            return Observation(text="go", reward=-0.5)
        return Observation(reward=2.0, done=True, earlier={0: 0.25}, facts={"end": "good"})

    async def close(self) -> None:
        CLOSED.append(type(self).__name__)


class Gate(Talk):
    """Waits between its turns until the test opens the gate."""

    async def step(self, action: Action) -> Observation:
        if action.turn == 0:
            await _opened()
        return await super().step(action)


class Broken(Talk):
    """Raises at its second turn, for member 1 only."""

    def __init__(self, *, times: int = 100) -> None:
        self._times = times

    async def reset(self, task: Task) -> Observation:
        self._fails = task.member == 1
        BEGUN.append(task.member)
        return await super().reset(task)

    async def step(self, action: Action) -> Observation:
        if self._fails and len(BEGUN) <= self._times + 1:
            raise RuntimeError("the sandbox is gone")
        return await super().step(action)


class Busy(Talk):
    """Asks for another try of its first call."""

    async def reset(self, task: Task) -> Observation:
        BEGUN.append(task.member)
        if len(BEGUN) == 1:
            raise TryAgain("busy")
        return await super().reset(task)


class Chatty(Talk):
    """Never ends by itself."""

    async def step(self, action: Action) -> Observation:
        return Observation(text="go", reward=1.0, facts={"last": str(action.last)})


class Silent(Talk):
    """Never answers."""

    async def step(self, action: Action) -> Observation:
        await _opened()
        return Observation()


BEGUN: list[int] = []
CLOSED: list[str] = []
GATE = threading.Event()


async def _opened() -> None:
    while not GATE.is_set():
        await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    BEGUN.clear()
    CLOSED.clear()
    GATE.clear()
    yield
    GATE.set()


def make(rollouts: Rollouts, engine: ScriptedEngine, plugin: str, **fields: object) -> RolloutStage:
    environment = {"plugin": f"{HERE}:{plugin}", "retry_backoff_s": 0.01, "park_after_s": 0.0, **fields}
    return rollouts.make(engine, environment=environment)


@pytest.fixture
def closing(rollouts: Rollouts) -> Iterator[Rollouts]:
    yield rollouts
    for stage in rollouts.stages:
        if stage._parts is not None and stage._parts.episodes is not None:
            stage._parts.episodes.close()


def test_a_trajectory_is_one_sample_of_all_its_turns(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(0, 1, max_tokens=3)
    found = finish(closing, make(closing, ScriptedEngine(), "Talk"), num_samples=4)
    assert len({sample.attempt for sample in found}) == 2
    for sample in found:
        check_sample(sample, group_size=2)
        assert unpack_u8(sample.loss_mask).tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]
        tokens = unpack_i32(sample.completion_tokens).tolist()
        assert tokens[:2] == list(b"hi")
        assert tokens[5:7] == list(b"go")
        assert unpack_i32(sample.turns).tolist() == [5, 10]
        assert unpack_f32(sample.step_rewards).tolist() == [-0.25, 2.0]
        assert unpack_f32(sample.logprobs or b"")[[0, 1, 5, 6]].tolist() == [0.0] * 4
        assert sample.completion_text == "hi0 0 0go0 0 0"
        facts = {"seed": str(1000 * sample.group), "prompt": "4 + 3 =", "end": "good", "ended": "done"}
        assert sample.environment_facts == facts
        assert sample.environment == f"{HERE}:Talk"
    until(closing.stages[0], lambda: len(CLOSED) == 4, what="every environment closed")


def test_a_swap_between_turns_is_seen_in_the_versions_and_the_rest_goes_on(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(0, max_tokens=2)
    stage = make(closing, ScriptedEngine(), "Gate")
    until(stage, lambda: closing.metrics_of(stage).get("parked_sequences") == 2, what="both are parked")
    world.publish(1, 1, command=True)
    until(stage, lambda: closing.metrics_of(stage)["version_step"] == 1, what="the swap")
    GATE.set()
    for sample in finish(closing, stage, num_samples=2):
        check_sample(sample)
        runs = [(run.version.step, run.num_tokens) for run in sample.version_runs]
        assert runs == [(0, 4), (1, 4)]  # what is heard belongs to the version that read it
        own = unpack_i32(sample.completion_tokens)[unpack_u8(sample.loss_mask) == 1]
        assert own.tolist() == [0, 0, 1, 1]


def test_a_parked_trajectory_holds_no_slot_and_its_group_stays_together(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(*range(6), max_tokens=2)
    engine = ScriptedEngine(max_concurrent_sequences=2)
    stage = make(closing, engine, "Gate", max_parked=6)
    until(stage, lambda: closing.metrics_of(stage).get("parked_sequences", 0) >= 6, what="three groups are parked")
    until(stage, lambda: (stage._context.events._phase or ("",))[0] == "parked", what="that it says so")
    metrics = closing.metrics_of(stage)
    assert (engine.num_running, metrics["free_slots"]) == (0, 0)  # warm, not free: no more than max_parked
    assert samples(world) == []
    GATE.set()
    found = finish(closing, stage, num_samples=12)
    assert {sample.group for sample in found} == set(range(6))
    assert all(sample.failure is None for sample in found)
    assert len({sample.attempt for sample in found}) == 6
    assert closing.metrics_of(stage)["turns_made"] == 24
    assert closing.metrics_of(stage)["tokens_prefilled_again"] == 12 * (len("4 + 3 =") + 4)


def test_a_slot_is_held_for_a_moment_before_it_is_given_away(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(*range(4), max_tokens=2)
    stage = make(closing, ScriptedEngine(max_concurrent_sequences=2), "Gate", park_after_s=1e6)
    until(stage, lambda: closing.metrics_of(stage).get("turns_made") == 2, what="one group has taken a turn")
    for _ in range(20):
        stage.turn()
    assert closing.metrics_of(stage)["prompts_in_flight"] == 1
    GATE.set()
    assert len(finish(closing, stage, num_samples=8)) == 8


def test_a_failed_environment_ends_its_sample_with_a_reason_after_bounded_tries(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(0)
    found = finish(closing, make(closing, ScriptedEngine(), "Broken", max_retries=2), num_samples=2)
    by_member = {sample.member: sample for sample in found}
    assert by_member[0].failure is None
    assert by_member[1].failure == "environment_failed"
    assert by_member[0].attempt == by_member[1].attempt
    assert BEGUN.count(1) == 3
    (told,) = events_of(world.log, "environment_failed")
    assert told["error"] == "step: RuntimeError: the sandbox is gone"


def test_a_failure_that_passes_leaves_a_whole_sample(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(0)
    stage = make(closing, ScriptedEngine(), "Broken", options={"times": 1})
    found = finish(closing, stage, num_samples=2)
    assert [sample.failure for sample in found] == [None, None]
    for sample in found:
        check_sample(sample)
        assert len(unpack_i32(sample.turns)) == 2


def test_a_call_that_asks_for_it_is_made_again(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(0)
    stage = make(closing, ScriptedEngine(), "Busy")
    assert [sample.failure for sample in finish(closing, stage, num_samples=2)] == [None, None]
    assert len(BEGUN) == 3
    assert "environment_failures{reason=environment_failed}" not in closing.metrics_of(stage)


def test_a_call_over_its_limit_times_out(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(0)
    stage = make(closing, ScriptedEngine(), "Silent", call_limit_s=0.02, max_retries=1)
    assert {sample.failure for sample in finish(closing, stage, num_samples=2)} == {"environment_timed_out"}


def test_a_trajectory_has_a_time_in_all(closing: Rollouts, clock: ManualClock) -> None:
    world = begin(closing)
    world.prompts(0)
    stage = make(closing, ScriptedEngine(), "Silent", episode_limit_s=100)
    until(stage, lambda: closing.metrics_of(stage).get("turns_made") == 2, what="a turn")
    clock.advance(101)
    assert {sample.failure for sample in finish(closing, stage, num_samples=2)} == {"environment_timed_out"}


@pytest.mark.parametrize(
    ("fields", "num_turns", "ended", "last"),
    [({"max_turns": 3}, 3, "turns", "True"), ({"max_tokens": 13}, 2, "length", "False")],
)
def test_turns_and_tokens_are_bounded(
    closing: Rollouts, fields: dict[str, int], num_turns: int, ended: str, last: str
) -> None:
    world = begin(closing)
    world.prompts(0, max_tokens=4)
    for sample in finish(closing, make(closing, ScriptedEngine(), "Chatty", **fields), num_samples=2):
        check_sample(sample)
        assert len(unpack_i32(sample.turns)) == num_turns
        assert (sample.environment_facts["ended"], sample.environment_facts["last"]) == (ended, last)
        assert len(unpack_i32(sample.completion_tokens)) <= fields.get("max_tokens", 4096)


def test_no_room_for_what_it_says_first_is_a_fault_of_the_prompt(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(0)
    stage = make(closing, ScriptedEngine(context_tokens=9), "Talk")
    assert {sample.failure for sample in finish(closing, stage, num_samples=2)} == {"prompt_invalid"}


def test_a_group_with_an_outcome_is_dropped_from_engine_and_environment(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(0)
    stage = make(closing, ScriptedEngine(), "Gate")
    until(stage, lambda: closing.metrics_of(stage).get("parked_sequences") == 2, what="both are parked")
    world.close(0)
    until(stage, lambda: closing.metrics_of(stage)["prompts_in_flight"] == 0, what="the prompt is let go of")
    until(stage, lambda: len(CLOSED) == 2, what="both environments are closed")
    assert closing.metrics_of(stage)["parked_sequences"] == 0
    assert samples(world) == []


def test_groups_in_environments_are_finished_and_not_handed_over(closing: Rollouts, clock: ManualClock) -> None:
    world = begin(closing)
    world.prompts(0)
    stage = make(closing, ScriptedEngine(), "Gate")
    until(stage, lambda: closing.metrics_of(stage).get("parked_sequences") == 2, what="both are parked")
    stage._context.retire.request("test")
    clock.advance(10)
    for _ in range(10):
        stage.turn()
    assert not stage.finished
    GATE.set()
    until(stage, lambda: stage.finished, what="the process leaves")
    assert [sample.failure for sample in samples(world)] == [None, None]


def test_what_is_not_through_in_time_is_begun_anew_by_another_process(closing: Rollouts, clock: ManualClock) -> None:
    world = begin(closing)
    world.prompts(0)
    stage = make(closing, ScriptedEngine(), "Gate", retire_s=20.0)
    until(stage, lambda: closing.metrics_of(stage).get("parked_sequences") == 2, what="both are parked")
    stage._context.retire.request("test")
    stage.turn()
    clock.advance(21)
    until(stage, lambda: stage.finished, what="the process leaves")
    assert (len(events_of(world.log, "given_back")), closing.metrics_of(stage)["groups_given_back"]) == (1, 1)
    stage.stop(deadline=Deadline.after(5))
    successor = closing.make(ScriptedEngine(), environment={"plugin": f"{HERE}:Talk"}, slot=1)
    until(successor, lambda: len(samples(world)) == 2, what="another one's samples")


def test_draws_differ_from_turn_to_turn(closing: Rollouts) -> None:
    world = begin(closing)
    world.prompts(0)
    engine = ScriptedEngine()
    seeds: list[int] = []
    submit = engine.submit

    def noting(requests: object) -> None:
        seeds.extend(request.seed for request in requests)  # type: ignore[attr-defined]
        submit(requests)  # type: ignore[arg-type]

    engine.submit = noting  # type: ignore[method-assign]
    finish(closing, make(closing, engine, "Talk"), num_samples=2)
    assert len(set(seeds)) == len(seeds) == 4
    assert np.all(np.array(seeds[:2]) == [0, 1])


def test_one_turn_without_an_environment_is_as_ever(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0)
    for sample in finish(rollouts, rollouts.make(ScriptedEngine()), num_samples=2):
        assert isinstance(sample, Sample)
        assert (sample.turns, sample.step_rewards, sample.environment) == (b"", b"", "")


def test_no_more_are_in_flight_than_keep_the_slots_busy(closing: Rollouts) -> None:
    """A slot serves 1 + 1.25 * 2 s / 1 s trajectories when the tool takes 2 s and a turn 1 s."""
    begin(closing)
    stage = make(closing, ScriptedEngine(), "Silent")
    assert stage._parts is not None
    episodes = stage._parts.episodes
    assert episodes is not None
    request = GenerationRequest(request_id="", prompt_tokens=(1,), sampling=SamplingParams(), seed=0)
    task = Task(run="r", group=0, member=0, prompt="", answer=None, metadata={}, seed=0)
    for number in range(14):
        assert not episodes.is_full(4), number
        episodes.begin(task, replace(request, request_id=str(number)))
    assert not episodes.is_full(4), "how long turns take is not known"
    episodes._spans.append(2.0)
    episodes._turn_spans.append(1.0)
    assert episodes.is_full(4)
    assert not episodes.is_full(5)
