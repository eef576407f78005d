"""A reward consumer as a process of its own: `python -m tests.integration.reward_process BOOTSTRAP RUN NAME SETTINGS`.

SETTINGS is the reward's table as JSON. The exit code is the stage's.
"""

from __future__ import annotations

import sys

from consumers.rewards.settings import RewardSettings
from consumers.rewards.stage import RewardStage
from pipeline.settings import RunSettings
from pipeline.stage import make_context, run_stage
from schemas.records import Sample
from tests.conftest import DATA_PARTITIONS
from topics.clock import SystemClock
from topics.kafka import KafkaLog

_CLOCK = SystemClock()


def slow(sample: Sample) -> float:
    """So slow that a test can kill the process in the middle."""
    _CLOCK.wait(0.02)
    return float(sample.group)


def main(bootstrap: str, run: str, name: str, settings: str) -> int:
    """Run until a signal comes."""
    log = KafkaLog(bootstrap, run=run, data_partitions=DATA_PARTITIONS)
    context = make_context(log, run=RunSettings(name=run, partitions=DATA_PARTITIONS), stage="reward")
    stage = RewardStage(context, name=name, settings=RewardSettings.model_validate_json(settings))
    return int(run_stage(stage, context))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
