"""A producer as a process of its own: `python -m tests.integration.producer_process STAGE BOOTSTRAP RUN SETTINGS`.

STAGE is prompts or rollout; RUN and SETTINGS are the settings of the run and of the stage as JSON; for a rollout
producer SETTINGS has `slot` besides. The exit code is the stage's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipeline.engines.backends import Backend, BackendSettings
from pipeline.engines.base import Generation
from pipeline.engines.scripted import ScriptedEngine
from pipeline.settings import ModelSettings, RunSettings, WeightsSettings
from pipeline.stage import Stage, StageContext, make_context, run_stage
from pipeline.weights.state import decode_arrays
from producers.prompts.settings import PromptsSettings
from producers.prompts.stage import PromptsStage
from producers.rollout.settings import RolloutSettings
from producers.rollout.stage import RolloutSetup, RolloutStage
from topics.clock import SystemClock
from topics.kafka import KafkaLog

_CLOCK = SystemClock()


class SlowEngine(ScriptedEngine):
    """So slow that a test can kill the process in the middle of a group."""

    def step(self) -> list[Generation]:
        _CLOCK.wait(0.01)
        return super().step()


def slow_backend(settings: BackendSettings) -> Backend:
    """A backend plug-in."""
    return Backend(engine=SlowEngine(max_concurrent_sequences=settings.max_sequences), decode=decode_arrays)


def stage_of(name: str, context: StageContext, settings: dict[str, object]) -> Stage:
    """The stage of this process."""
    if name == "prompts":
        return PromptsStage(context, PromptsSettings.model_validate(settings))
    slot = int(str(settings.pop("slot")))
    setup = RolloutSetup(
        rollout=RolloutSettings.model_validate(settings),
        model=ModelSettings(path=Path("none")),
        weights=WeightsSettings(),
        slot=slot,
    )
    return RolloutStage(context, setup)


def main(name: str, bootstrap: str, run_json: str, settings: str) -> int:
    """Run until a signal comes."""
    run = RunSettings.model_validate_json(run_json)
    log = KafkaLog(bootstrap, run=run.name, data_partitions=run.partitions)
    context = make_context(log, run=run, stage=name)
    return int(run_stage(stage_of(name, context, json.loads(settings)), context))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
