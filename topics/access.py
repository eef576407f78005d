"""Who may do what: the least that each role needs on the topics of a run.

Role: the table of the catalog's readers and writers as data. `topics.kafka.acls` turns it into rules of a broker, and
a test runs a whole run under them.
Data in: a role and a run name. Data out: `Grant`s.
Invariants: nothing of another run; only the roles that own a transactional id may use it, so nobody else can fence
them. `read`, `write` and `delete` imply `describe` (Kafka's own rule).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from topics.catalog import (
    COMMANDS,
    DEAD_LETTERS,
    EVALUATIONS,
    EVENTS,
    LEDGER,
    PARTIALS,
    PROMPTS,
    REFERENCE_SCORES,
    REWARDS,
    SAMPLES,
    SHADOW_REWARDS,
    WEIGHTS,
    Topic,
    check_run_name,
    full_name,
)

ADMIN = "admin"  # `rlweave up` and what creates, deletes or copies topics
READER = "reader"  # tools that only look: audit, replay, report, export, retrain, status
STAGES = ("prompts", "rollout", "reward", "reference", "learner", "scheduler", "peer", "evaluator")
ROLES = (ADMIN, *STAGES, READER)
TOOLS_RUN = "tools"  # stands for the run in names of what tools show

Resource = Literal["topic", "group", "transactional_id"]
Operation = Literal["read", "write", "create", "delete", "describe", "describe_configs", "alter_configs"]


@dataclass(frozen=True, kw_only=True, order=True)
class Grant:
    """One thing a role may do."""

    resource: Resource
    name: str  # full name, or its beginning
    prefixed: bool = False
    operation: Operation


@dataclass(frozen=True, kw_only=True)
class _Needs:
    """What a stage does beyond what every stage does."""

    reads: tuple[Topic, ...] = ()
    writes: tuple[Topic, ...] = ()
    group: str = ""  # the last part of its consumer group's id; ends with a dot when more follows
    fences: bool = False  # writes under the transactional id rlweave.<run>.<stage>


_NEEDS = {
    "prompts": _Needs(reads=(PROMPTS, LEDGER, WEIGHTS, COMMANDS), writes=(PROMPTS,), fences=True),
    "rollout": _Needs(
        reads=(PROMPTS, LEDGER, WEIGHTS, COMMANDS, PARTIALS), writes=(SAMPLES, PARTIALS), group="rollout"
    ),
    "reward": _Needs(reads=(SAMPLES,), writes=(REWARDS, SHADOW_REWARDS), group="reward."),
    "reference": _Needs(reads=(SAMPLES,), writes=(REFERENCE_SCORES,), group="reference"),
    "learner": _Needs(
        reads=(PROMPTS, SAMPLES, REWARDS, REFERENCE_SCORES, LEDGER, EVENTS, WEIGHTS),
        writes=(LEDGER, WEIGHTS),
        group="learner",
        fences=True,
    ),
    "scheduler": _Needs(reads=(EVENTS, WEIGHTS, COMMANDS, LEDGER), writes=(COMMANDS,), fences=True),
    "peer": _Needs(reads=(COMMANDS,)),
    "evaluator": _Needs(reads=(LEDGER, WEIGHTS, EVALUATIONS), writes=(EVALUATIONS,)),
}


def grants(role: str, *, run: str, reward_groups: Sequence[str] = ()) -> list[Grant]:
    """Everything a role needs on a run, sorted, none twice.

    Args:
        role: one of `ROLES`.
        run: run name.
        reward_groups: consumer groups of rewards whose settings name one of their own.

    Raises:
        SettingsError: the run name is not allowed.
    """
    check_run_name(run)
    chosen = {ADMIN: _of_admin, READER: _of_reader}.get(role)
    found = set(_of_stage(role, run=run, reward_groups=reward_groups) if chosen is None else chosen(run))
    return sorted(found | set(_of_all(run)))


def no_commits_group(run: str) -> str:
    """The group id that readers which assign themselves and commit nothing show."""
    return f"rlweave.{run}.no-commits"


def _of_all(run: str) -> Iterator[Grant]:
    """Every process checks the topics' settings, and its client asks where its group's coordinator would be."""
    yield from _on_run("topic", run, "describe", "describe_configs")
    yield Grant(resource="group", name=no_commits_group(run), operation="describe")


def _of_stage(stage: str, *, run: str, reward_groups: Sequence[str]) -> Iterator[Grant]:
    needs = _NEEDS[stage]
    for topic in needs.reads:
        yield Grant(resource="topic", name=full_name(run, topic), operation="read")
    for topic in (*needs.writes, EVENTS, DEAD_LETTERS):
        yield Grant(resource="topic", name=full_name(run, topic), operation="write")
    if needs.group:
        name = f"rlweave.{run}.{needs.group}"
        yield Grant(resource="group", name=name, prefixed=name.endswith("."), operation="read")
    if needs.fences:
        yield Grant(resource="transactional_id", name=f"rlweave.{run}.{stage}", operation="write")
    if stage == "reward":
        yield from (Grant(resource="group", name=group, operation="read") for group in reward_groups)
    if stage == "scheduler":  # it watches the lag of all
        yield from _on_run("group", run, "describe")
        yield from (Grant(resource="group", name=group, operation="describe") for group in reward_groups)


def _of_admin(run: str) -> Iterator[Grant]:
    yield from _on_run("topic", run, "create", "delete", "read", "write", "alter_configs")
    yield from _of_reader(run)


def _of_reader(run: str) -> Iterator[Grant]:
    yield from _on_run("topic", run, "read")
    yield from _on_run("group", run, "describe")
    yield Grant(resource="group", name=no_commits_group(TOOLS_RUN), operation="describe")


def _on_run(resource: Resource, run: str, *operations: Operation) -> Iterator[Grant]:
    """On everything whose name begins with that of the run; no run name can continue it, as it ends with a dot."""
    for operation in operations:
        yield Grant(resource=resource, name=f"rlweave.{run}.", prefixed=True, operation=operation)
