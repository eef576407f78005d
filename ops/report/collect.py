"""Folds the topics of a run into what the report shows.

Order: (1) the ledger, which says what survives; (2) prompts, samples, rewards and outcomes, one partition number at a
time, since a group is on one partition of every topic; (3) weights and events.
Invariants: memory is bounded by one partition's ids and a fixed number of bins; nothing is committed.
Failure: `DeadlineExceeded` or `LogError` when a topic cannot be read to its end.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import orjson
from blake3 import blake3

from ops.evaluations import EvaluationCurve, curves_of, evaluations_of
from ops.live.late import LateComers
from ops.live.picture import SeriesPicture
from ops.report.accounts import Accounts
from ops.report.activity import Activity, Process, process_of
from ops.report.journal import Journal
from ops.report.reading import read_to_end
from ops.report.scores import Scores
from ops.report.summary import RunSummary
from ops.report.verdicts import Said, Verdicts
from ops.run_file import RunFile
from pipeline.history import LedgerView
from schemas.records import LedgerSealed, LineageStarted, Manifest, Outcome, PromptGroup, Reward, Sample, StageEvent
from topics.catalog import EVENTS, LEDGER, PROMPTS, REWARDS, SAMPLES, WEIGHTS
from topics.log import Log

WINDOW = 10  # birth versions in `reward_first` and `reward_last`


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What was folded: the numbers of the summary and what the figures need on top."""

    view: LedgerView
    accounts: Accounts
    scores: Scores
    activity: Activity
    num_published: int
    max_age: int | None  # the bound; None: there is none
    journal: Journal = field(default_factory=Journal)
    verdicts: tuple[Said, ...] = ()
    series: Mapping[str, SeriesPicture] = field(default_factory=dict)  # of `ops.live.series`
    evaluations: tuple[EvaluationCurve, ...] = ()
    afterwards: tuple[Process, ...] = ()  # those that joined after the run's end


def collect(log: Log, *, run_file: RunFile) -> RunFacts:
    """Read the topics of the run.

    Raises:
        DeadlineExceeded, LogError: a topic cannot be read.
    """
    view = _ledger(log)  # (1)
    accounts = Accounts(view)
    scores = Scores(lineages=view.lineages, rewards=run_file.reward_terms)
    for partition in range(log.data_partitions):  # (2)
        _fold_partition(log, partition, accounts=accounts, scores=scores)
    activity, journal, verdicts = Activity(view.lineages), Journal(), Verdicts(run_file)
    published = _published(log, verdicts)  # (3)
    late = LateComers(sealed_ms=None if view.sealed is None else view.sealed.sealed_unix_ms)
    afterwards: dict[str, Process] = {}
    for envelope in read_to_end(log, [EVENTS]):
        event = envelope.record
        if not isinstance(event, StageEvent):
            continue
        if late.add(event):  # of those who scored or looked at it later, the run's time and shares know nothing
            afterwards.setdefault(event.instance, process_of(event))
            continue
        for fold in (activity, journal, verdicts):
            fold.add(event)
    return RunFacts(
        view=view,
        accounts=accounts,
        scores=scores,
        activity=activity,
        journal=journal,
        max_age=None if run_file.run.on_stale == "train" else run_file.run.max_staleness,
        evaluations=tuple(curves_of(evaluations_of(log), view.lineages)),
        verdicts=verdicts.said(),
        series=verdicts.series(),
        afterwards=tuple(each for name, each in afterwards.items() if name in late),
        num_published=len(published | {str(each) for each in activity.versions}),
    )


def summarise(
    facts: RunFacts, *, run_file: RunFile, wall_s: float | None = None, balanced: bool | None = None
) -> RunSummary:
    """The summary of what was collected.

    Args:
        wall_s: how long the run took, as its launcher measured it; None: unknown.
        balanced: what the audit says; None: no audit.
    """
    accounts, activity = facts.accounts, facts.activity
    training_s = _training_s(facts)
    processes = tuple(sorted(activity.processes.values(), key=lambda each: (each.stage, each.instance)))
    return RunSummary(
        run=run_file.run.name,
        steps=facts.view.step,
        reward_first=facts.scores.mean_over(range(WINDOW)),
        reward_last=facts.scores.mean_over(sorted(facts.scores.by_step)[-WINDOW:]),
        evaluation_first={curve.name: curve.first for curve in facts.evaluations},
        evaluation_last={curve.name: curve.last for curve in facts.evaluations},
        samples_produced=accounts.num_produced,
        samples_trained=accounts.num_trained,
        dropped=_sorted(accounts.dropped),
        failed=_sorted(accounts.failed),
        open=accounts.num_open,
        trained_twice=accounts.num_trained_twice,
        max_trained_age=accounts.max_age,
        staleness_bound=None if run_file.run.on_stale == "train" else run_file.run.max_staleness,
        share_trained_at_age_1_or_more=accounts.share_aged,
        weights_published=facts.num_published,
        lineages=facts.view.lineages.current,
        tokens_generated=accounts.num_tokens,
        tokens_per_s=accounts.num_tokens / training_s if training_s else None,
        wall_s=wall_s,
        training_s=training_s,
        num_processes=len(processes),
        processes=processes,
        waits=activity.shares(),
        audit_balanced=balanced,
        clock_skews=activity.num_clock_skews,
        settings_digest=settings_digest(run_file),
        environment=environment(),
    )


def settings_digest(run_file: RunFile) -> str:
    """blake3 of the settings as JSON with sorted keys."""
    text = orjson.dumps(run_file.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
    return blake3(text).hexdigest()


def environment() -> dict[str, str | int | None]:
    """The machine and the packages that decide speed and numbers."""
    packages = {f"{name}_version": _installed(name) for name in ("rlweave", "torch", "confluent-kafka", "fastavro")}
    return {
        "python_version": platform.python_version(),
        **packages,
        "num_cpus": os.cpu_count(),
        "platform": platform.platform(),
    }


def _ledger(log: Log) -> LedgerView:
    view = LedgerView(log.data_partitions)
    for envelope in read_to_end(log, [LEDGER]):
        if isinstance(envelope.record, Outcome | LineageStarted | LedgerSealed):
            view.add(envelope.partition, envelope.record)
    return view


def _fold_partition(log: Log, partition: int, *, accounts: Accounts, scores: Scores) -> None:
    for envelope in read_to_end(log, [PROMPTS, SAMPLES, REWARDS, LEDGER], partition=partition):
        record = envelope.record
        if isinstance(record, Sample):
            accounts.add_sample(record)
            scores.add_sample(record)
        elif isinstance(record, Reward):
            scores.add_reward(record)
        elif isinstance(record, Outcome):
            accounts.add_outcome(record)
            scores.add_outcome(record)
        elif isinstance(record, PromptGroup):
            accounts.add_prompt(record)
    accounts.end_partition()
    scores.end_partition()


def _published(log: Log, verdicts: Verdicts) -> set[str]:
    """Keys on the weights topic, `lineage.step`; a tombstone was a version, too."""
    found = set()
    for envelope in read_to_end(log, [WEIGHTS]):
        verdicts.add_manifest(envelope.record, unix_ms=envelope.unix_ms)
        if envelope.key is not None and (envelope.record is None or isinstance(envelope.record, Manifest)):
            found.add(envelope.key.decode())
    return found


def _training_s(facts: RunFacts) -> float | None:
    first, last = facts.accounts.first_prompt_unix_ms, facts.activity.last_step_unix_ms
    if first is None or last is None:
        return None
    return max(0.0, (last - first - facts.activity.paused_ms(first, last)) / 1000)


def _sorted(counts: Counter[str]) -> Mapping[str, int]:
    return dict(sorted(counts.items()))


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
