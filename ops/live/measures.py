"""The numbers of a picture that say who waits for whom.

Data in: `RunPicture`. Data out: `Measures`.
Invariants: unknown is None, never 0; shares are over the picture's window and means over the processes of a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ops.live.crew import at_work, gauge, largest, rate, rewards_of, share
from ops.live.picture import ProcessPicture, RunPicture, VersionPicture
from ops.live.versions import versions_behind
from topics.catalog import PROMPTS, SAMPLES

_LAST_VERSIONS = 8


@dataclass(frozen=True, kw_only=True)
class RewardMeasures:
    """One reward."""

    name: str
    num_processes: int
    busy: float  # share of the time that its processes score, or look out for more
    load: float  # share of the time that one of its calls takes, at most 1; 0: unknown
    scored_per_s: float | None
    lag_records: float | None  # samples before it
    lag_s: float | None  # of its work, as the scheduler measures; without one, at its present rate
    best_per_s: float | None  # scored, the most so far by the processes that are at work
    held: float  # part of the open groups that wait for it, lately; 0: unknown
    is_paused: bool  # by its breaker


@dataclass(frozen=True, kw_only=True)
class Measures:
    """All stages."""

    learner_waits: float
    num_rollouts: int
    rollouts_generate: float
    rollouts_parked: float
    rollouts_swap: float
    rollouts_wait_prompts: float
    rollouts_wait_weights: float
    prompts_wait_credit: float
    rewards: tuple[RewardMeasures, ...]
    held_generating: float  # part of the open groups that engines have taken
    open_groups: float | None
    credit: float | None
    most_credit: float | None  # that the settings allow, were weights never late
    ready_groups: float | None
    groups_per_s: float | None  # admitted
    samples_per_s: float | None  # made
    tokens_per_s: float | None
    step_s: float | None  # mean of the last steps
    best_step_s: float | None  # the least that it was
    trained_per_s: float | None  # over the last steps
    best_trained_per_s: float | None
    serve_s: float | None  # from the manifest to the engines, median of the last versions
    versions_behind: float | None
    bound: int | None  # most versions that a sample may be old; None: no bound, or not known
    is_behind: bool  # an engine lacks more versions than samples may be old
    publish_lag: float | None  # versions that pass until one serves, as the credit counts them
    fetch_bytes_s: float | None  # into the host where it takes longest
    fetch_s: float | None  # of a version there, median of the last ones
    version_bytes: int | None  # of the newest version, on its way
    lost_share: float | None  # of the ids closed in the last minute, those of the most frequent reason
    lost_reason: str
    has_scheduler: bool

    @property
    def reward_load(self) -> float:
        """Part of its time that the busiest reward computes; its phase says more, as it looks out for a while."""
        return max((each.load for each in self.rewards), default=0.0)

    @property
    def slowest_reward(self) -> RewardMeasures | None:
        """The one before which most groups wait; of several with as many, the busiest."""
        return max(self.rewards, key=lambda each: (each.held, each.busy), default=None)


def measures_of(picture: RunPicture) -> Measures:
    """Of the processes that are at work."""
    learner, rollouts = at_work(picture.processes, "learner"), at_work(picture.processes, "rollout")
    prompts, scheduler = at_work(picture.processes, "prompts"), at_work(picture.processes, "scheduler")
    open_groups, in_flight = gauge(prompts, "open_groups"), gauge(rollouts, "prompts_in_flight")
    bound, behind = picture.facts.max_staleness, versions_behind(picture.processes, picture.versions)
    behind = largest(rollouts, "versions_behind") if behind is None else behind
    fetch_s, fetch_bytes_s = _fetch(picture.versions, rollouts)
    lost_reason, lost_share = _lost(picture)
    steps = [flow.per_s for flow in picture.flows if flow.what == "versions"]
    return Measures(
        learner_waits=share(learner, ["waiting_for_data"]),
        num_rollouts=len(rollouts),
        rollouts_generate=share(rollouts, ["generating"]),
        rollouts_parked=share(rollouts, ["parked"]),
        rollouts_swap=share(rollouts, ["swapping"]),
        rollouts_wait_prompts=share(rollouts, ["waiting_for_prompts"]),
        rollouts_wait_weights=share(rollouts, ["waiting_for_weights"]),
        prompts_wait_credit=share(prompts, ["waiting_for_credit"]),
        rewards=tuple(_rewards(picture, open_groups=open_groups)),
        held_generating=_part(in_flight, open_groups),
        open_groups=open_groups,
        credit=gauge(prompts, "credit_groups"),
        most_credit=picture.facts.credit_groups,
        ready_groups=gauge(learner, "ready_groups"),
        groups_per_s=rate(prompts, f"records_written{{topic={PROMPTS.name}}}"),
        samples_per_s=rate(rollouts, f"records_written{{topic={SAMPLES.name}}}"),
        tokens_per_s=rate(rollouts, "tokens_generated"),
        step_s=_step_s(picture, steps_per_s=steps[0] if steps else None),
        best_step_s=picture.steps.best_step_s,
        trained_per_s=picture.steps.trained_per_s,
        best_trained_per_s=picture.steps.best_trained_per_s,
        serve_s=serve_s(picture, rollouts),
        versions_behind=behind,
        bound=bound,
        is_behind=behind is not None and bound is not None and behind > max(1, bound),
        publish_lag=largest(scheduler, "publish_lag_versions"),
        fetch_bytes_s=fetch_bytes_s,
        fetch_s=fetch_s,
        version_bytes=next((each.num_bytes for each in reversed(picture.versions) if each.num_bytes), None),
        lost_share=lost_share,
        lost_reason=lost_reason,
        has_scheduler=bool(scheduler),
    )


def serve_s(picture: RunPicture, rollouts: Sequence[ProcessPicture]) -> float | None:
    """Seconds from a manifest to the engines that are at work, median over engines and the last versions."""
    names = {each.instance for each in rollouts}
    known = [each for each in picture.versions if each.published_ms is not None and names & each.served_ms.keys()]
    waits = [
        max(0.0, (at_ms - each.published_ms) / 1000)
        for each in known[-_LAST_VERSIONS:]
        for instance, at_ms in each.served_ms.items()
        if each.published_ms is not None and instance in names
    ]
    return median(waits) if waits else None


def _rewards(picture: RunPicture, *, open_groups: float | None) -> list[RewardMeasures]:
    lags = {(each.group, each.topic): each for each in picture.lag}
    found = []
    for name, group in rewards_of(picture.processes).items():
        own = [each for each in at_work(picture.processes, "reward") if each.name == f"reward {name}"]
        lag = lags.get((group, SAMPLES.name))
        scored = gauge(own, "scored_per_s")
        records = None if lag is None else lag.records
        mean = records if lag is None or lag.records_mean is None else lag.records_mean
        size = picture.facts.group_size
        found.append(
            RewardMeasures(
                name=name,
                num_processes=len(own),
                busy=share(own, ["scoring"]),
                load=_load(own),
                scored_per_s=scored,
                lag_records=records,
                lag_s=_lag_s(None if lag is None else lag.seconds, records=records, scored_per_s=scored),
                best_per_s=_sum(each.best_scored_per_s for each in own),
                held=_part(None if mean is None or size is None else mean / size, open_groups),
                is_paused=bool(gauge(own, "breaker_open")),
            )
        )
    return found


def _load(processes: Sequence[ProcessPicture]) -> float:
    loads = [each.gauges.get("scored_per_s", 0.0) * each.gauges.get("score_mean_s", 0.0) for each in processes]
    return min(1.0, sum(loads) / len(loads)) if loads else 0.0


def _part(groups: float | None, open_groups: float | None) -> float:
    return 0.0 if groups is None or not open_groups else min(1.0, groups / open_groups)


def _lag_s(seconds: float | None, *, records: float | None, scored_per_s: float | None) -> float | None:
    if seconds is not None:
        return seconds
    return records / scored_per_s if records is not None and scored_per_s else None


def _sum(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def _step_s(picture: RunPicture, *, steps_per_s: float | None) -> float | None:
    if picture.steps.step_s is not None:
        return picture.steps.step_s
    return 1 / steps_per_s if steps_per_s else None


def _lost(picture: RunPicture) -> tuple[str, float | None]:
    """The reason for which most ids were lost lately, and their share; unknown while nothing was closed."""
    lately = picture.lately
    whole = lately.trained + sum(lately.lost.values())
    if not whole or not lately.lost:
        return "", 0.0 if whole else None
    reason = max(lately.lost, key=lambda each: lately.lost[each])
    return reason, lately.lost[reason] / whole


def _fetch(versions: Sequence[VersionPicture], rollouts: Sequence[ProcessPicture]) -> tuple[float | None, float | None]:
    """Seconds that a fetch of a version takes, and bytes per second in it: medians of the last versions.

    Of each version the longest fetch counts: engines that share a host share what was fetched, so the others' time
    goes with no bytes.
    """
    names = {each.instance for each in rollouts}
    seconds, rates = list[float](), list[float]()
    for version in [each for each in versions if names & each.fetched_s.keys()][-_LAST_VERSIONS:]:
        spent_s, instance = max((spent_s, each) for each, spent_s in version.fetched_s.items() if each in names)
        seconds.append(spent_s)
        if spent_s > 0:
            rates.append(version.fetched_bytes.get(instance, 0) / spent_s)
    return (median(seconds) if seconds else None, median(rates) if rates else None)
