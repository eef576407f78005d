"""How the stages of a run hang together.

              .------------------ ledger (credit, closed groups) ------------------.
              v                                 |                                  |
    source -> prompts --> rollout (n) --> samples --> reward (n) --> rewards --> learner
                             ^  ^                                                  |
                  chunks     |  '------------------- weights (manifests) <---------'
         peer ---------------'                              |
           ^ chunk store of the learner's host              v
           every stage --> events --> scheduler --> commands --> prompts, rollout

| stage     | reads                              | writes                    | waits for          | unblocked by     |
|-----------|------------------------------------|---------------------------|--------------------|------------------|
| prompts   | ledger, weights, commands, source  | prompts                   | a version, credit  | learner          |
| rollout   | prompts, ledger, weights, commands | samples                   | a version, prompts | learner, prompts |
| reward    | samples                            | rewards or shadow-rewards | samples            | rollout          |
| learner   | prompts, samples, rewards, events  | ledger, weights           | a batch of groups  | rollout, reward  |
| scheduler | events, weights, lag               | commands                  | events             | everyone         |
| peer      | chunk store                        | chunks over HTTP          | requests           | rollout          |

Every stage writes events, and dead letters for what it cannot decode. Stages share nothing but the log, the chunks and,
where there is one, Redis.
"""

# ruff: noqa: PLC0415 - a process imports its own stage only

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ops.addresses import redis_url
from ops.run_file import RunFile
from ops.supervisor.processes import Program
from pipeline.redis_client import RedisClient
from pipeline.stage import Stage, StageContext
from topics.kafka import KafkaLog


@dataclass(frozen=True, kw_only=True)
class StageChoice:
    """Which stage this process is."""

    stage: str
    slot: int = 0
    reward: str | None = None


def open_log(run_file: RunFile) -> KafkaLog:
    """The run's log; nothing is connected yet."""
    kafka = run_file.kafka
    return KafkaLog(
        kafka.bootstrap,
        run=run_file.run.name,
        data_partitions=run_file.run.partitions,
        replication_factor=kafka.replication_factor,
        config=kafka.config,
    )


def programs(run_file: RunFile, *, settings_file: Path) -> list[Program]:
    """Every process of a run, in the order they are started."""
    return list(_programs(run_file, settings_file=settings_file))


def build_stage(choice: StageChoice, run_file: RunFile, *, context: StageContext) -> Stage:
    """Make the stage object of this process. Only what this stage needs is imported.

    Raises:
        SettingsError: the stage's own settings are wrong.
    """
    url = redis_url(run_file)
    redis = None if url is None else RedisClient(url)
    return _BUILDERS[choice.stage](choice, run_file, context, redis)


def _programs(run_file: RunFile, *, settings_file: Path) -> Iterator[Program]:
    logs = run_file.run.folder / "logs"

    def program(name: str, stage: str, *more: str) -> Program:
        arguments = ("run", stage, "--config", str(settings_file), *more)
        return Program(name=name, stage=stage, arguments=arguments, log_file=logs / f"{name}.log")

    yield program("peer", "peer")
    yield program("learner", "learner")
    yield program("scheduler", "scheduler")
    yield program("prompts", "prompts")
    for slot in range(run_file.rollout.replicas):
        yield program(f"rollout-{slot}", "rollout", "--slot", str(slot))
    for name, reward in sorted(run_file.rewards.items()):
        for slot in range(reward.replicas):
            yield program(f"reward-{name}-{slot}", "reward", "--name", name, "--slot", str(slot))


def _prompts(_: StageChoice, run_file: RunFile, context: StageContext, __: RedisClient | None) -> Stage:
    from producers.prompts.stage import PromptsStage

    return PromptsStage(context, run_file.prompts)


def _rollout(choice: StageChoice, run_file: RunFile, context: StageContext, redis: RedisClient | None) -> Stage:
    from producers.rollout.stage import RolloutSetup, RolloutStage

    setup = RolloutSetup(
        rollout=run_file.rollout, model=run_file.model, weights=run_file.weights, redis=redis, slot=choice.slot
    )
    return RolloutStage(context, setup)


def _reward(choice: StageChoice, run_file: RunFile, context: StageContext, _: RedisClient | None) -> Stage:
    from consumers.rewards.stage import RewardStage

    name = choice.reward if choice.reward is not None else next(iter(run_file.rewards))
    return RewardStage(context, name=name, settings=run_file.rewards[name])


def _learner(_: StageChoice, run_file: RunFile, context: StageContext, redis: RedisClient | None) -> Stage:
    from consumers.learner.stage import LearnerSetup, LearnerStage

    setup = LearnerSetup(
        settings=run_file.learner,
        model=run_file.model,
        weights=run_file.weights,
        rewards=run_file.required_rewards,
        redis=redis,
        lease_s=run_file.redis.lease_s,
    )
    return LearnerStage(context, setup)


def _scheduler(_: StageChoice, run_file: RunFile, context: StageContext, __: RedisClient | None) -> Stage:
    from consumers.scheduler.stage import SchedulerStage

    return SchedulerStage(context, settings=run_file.scheduler)


def _peer(_: StageChoice, run_file: RunFile, context: StageContext, redis: RedisClient | None) -> Stage:
    from pipeline.weights.peer_stage import PeerStage

    return PeerStage(context, run_file.weights, redis=redis)


_BUILDERS = {
    "prompts": _prompts,
    "rollout": _rollout,
    "reward": _reward,
    "learner": _learner,
    "scheduler": _scheduler,
    "peer": _peer,
}
