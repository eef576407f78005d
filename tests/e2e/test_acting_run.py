"""One run through real processes: an environment with a slow tool, two phases, and an evaluator that plays too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.evaluations import curves_of, evaluations_of
from ops.services.model import ServicesInfo
from schemas.packed import unpack_f32, unpack_i32, unpack_u8
from schemas.reasons import Result
from schemas.records import PromptGroup, Sample
from tests.e2e.support import Value, check_books, read_all, small_run
from topics.catalog import PROMPTS, SAMPLES

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOOL = '''
import asyncio

from pipeline.environments.base import Action, Observation, Task


class Tool:
    """Two turns with a slow tool between them; a turn is worth more the more characters of it are even."""

    def __init__(self, *, latency_s: float) -> None:
        self._latency_s = latency_s

    async def reset(self, task: Task) -> Observation:
        return Observation(facts={"asked": task.prompt})

    async def step(self, action: Action) -> Observation:
        if action.turn == 0:
            await asyncio.sleep(self._latency_s)
        worth = sum(ord(sign) % 2 == 0 for sign in action.text) / 4
        return Observation(text="=9", reward=worth, done=action.turn == 1)

    async def close(self) -> None:
        """Nothing is held."""
'''
PHASES = (
    'phases=[{name = "one", until = {steps = 2}}, {name = "two", until = {steps = 2}, '
    "settings.prompts.source.files = [%s], settings.learner.optimizer.learning_rate = 1e-4}]"
)


def test_a_run_that_acts_goes_through_its_phases_and_is_evaluated(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    tool, other = tmp_path / "tool.py", tmp_path / "other.jsonl"
    tool.write_text(TOOL)
    other.write_text("".join(json.dumps({"question": f"{number % 10} - 1 ="}) + "\n" for number in range(500)))
    played: dict[str, Value] = {"plugin": f"{tool}:Tool", "options.latency_s": 0.4, "max_turns": 3, "max_tokens": 12}
    changes: dict[str, Value] = {
        **{f"environment.{name}": value for name, value in played.items()},
        **{f"evaluation.play.environment.{name}": value for name, value in played.items()},
        "rewards.sum.plugin": "environment",
        "evaluation.play.plugin": "environment",
        "evaluation.play.source.files": [str(other)],
        "evaluation.play.every_steps": 2,
        "evaluation.play.num_prompts": 3,
        "evaluation.play.max_tokens": 3,
        "learner.cloning.num_steps": 0,
        "supervisor.drain_s": 180.0,  # the evaluator stands back for all others
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.start("up", "--quiet", "--set", PHASES % json.dumps(str(other)))
        assert process.wait(240) == 0, run.outputs()
        seen = check_books(run)
        made = read_all(run, SAMPLES, PROMPTS)

        # (1) An environment with a slow tool: parked, its words are masked, each turn has its reward.
        samples = [each.record for each in made.envelopes if isinstance(each.record, Sample)]
        whole = [sample for sample in samples if sample.failure is None]
        assert whole
        for sample in whole:
            mask, turns = unpack_u8(sample.loss_mask), unpack_i32(sample.turns).tolist()
            assert (len(turns), len(unpack_f32(sample.step_rewards))) == (2, 2)
            assert mask[turns[0] : turns[0] + 2].tolist() == [0, 0], "what the tool said trains nothing"
            assert mask.sum() == len(mask) - 2
            assert sample.environment_facts["asked"] == sample.prompt_text
        parked = [event.gauges.get("parked_sequences", 0) for event in seen.events("rollout", kind="heartbeat")]
        assert max(parked) > 0, "no trajectory was reported as parked"

        # (2) Two phases: each a lineage of its own, with prompts of its own.
        steps = {each.lineage: set[int]() for each in seen.outcomes}
        for each in seen.outcomes:
            if each.result == Result.TRAINED:
                steps[each.lineage].add(each.step)
        assert steps == {1: {1, 2}, 2: {3, 4}}
        sources = [each.record.source for each in made.envelopes if isinstance(each.record, PromptGroup)]
        assert len(set(sources)) == 2

        # (3) The evaluator: versions of both phases, in the same environment.
        (curve,) = curves_of(evaluations_of(run.log), seen.ledger.lineages)
        scored, means = curve.values
        assert set(scored) >= {2, 4} or len(scored) >= 2, scored
        assert scored[-1] == 4, "the last version of the run"
        assert all(0 <= mean <= 1.5 for mean in means)
