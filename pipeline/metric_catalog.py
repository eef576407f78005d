"""The declared metrics: names with units, kinds, labels and the question that each of them answers.

Role: the one list that code, documentation, dashboards, rules and live views read; a metric that is not here cannot be
used (`pipeline.metrics`).
Invariants: names end in their unit; labels have few values; every metric is in one group of `GROUPS`.
Failure: none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Group: TypeAlias = Literal[
    "training",
    "sampling",
    "data_flow",
    "waits",
    "network",
    "staleness",
    "outcomes",
    "rewards",
    "environments",
    "evaluation",
    "checkpoints",
    "scheduling",
    "process",
]
GROUPS: dict[Group, str] = {  # in the order in which they are shown
    "training": "What the learner does, and how fast.",
    "sampling": "What the engines make, and how fast.",
    "data_flow": "How long samples and weights are on their way, hop by hop.",
    "waits": "Who waits for whom.",
    "network": "Bytes by class and by how far they go.",
    "staleness": "Ages, versions and lag.",
    "outcomes": "Open groups, and what became of the others.",
    "rewards": "What reward plug-ins do.",
    "environments": "Trajectories in environments.",
    "evaluation": "Evaluations of published versions.",
    "checkpoints": "Uploads of checkpoints.",
    "scheduling": "Commands, and what they are about.",
    "process": "Whether a process is well.",
}
# Hops of a sample, in their order; `made_trained` is all of them from the last token to the step's transaction.
SAMPLE_HOPS = ("admitted_begun", "begun_made", "made_scored", "scored_cut", "cut_trained", "made_trained")
# Hops of a version, in their order; `trained_serving` is all of them, from the optimizer to an engine.
WEIGHT_HOPS = ("trained_published", "published_fetched", "fetched_serving", "trained_serving")
SCOPES = ("same_host", "same_domain", "across_domains")  # how far bytes go
AGE_KINDS = ("in_flight", "in_queue", "at_cut")  # in an engine; scored and waiting for a batch; in the last batch

_TIMES_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_LONG_TIMES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)
_TIMES_MS = (1.0, 5.0, 25.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 2.5e4, 5e4, 1e5, 2.5e5, 1e6)
_LENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0)
_AGES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)
_UNITS = ("bytes", "tokens", "versions", "per_s", "ms", "s", "share")


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """One declared metric; Prometheus has it as `rlweave_NAME`, counters as `rlweave_NAME_total`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    group: Group = "process"
    buckets: tuple[float, ...] = _TIMES_S  # upper edges, of a histogram

    @property
    def unit(self) -> str:
        """What the name says: "s", "ms", "bytes", "tokens", "versions", "per_s", "share"; empty: a number."""
        return next((unit for unit in _UNITS if self.name.endswith(f"_{unit}")), "")

    @property
    def series(self) -> tuple[str, ...]:
        """The names that Prometheus has of it."""
        full = f"rlweave_{self.name}"
        if self.kind == "histogram":
            return tuple(f"{full}_{part}" for part in ("bucket", "sum", "count"))
        return (f"{full}_total",) if self.kind == "counter" else (full,)


def _counter(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind="counter", help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind="gauge", help=text, labels=labels)


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _TIMES_S) -> MetricSpec:
    return MetricSpec(name=name, kind="histogram", help=text, labels=labels, buckets=buckets)


def _of(group: Group, *specs: MetricSpec) -> tuple[MetricSpec, ...]:
    return tuple(replace(spec, group=group) for spec in specs)


METRICS = (
    *_of(
        "training",
        _counter("steps_done", "Steps written to the ledger by this process; a restart begins at 0."),
        _histogram("step_s", "Time from one step's transaction to the next, waits included.", buckets=_LONG_TIMES_S),
        _counter("samples_trained", "Samples in steps that were written."),
        _counter("tokens_trained", "Completion tokens that steps were trained on."),
        _histogram("trained_length_tokens", "Completion tokens of a sample that was trained.", buckets=_LENGTHS),
        _gauge("step", "Optimizer steps done in this history."),
        _gauge("reward_mean", "Mean reward of the last batch."),
        _gauge("loss", "Loss of the last step."),
        _gauge("grad_norm", "Norm of the last step's gradient, before it was clipped."),
        _gauge("clipped_share", "Part of the last step's tokens whose ratio was clipped."),
        _gauge("logprob_mismatch", "Mean distance of the sampler's and the trainer's log-probabilities, in nats."),
        _gauge("entropy", "Mean entropy of the policy's next-token distribution in the last batch, in nats."),
        _gauge("sampler_log_ratio", "Estimate of KL(sampler || trainer) per token, mean of the log ratio, in nats."),
        _gauge("sampler_kl", "The same from r - 1 - log r, which is never negative, in nats."),
        _gauge("learning_rate", "Learning rate of the last step."),
        _gauge("ranks", "Learner ranks that train together."),
    ),
    *_of(
        "sampling",
        _counter("tokens_generated", "Completion tokens made."),
        _counter("tokens_unverified", "Completion tokens of weights that could not be checked."),
        _counter("samples_made", "Samples written, failed ones included.", "result"),
        _histogram("request_s", "Time of a sequence in the engine, from submission to its end.", buckets=_LONG_TIMES_S),
        _histogram("produced_length_tokens", "Completion tokens of a sample that was made.", buckets=_LENGTHS),
        _gauge("waiting_sequences", "Sequences that wait for a slot of the engine."),
        _gauge("running_sequences", "Sequences being generated."),
        _gauge("free_slots", "Sequences the engine could take on now."),
        _gauge("admitted_sequences", "Sequences that the engine is given at most."),
        _gauge("kv_use_share", "Part of the engine's KV cache in use; absent where it does not say."),
        _gauge("queued_sequences", "Sequences that stand in the engine's queue; absent where it does not say."),
        _gauge("preemptions", "Sequences that the engine threw out of its batch; absent where it does not say."),
        _gauge("prompts_in_flight", "Prompts taken and not acknowledged."),
        _counter("groups_skipped", "Prompts not generated because their group has an outcome."),
        _counter(
            "groups_begun", "Groups begun, by versions that the engine lacked then; the last one: or more.", "behind"
        ),
        _counter("groups_handed_over", "Groups given up for another engine to go on with.", "reason"),
        _counter("groups_given_back", "Groups in environments that were not through when their process left."),
        _counter("groups_resumed", "Groups that went on from what another engine had made."),
        _histogram("swap_pause_s", "Time generation stood still for a weight load."),
    ),
    *_of(
        "data_flow",
        _histogram("sample_hop_ms", "Time of a sample on one hop of its way.", "hop", buckets=_TIMES_MS),
        _histogram(
            "weight_hop_s", "Time of a version on one hop of its way to an engine.", "hop", buckets=_LONG_TIMES_S
        ),
        _histogram("fetch_s", "Time to fetch and verify a version."),
        _counter("records_read", "Records read.", "topic"),
        _counter("records_written", "Records written and acknowledged.", "topic"),
        _gauge("groups_admitted", "Groups written to the prompts topic."),
        _counter("prompts_skipped", "Prompts refused where they enter.", "reason"),
        _counter("clock_skews", "Times a later event carried an earlier time."),
    ),
    *_of(
        "waits",
        _histogram("phase_s", "Time spent in a phase of the stage, when it ends.", "phase"),
        _counter("phase_time_s", "Time spent in a phase so far, brought up to date with every heartbeat.", "phase"),
        _gauge("phase_typical_s", "Median time of the last phases, over all processes of a stage.", "of", "phase"),
        _gauge(
            "phase_share", "Share of time lately in a phase, over all processes of a stage or group.", "of", "phase"
        ),
        _counter("waits_over_limit", "Waits that reached their limit.", "what"),
    ),
    *_of(
        "network",
        _counter(
            "network_bytes",
            "Bytes that came in from peers and ranks, by class and by how far away they are.",
            "traffic",
            "scope",
        ),
        _counter("weight_bytes", "Weight bytes moved.", "direction"),
        _counter("traffic_bytes", "Bytes sent by the host's sender.", "traffic"),
        _counter("traffic_held_up_s", "Time a class of traffic stood back for others.", "traffic"),
        _counter("record_bytes", "Encoded bytes of the values of records written to the broker.", "topic"),
        _counter("record_read_bytes", "Encoded bytes of the values of records read from the broker.", "topic"),
    ),
    *_of(
        "staleness",
        _gauge("age_mean", "Mean age in versions of the last batch."),
        _gauge("age_max", "Largest age in versions of the last batch."),
        _histogram("age_at_cut_versions", "Age of a sample when its batch was cut.", buckets=_AGES),
        _gauge("age_mean_versions", "Mean age of what is there now, by where it is.", "kind"),
        _gauge("age_max_versions", "Largest age of what is there now, by where it is.", "kind"),
        _gauge("version_step", "Step of the policy version served or reached."),
        _gauge("version_lineage", "Lineage of the policy version served or reached."),
        _gauge("versions_behind", "Published versions newer than the one served."),
        _gauge("versions_behind_max", "Steps by which the engine that is furthest behind lacks the newest version."),
        _gauge(
            "publish_lag_versions", "Versions that generation begins behind the learner, 95th percentile of groups."
        ),
        _gauge("lag_records", "Readable records a group has not committed; absent when unknown.", "group", "topic"),
        _gauge("lag_s", "Time a group needs for its lag at its present rate; absent when unknown.", "group", "topic"),
        _gauge("lag_versions", "Steps that the records of a lag are good for; absent when unknown.", "group", "topic"),
    ),
    *_of(
        "outcomes",
        _gauge("open_groups", "Groups without an outcome."),
        _gauge("credit_groups", "Most groups that may be open."),
        _gauge("oldest_open_group_s", "Age of the oldest open group, on the deadline's clock."),
        _gauge("ready_groups", "Complete groups waiting for a batch."),
        _gauge("rank_open_groups", "Groups without an outcome on one learner rank's partitions."),
        _gauge("rank_ready_groups", "Of these, complete ones waiting for a batch."),
        _gauge("buffered_bytes", "Encoded bytes of records held for groups without an outcome."),
        _counter("groups_closed", "Groups with an outcome.", "result"),
        _counter("members_dropped", "Sample ids dropped or failed.", "reason"),
        _counter("late_records", "Records of groups that were closed already.", "topic"),
        _counter("duplicates", "Further copies of a sample or reward.", "topic"),
        _counter("unknown_rewards", "Rewards the learner does not train with.", "topic"),
        _counter("orphans", "Records given up because their group's prompt never came.", "topic"),
        _counter("id_conflicts", "Same sample and attempt with other bytes."),
    ),
    *_of(
        "rewards",
        _counter("samples_scored", "Samples scored.", "result"),
        _histogram("score_s", "Time to score one sample."),
        _gauge("scored_per_s", "Samples that a reward plug-in scored per second lately, failures included."),
        _gauge("score_mean_s", "Mean time that a reward plug-in took for a sample lately."),
        _gauge("score_failure_share", "Share of the samples scored lately that got a failure instead of a value."),
        _counter("rescore_paused_s", "Seconds that scoring the past stood still, as others wanted the processors."),
        _gauge("scorers_held", "Processes of a reward plug-in that a call holds which takes much longer than others."),
        _counter("calls_held", "Calls of a reward plug-in that took so much longer than others as to hold a process."),
        _counter("scorers_lost", "Processes of a reward plug-in that were killed or died.", "reason"),
        _gauge("breaker_open", "1 while a reward plug-in is paused for failing too often."),
        _gauge("reward_required", "1 when no sample is trained without the reward this process gives."),
        _gauge("reward_weight", "Weight of the reward this process gives; 0 is shadow.", "reward", "group"),
    ),
    *_of(
        "environments",
        _counter("turns_made", "Turns that the model took in environments."),
        _counter("tokens_prefilled_again", "Tokens of earlier turns that the engine no longer had when one went on."),
        _counter("episodes_ended", "Trajectories in environments that came to their end.", "how"),
        _counter("environment_failures", "Calls of environments that failed, after their own further tries.", "reason"),
        _histogram("environment_s", "Time from a call of an environment to its answer.", "call"),
        _gauge("parked_sequences", "Trajectories that wait for their environment and hold no slot."),
        _gauge("parked_return_s", "Predicted time until one of them goes on, median; absent when not known."),
    ),
    *_of(
        "evaluation",
        _gauge("evaluations_due", "Published versions that wait for their evaluation, over all sets."),
        _gauge("evaluation_mean", "Mean value of the last evaluation of a set.", "set"),
        _gauge("evaluation_step", "Step of the version that was evaluated last on a set.", "set"),
    ),
    *_of(
        "checkpoints",
        _histogram("checkpoint_upload_s", "Time to upload a checkpoint."),
        _gauge("checkpoint_uploads_waiting", "Checkpoints that wait for their upload: 0, or the newest one."),
        _counter("checkpoint_uploads_superseded", "Checkpoints whose place in the queue a newer one took."),
        _counter("checkpoint_uploads_failed", "Tries to upload a checkpoint, or to remove old ones, that failed."),
    ),
    *_of(
        "scheduling",
        _counter("commands_issued", "Commands written.", "kind"),
        _gauge("flow_per_s", "Rate of a counter over all processes of a stage or group.", "of", "counter"),
        _gauge("replicas", "Processes of a target of scale commands that run and do not retire.", "target"),
        _gauge("replicas_retiring", "Processes of it that finish what they have and end.", "target"),
        _gauge("slots", "Slots of the pool that rollouts and learner ranks share."),
    ),
    *_of(
        "process",
        _gauge("turn_age_s", "Time since the run loop last completed a turn."),
        _counter("cpu_s", "Processor time of the process, its threads included."),
        _gauge("resident_bytes", "Memory of the process that is in RAM."),
        _counter("events_lost", "Events that could not be written."),
        _counter("dead_letters", "Records that could not be decoded.", "topic"),
        _counter("records_unreadable", "Records in batches that cannot be unpacked.", "topic"),
        _counter(
            "topics_recreated", "Partitions of topics that were made anew while, or before, they were read.", "topic"
        ),
        _counter("offsets_lost", "Records that retention removed before they were read.", "topic"),
    ),
)
