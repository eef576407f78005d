"""Combinations of settings that cannot make progress, found before anything starts.

Role: each setting is fine by itself (its type checks that); here they are held against each other.
Data in: a `RunFile`. Data out: nothing, or an error that lists all findings. Warnings come back as text.
"""

from __future__ import annotations

from collections.abc import Iterator

from ops.addresses import LOCAL, WITHOUT
from ops.run_file import RunFile
from ops.wiring import programs, scale_limits
from pipeline.metrics import NUM_PORTS
from pipeline.redis_client import RedisClient
from schemas.errors import SettingsError

# A group's records in memory: prompt and completion tokens with log-probabilities and mask, text and overhead.
BYTES_PER_TOKEN = 16
SAMPLE_OVERHEAD_BYTES = 4096
LONGEST_TRANSACTION_S = 30.0


def check_run(run_file: RunFile) -> list[str]:
    """Refuse what cannot work; returns warnings about what works badly.

    Raises:
        SettingsError: with every finding.
    """
    errors = list(_errors(run_file))
    if errors:
        raise SettingsError(f"{len(errors)} combination(s) of settings cannot work:\n  " + "\n  ".join(errors))
    return list(_warnings(run_file))


def _errors(run_file: RunFile) -> Iterator[str]:
    run = run_file.run
    if run.min_group_members is not None and run.min_group_members > run.group_size:
        yield (
            f"run.min_group_members = {run.min_group_members} is above run.group_size = {run.group_size}: "
            "every group would be dropped"
        )
    yield from _environment_errors(run_file)
    if not run_file.required_rewards:
        yield "rewards: none is required and has a weight other than 0, so there is nothing to learn from"
    elif all(term.weight == 0 for term in run_file.reward_terms.values()):
        yield "rewards: all are gates of weight 0, and there is nothing that they could let through"
    ranks, name = _most_ranks(run_file)
    if ranks > run.partitions:
        yield (
            f"{name} = {ranks} is above run.partitions = {run.partitions}: every rank reads partitions of its own, so "
            "some would have none"
        )
    yield from _pool_errors(run_file)
    if run_file.rollout.max_sequences < run.group_size:
        yield (
            f"rollout.max_sequences = {run_file.rollout.max_sequences} is below run.group_size = {run.group_size}: "
            "a group is generated whole, so none would ever start"
        )
    needed = run.credit_groups * run.group_size * _sample_bytes(run_file)
    if run_file.learner.buffer_bytes < needed:
        yield (
            f"learner.buffer_bytes = {run_file.learner.buffer_bytes} cannot hold the {run.credit_groups} groups that "
            f"may be open; about {needed} are needed, or a lower run.max_staleness or run.groups_per_step"
        )
    if run_file.redis.url not in (LOCAL, WITHOUT):
        try:
            RedisClient(run_file.redis.url)  # reads the URL and connects to nothing
        except SettingsError as error:
            yield f"redis.url: {error.message}, or {LOCAL!r}, or {WITHOUT!r}"
    if run_file.rollout.engine == "http":
        yield from _server_errors(run_file)
    cloning = run_file.learner.cloning
    if cloning.num_steps > 0 and cloning.source is None:
        yield "learner.cloning.num_steps is above 0 but learner.cloning.source is not set"


def _environment_errors(run_file: RunFile) -> Iterator[str]:
    named = [name for name, reward in run_file.rewards.items() if reward.plugin == "environment"]
    if named and run_file.environment is None:
        yield (
            f"rewards.{named[0]}.plugin = environment and there is no [environment]: no sample has step rewards, so "
            "none would be scored"
        )
    yield from _too_long_episodes(run_file)
    for name, chosen in run_file.evaluation.items():
        if chosen.plugin == "environment" and chosen.environment is None:
            yield (
                f"evaluation.{name}.plugin = environment and there is no [evaluation.{name}.environment]: its "
                "completions are of one turn, without step rewards, so none would be scored"
            )


def _too_long_episodes(run_file: RunFile) -> Iterator[str]:
    """Trajectories that may take longer than anybody waits for them."""
    limit_s = None if run_file.environment is None else run_file.environment.episode_limit_s
    if limit_s is None:
        return
    deadline_s, silent_s = run_file.run.group_deadline_s, run_file.learner.silent_end_s
    if limit_s > deadline_s:
        yield (
            f"environment.episode_limit_s = {limit_s:g} is above run.group_deadline_s = {deadline_s:g}: a group is "
            "closed without its trajectories that take longer than that; raise the latter, or lower the former "
            "(absent: 0.8 of it)"
        )
    if limit_s > silent_s:
        yield (
            f"environment.episode_limit_s = {limit_s:g} is above learner.silent_end_s = {silent_s:g}: a run of "
            "which all trajectories are that long ends as if nobody were alive"
        )


def _pool_errors(run_file: RunFile) -> Iterator[str]:
    slots, rollouts, ranks = run_file.run.slots, run_file.rollout.replicas, run_file.learner.ranks
    if slots is not None and rollouts + ranks > slots:
        yield (
            f"rollout.replicas = {rollouts} and learner.ranks = {ranks} need {rollouts + ranks} slots at the start, "
            f"run.slots = {slots}"
        )


def _pool_warnings(run_file: RunFile) -> Iterator[str]:
    slots = run_file.run.slots
    if slots is None:
        return
    (fewest, most), (fewest_ranks, most_ranks) = run_file.rollout.replica_limits, run_file.learner.rank_limits
    if most + fewest_ranks > slots:
        yield (
            f"{_most_name(run_file)} = {most} is never reached: of run.slots = {slots} the learner keeps "
            f"{fewest_ranks} at least"
        )
    if most_ranks + fewest > slots:
        yield (
            f"{_most_ranks(run_file)[1]} = {most_ranks} is never reached: of run.slots = {slots} rollouts keep "
            f"{fewest} at least"
        )


def _server_errors(run_file: RunFile) -> Iterator[str]:
    urls, (_, most), name = run_file.rollout.http.base_urls, run_file.rollout.replica_limits, _most_name(run_file)
    if len(urls) < most:
        yield (
            f"rollout.http.base_urls names {len(urls)} server(s) and {name} = {most}: every rollout process has a "
            "server of its own"
        )
    twice = sorted({url for url in urls if urls.count(url) > 1})
    if twice:
        yield (
            f"rollout.http.base_urls names {', '.join(twice)} more than once: two processes would load weights into "
            "one server, and neither could say whose they are"
        )


def _warnings(run_file: RunFile) -> Iterator[str]:
    run = run_file.run
    wanted = 4 * run_file.rollout.replica_limits[1]
    if run.partitions < wanted:
        yield (
            f"run.partitions = {run.partitions} is below 4 x {_most_name(run_file)} = {wanted}: prompts will be spread "
            "unevenly; it cannot be raised later"
        )
    if run.publish_lag_versions >= run.max_staleness + 1 and run.on_stale == "drop":
        yield (
            f"run.publish_lag_versions = {run.publish_lag_versions} reaches run.max_staleness + 1 = "
            f"{run.max_staleness + 1}: samples will be too old before they are trained; raise run.max_staleness"
        )
    (fewest, most_ranks), limit_s = run_file.learner.rank_limits, run_file.learner.collective_limit_s
    uneven = [each for each in range(fewest, most_ranks + 1) if run.partitions % each]
    if uneven:
        yield (
            f"run.partitions = {run.partitions} is no multiple of learner.ranks = {', '.join(map(str, uneven))}: some "
            "ranks hold more groups than others, and the others wait for them"
        )
    yield from _pool_warnings(run_file)
    if most_ranks > 1 and limit_s <= LONGEST_TRANSACTION_S:
        yield (
            f"learner.collective_limit_s = {limit_s:g} is not above {LONGEST_TRANSACTION_S:g} s, the longest time of a "
            "transaction: while the broker is slow, ranks will take rank 0 for dead"
        )
    urls, (_, most) = run_file.rollout.http.base_urls, run_file.rollout.replica_limits
    if run_file.rollout.engine == "http" and len(urls) > most:
        yield (
            f"rollout.http.base_urls names {len(urls)} servers and {_most_name(run_file)} = {most}: those after the "
            f"first {most} are not used"
        )
    environment, retire_s = run_file.environment, run_file.supervisor.retire_s
    if environment is not None and environment.retire_s >= retire_s:
        yield (
            f"environment.retire_s = {environment.retire_s:g} is not below supervisor.retire_s = {retire_s:g}: a "
            "rollout process that is one too many is stopped before it has given its groups back in order"
        )
    yield from _scheduler_warnings(run_file)
    num = len(programs(run_file, settings_file=run.folder)) + 1  # the supervisor has a port, too
    if run.metrics_port and num > NUM_PORTS:
        yield (
            f"run.metrics_port = {run.metrics_port} and there may be {num} processes: each looks for a free port among "
            f"the first {NUM_PORTS} from there on, so on one host those after the first {NUM_PORTS} would be refused; "
            "set it to 0 for any free port"
        )
    if run.group_size == 1:
        yield "run.group_size = 1 gives advantages of zero only"
    if run.max_staleness == 0:
        yield "run.max_staleness = 0 makes rollout and learning wait for each other (synchronous training)"


def _scheduler_warnings(run_file: RunFile) -> Iterator[str]:
    """Times of the scheduler that do not go together, where it changes the number of processes."""
    scheduler, heartbeat_s = run_file.scheduler, run_file.run.heartbeat_s
    limits = scale_limits(run_file, stages=("rollout", "learner", "reward", "reference")).values()
    if scheduler.policy == "static" or all(fewest == most for fewest, most in limits):
        return
    if scheduler.scale_up_cool_down_s < scheduler.rate_window_s / 2:
        yield (
            f"scheduler.scale_up_cool_down_s = {scheduler.scale_up_cool_down_s:g} is below half of "
            f"scheduler.rate_window_s = {scheduler.rate_window_s:g}: a second change is decided on rates most of which "
            "are from before the first; raise the former, or lower the latter"
        )
    if scheduler.lag_max_age_s <= scheduler.lag_interval_s:
        yield (
            f"scheduler.lag_max_age_s = {scheduler.lag_max_age_s:g} is not above scheduler.lag_interval_s = "
            f"{scheduler.lag_interval_s:g}: lag is unknown again before it is next measured, and unknown lag scales "
            "nothing; raise the former, or lower the latter"
        )
    if scheduler.silence_s <= heartbeat_s:
        yield (
            f"scheduler.silence_s = {scheduler.silence_s:g} is not above run.heartbeat_s = {heartbeat_s:g}: processes "
            "count as silent between their heartbeats, and their number stays as it is; raise the former, or lower the "
            "latter"
        )


def _most_name(run_file: RunFile) -> str:
    """The setting that says how many rollout processes there may be."""
    return f"rollout.{'replicas' if run_file.rollout.max_replicas is None else 'max_replicas'}"


def _most_ranks(run_file: RunFile) -> tuple[int, str]:
    """The most learner ranks, and the setting that says so."""
    learner = run_file.learner
    return learner.rank_limits[1], "learner.ranks" if learner.max_ranks is None else "learner.max_ranks"


def _sample_bytes(run_file: RunFile) -> int:
    own, acted_in = run_file.prompts.sampling.max_tokens, run_file.environment
    return SAMPLE_OVERHEAD_BYTES + BYTES_PER_TOKEN * (own if acted_in is None else acted_in.max_tokens)
