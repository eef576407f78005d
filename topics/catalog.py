"""The topics of a run, on one screen.

Names are `rlweave.<run>.<topic>`. All data topics have the same partition count P, and group n lives on partition
n mod P of each of them, written explicitly, so a group is on one partition number everywhere. P never changes
within a run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from schemas.errors import SettingsError
from schemas.evaluation import Evaluation
from schemas.records import (
    Command,
    DeadLetter,
    LedgerSealed,
    LineageStarted,
    Manifest,
    Outcome,
    Partial,
    PromptGroup,
    Record,
    ReferenceScore,
    Reward,
    Sample,
    StageEvent,
)

MAX_RECORD_BYTES = 32 * 1024 * 1024  # of one encoded record, before compression
DAY_MS = 24 * 3600 * 1000
_RUN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic of the catalog."""

    name: str  # short name; the full one carries the run
    records: tuple[type[Record], ...]
    partitions: Literal["data", "one"]  # "data": P, and partition = group mod P; "one": a single partition
    cleanup: Literal["delete", "compact"] = "delete"
    retention_ms: int = -1  # -1: kept until somebody deletes the run
    max_record_bytes: int = MAX_RECORD_BYTES


PROMPTS = Topic(name="prompts", records=(PromptGroup,), partitions="data")
SAMPLES = Topic(name="samples", records=(Sample,), partitions="data")
REWARDS = Topic(name="rewards", records=(Reward,), partitions="data")
SHADOW_REWARDS = Topic(name="shadow-rewards", records=(Reward,), partitions="data")
REFERENCE_SCORES = Topic(name="reference-scores", records=(ReferenceScore,), partitions="data")
LEDGER = Topic(name="ledger", records=(Outcome, LineageStarted, LedgerSealed), partitions="data")
PARTIALS = Topic(name="partials", records=(Partial,), partitions="data", retention_ms=15 * 60 * 1000)
EVENTS = Topic(name="events", records=(StageEvent,), partitions="one", retention_ms=7 * DAY_MS)
COMMANDS = Topic(name="commands", records=(Command,), partitions="one", cleanup="compact")
WEIGHTS = Topic(name="weights", records=(Manifest,), partitions="one", cleanup="compact")
EVALUATIONS = Topic(name="evaluations", records=(Evaluation,), partitions="one")
DEAD_LETTERS = Topic(
    name="dead-letters",
    records=(DeadLetter,),
    partitions="one",
    retention_ms=30 * DAY_MS,
    max_record_bytes=MAX_RECORD_BYTES + 1024 * 1024,  # the largest record of any other topic, with its origin
)

CATALOG = (
    PROMPTS,
    SAMPLES,
    REWARDS,
    SHADOW_REWARDS,
    REFERENCE_SCORES,
    LEDGER,
    PARTIALS,
    EVENTS,
    COMMANDS,
    WEIGHTS,
    EVALUATIONS,
    DEAD_LETTERS,
)
BY_NAME = {topic.name: topic for topic in CATALOG}


def rollout_group(run: str) -> str:
    """The consumer group in which rollout producers share the prompts."""
    return f"rlweave.{run}.rollout"


def full_name(run: str, topic: Topic) -> str:
    """The Kafka name of a run's topic.

    Raises:
        SettingsError: the run name does not fit the pattern.
    """
    check_run_name(run)
    return f"rlweave.{run}.{topic.name}"


def check_run_name(run: str) -> None:
    """Accept lower-case letters, digits, `-` and `_`, at most 63, beginning with a letter or digit.

    Raises:
        SettingsError: with the name seen.
    """
    if not _RUN_NAME.match(run):
        raise SettingsError(
            f"run name {run!r} is not allowed",
            hint="use 1 to 63 lower-case letters, digits, '-' or '_', beginning with a letter or digit",
        )


def num_partitions(topic: Topic, data_partitions: int) -> int:
    """Partition count of a topic in a run with `data_partitions` = P."""
    return data_partitions if topic.partitions == "data" else 1


def partition_of(group: int, data_partitions: int) -> int:
    """The partition of group n on every data topic."""
    return group % data_partitions
