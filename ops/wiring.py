"""How the stages of a run hang together.

              .------------------ ledger (credit, closed groups) ------------------.
              v                                 |                                  |
    source -> prompts --> rollout (n) --> samples --> reward (n) --> rewards --> learner
                             ^  ^                                                  |
                  chunks     |  '------------------- weights (manifests) <---------'
         peer ---------------'                              |
           ^ chunk store of the learner's host              v
           every stage --> events --> scheduler --> commands --> prompts, rollout, supervisor

| stage     | reads                              | writes                    | waits for          | unblocked by     |
|-----------|------------------------------------|---------------------------|--------------------|------------------|
| prompts   | ledger, weights, commands, source  | prompts                   | a version, credit  | learner          |
| rollout   | prompts, ledger, weights, commands | samples                   | a version, prompts | learner, prompts |
| reward    | samples                            | rewards or shadow-rewards | samples            | rollout          |
| reference | samples                            | reference-scores          | samples            | rollout          |
| learner   | prompts, samples, rewards, events  | ledger, weights           | a batch of groups  | rollout, reward  |
| scheduler | events, weights, ledger, lag       | commands                  | events             | everyone         |
| evaluator | weights, ledger, chunks, sources   | evaluations               | versions           | learner          |
| peer      | chunk store, checkpoints, commands | chunks over HTTP, uploads | requests           | rollout          |

The supervisor (`rlweave up`) starts all of them; it reads commands, and has as many rollouts, rewards and learner ranks
as these ask for. Every stage, and it, writes events, and dead letters for what it cannot decode. Stages share nothing
but the log, the chunks and, where there is one, Redis. A learner of several ranks is several processes that exchange
tensors: each reads its own partitions of the data topics, rank 0 alone writes (docs/design/0008).
"""

# ruff: noqa: PLC0415 - a process imports its own stage only

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.learner.settings import LearnerSettings
from consumers.reference.settings import reference_group
from consumers.rewards.settings import group_id
from ops.addresses import redis_url
from ops.run_file import RunFile
from ops.supervisor.processes import Program
from pipeline.credentials import client_config, redis_client
from pipeline.redis_client import RedisClient
from pipeline.settings import Replicated
from pipeline.stage import Stage, StageContext
from schemas.errors import SettingsError
from topics.access import ADMIN, Grant, grants
from topics.catalog import rollout_group
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog

if TYPE_CHECKING:
    from consumers.learner.trainer import Trainer

ROLLOUT_TARGET, LEARNER_TARGET, REFERENCE_TARGET = "rollout", "learner", "reference"  # of scale commands
SINGLE_STAGES = frozenset({"prompts", "learner", "scheduler"})  # a second one fences the first


@dataclass(frozen=True, kw_only=True)
class StageChoice:
    """Which stage this process is."""

    stage: str
    slot: int = 0
    reward: str | None = None
    past: bool = False  # a reward that scores what is in the log, and ends


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What a stage is made of."""

    choice: StageChoice
    run_file: RunFile
    context: StageContext
    redis: RedisClient | None
    trainer: Callable[[], Trainer] | None = None


def open_log(run_file: RunFile, *, role: str = ADMIN) -> KafkaLog:
    """The run's log, as one of `topics.access.ROLES`; nothing is connected yet.

    Raises:
        SettingsError: the role's credentials cannot be read.
    """
    kafka = run_file.kafka
    return KafkaLog(
        kafka.bootstrap,
        run=run_file.run.name,
        data_partitions=run_file.run.partitions,
        replication_factor=kafka.replication_factor,
        config=client_config(kafka, role=role),
    )


def open_raw_log(run_file: RunFile, *, role: str) -> RawLog:
    """Byte-level access to the broker of a run, for tools.

    Raises:
        SettingsError: the role's credentials cannot be read.
    """
    return RawLog(run_file.kafka.bootstrap, config=client_config(run_file.kafka, role=role))


def access_of(run_file: RunFile, role: str) -> list[Grant]:
    """What a role needs on the broker for this run."""
    groups = [reward.group for reward in run_file.rewards.values() if reward.group is not None]
    return grants(role, run=run_file.run.name, reward_groups=groups)


def programs(run_file: RunFile, *, settings_file: Path) -> list[Program]:
    """Every process of a run, in the order they are started, those included that are only started when more of their
    kind are wanted."""
    return list(_programs(run_file, settings_file=settings_file))


def scale_limits(run_file: RunFile, *, stages: Collection[str]) -> dict[str, tuple[int, int]]:
    """Fewest and most processes of each target of scale commands, of these stages; of the learner its ranks."""
    limits = {ROLLOUT_TARGET: run_file.rollout.replica_limits} if "rollout" in stages else {}
    if "learner" in stages:
        limits[LEARNER_TARGET] = run_file.learner.rank_limits
    if "reward" in stages:
        limits |= {reward_target(name): reward.replica_limits for name, reward in sorted(run_file.rewards.items())}
    if "reference" in stages and run_file.reference is not None:
        limits[REFERENCE_TARGET] = run_file.reference.replica_limits
    return limits


def pool_of(run_file: RunFile, *, stages: Collection[str]) -> int | None:
    """Slots that the rollouts and ranks of this launch share; None: they share none.

    Raises:
        SettingsError: only one of the two is started here, so nobody here could hold the pool.
    """
    slots = run_file.run.slots
    here = [stage for stage in ("rollout", "learner") if stage in stages]
    if slots is None or not here:
        return None
    if len(here) == 1:
        raise SettingsError(
            f"run.slots = {slots} is a pool that rollouts and learner ranks share, but only {here[0]} is started here",
            hint="start both with one `rlweave up`, or leave run.slots out",
        )
    return slots


def reward_target(name: str) -> str:
    """What scale commands call the processes of a reward."""
    return f"reward.{name}"


def build_stage(
    choice: StageChoice, run_file: RunFile, *, context: StageContext, trainer: Callable[[], Trainer] | None = None
) -> Stage:
    """Make the stage object of this process. Only what this stage needs is imported.

    Args:
        trainer: makes the one a learner rank trains with; None: the model's own.

    Raises:
        SettingsError: the stage's own settings are wrong.
        RedisRefused: Redis does not let us in. (One that does not answer is no error.)
    """
    redis = None if redis_url(run_file) is None else redis_client(run_file.redis)
    if redis is not None:
        redis.check()
    return _BUILDERS[choice.stage](
        _Parts(choice=choice, run_file=run_file, context=context, redis=redis, trainer=trainer)
    )


def _programs(run_file: RunFile, *, settings_file: Path) -> Iterator[Program]:
    logs = run_file.run.folder / "logs"

    def program(name: str, stage: str, *more: str) -> Program:
        arguments = ("run", stage, "--config", str(settings_file), *more)
        return Program(name=name, stage=stage, arguments=arguments, log_file=logs / f"{name}.log")

    def seats(settings: Replicated) -> Iterator[tuple[str, bool]]:
        """Slot numbers, and which of them are spare at first."""
        for slot in range(settings.replica_limits[1]):
            yield str(slot), slot >= settings.replicas

    def ranks(settings: LearnerSettings) -> Iterator[Program]:
        """One unit, whatever its size; of one rank for ever it has the stage's own name."""
        fewest, most = settings.rank_limits
        limits = (f"learner.min_ranks={fewest}", f"learner.max_ranks={most}") if fewest < most else ()
        told = [text for limit in limits for text in ("--set", limit)]  # absent, they would follow learner.ranks
        for rank in range(most):
            slot = ("--slot", str(rank)) if most > 1 else ()
            yield replace(
                program(f"learner-{rank}" if most > 1 else "learner", "learner", *slot, *told),
                unit="learner",
                target=LEARNER_TARGET,
                spare=rank >= settings.ranks,
                pooled=True,
                size_setting="learner.ranks" if limits else "",
            )

    yield program("peer", "peer")
    yield from ranks(run_file.learner)
    yield program("scheduler", "scheduler")
    yield program("prompts", "prompts")
    for slot, spare in seats(run_file.rollout):
        one = program(f"rollout-{slot}", "rollout", "--slot", slot)
        yield replace(one, target=ROLLOUT_TARGET, spare=spare, pooled=True)
    for name, reward in sorted(run_file.rewards.items()):
        for slot, spare in seats(reward):
            one = program(f"reward-{name}-{slot}", "reward", "--name", name, "--slot", slot)
            yield replace(one, target=reward_target(name), spare=spare)
    if run_file.reference is not None:
        several = run_file.reference.replica_limits[1] > 1
        for slot, spare in seats(run_file.reference):
            more = ("--slot", slot) if several else ()
            one = program("-".join(("reference", *more[1:])), "reference", *more)
            yield replace(one, target=REFERENCE_TARGET, spare=spare)
    if run_file.evaluation:
        yield program("evaluator", "evaluator")


def _prompts(parts: _Parts) -> Stage:
    from producers.prompts.stage import PromptsStage

    return PromptsStage(parts.context, parts.run_file.prompts)


def _rollout(parts: _Parts) -> Stage:
    from producers.rollout.stage import RolloutSetup, RolloutStage

    setup = RolloutSetup(
        rollout=parts.run_file.rollout,
        model=parts.run_file.model,
        weights=parts.run_file.weights,
        redis=parts.redis,
        slot=parts.choice.slot,
        environment=parts.run_file.environment,
    )
    return RolloutStage(parts.context, setup)


def _reward(parts: _Parts) -> Stage:
    from consumers.rewards.stage import RewardStage

    name = parts.choice.reward if parts.choice.reward is not None else next(iter(parts.run_file.rewards))
    settings = parts.run_file.rewards[name]
    if not parts.choice.past:
        return RewardStage(parts.context, name=name, settings=settings)
    from consumers.rewards.rescore import RescoreStage

    return RescoreStage(parts.context, name=name, settings=settings)


def _reference(parts: _Parts) -> Stage:
    settings = parts.run_file.reference
    if settings is None:
        raise SettingsError(
            "this run has no reference model", hint="add a section [reference] to the run file, which may be empty"
        )
    from consumers.reference.stage import ReferenceStage

    return ReferenceStage(parts.context, settings, model=parts.run_file.model)


def _learner(parts: _Parts) -> Stage:
    ranks, rank = parts.run_file.learner.ranks, parts.choice.slot
    if rank >= ranks:
        raise SettingsError(
            f"--slot {rank} is no learner rank: learner.ranks = {ranks}, so they are 0 to {ranks - 1}",
            hint="raise learner.ranks, or leave the slot out for a single rank",
        )
    from consumers.learner.setup import LearnerSetup
    from consumers.learner.stage import LearnerStage

    setup = LearnerSetup(
        settings=parts.run_file.learner,
        model=parts.run_file.model,
        weights=parts.run_file.weights,
        rewards=parts.run_file.reward_terms,
        has_reference=parts.run_file.reference is not None,
        redis=parts.redis,
        lease_s=parts.run_file.redis.lease_s,
        trainer=parts.trainer,
    )
    if rank == 0:
        return LearnerStage(parts.context, setup)
    from consumers.learner.ranks.follow import FollowerStage

    return FollowerStage(parts.context, setup, rank=rank)


def _scheduler(parts: _Parts) -> Stage:
    from consumers.scheduler.snapshot import Scalable
    from consumers.scheduler.stage import SchedulerStage

    run_file = parts.run_file
    run, rewards = run_file.run.name, run_file.rewards
    kinds = {reward_target(name): (group_id(run, name, settings=of), of.replicas) for name, of in rewards.items()}
    kinds[ROLLOUT_TARGET] = (rollout_group(run), run_file.rollout.replicas)
    kinds[LEARNER_TARGET] = ("", run_file.learner.ranks)
    if run_file.reference is not None:
        kinds[REFERENCE_TARGET] = (reference_group(run), run_file.reference.replicas)
    fleet = tuple(
        Scalable(target=target, group=kinds[target][0], least=least, most=most, initial=kinds[target][1])
        for target, (least, most) in scale_limits(run_file, stages=tuple(_BUILDERS)).items()
        if least < most
    )
    return SchedulerStage(parts.context, settings=run_file.scheduler, fleet=fleet, topology=run_file.topology)


def _evaluator(parts: _Parts) -> Stage:
    from consumers.evaluator.stage import EvaluatorSetup, EvaluatorStage

    run_file = parts.run_file
    if not run_file.evaluation:
        raise SettingsError("there is nothing to evaluate on", hint="describe a set in [evaluation.NAME]")
    setup = EvaluatorSetup(
        evaluator=run_file.evaluator,
        sets=run_file.evaluation,
        model=run_file.model,
        weights=run_file.weights,
        redis=parts.redis,
    )
    return EvaluatorStage(parts.context, setup)


def _peer(parts: _Parts) -> Stage:
    from pipeline.weights.peer_stage import PeerStage

    run_file = parts.run_file
    return PeerStage(
        parts.context,
        run_file.weights,
        redis=parts.redis,
        traffic=run_file.traffic,
        uploads=run_file.learner.checkpoint,
    )


_BUILDERS = {
    "prompts": _prompts,
    "rollout": _rollout,
    "reward": _reward,
    "reference": _reference,
    "learner": _learner,
    "scheduler": _scheduler,
    "peer": _peer,
    "evaluator": _evaluator,
}
