"""The metrics of a stage: one declared catalog, exposed to Prometheus and carried in heartbeats.

Role: every wait, lag, age, drop and phase is counted here from the start.
Invariants: a metric exists in `METRICS` or cannot be used; labels have few values; names end in their unit.
Failure: an undeclared name is a `KeyError`, a wrong kind a `TypeError`, at the first use, in every test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """One declared metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind="counter", help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind="gauge", help=text, labels=labels)


def _histogram(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind="histogram", help=text, labels=labels)


METRICS = (
    _histogram("phase_s", "Time spent in a phase of the stage.", "phase"),
    _gauge("turn_age_s", "Time since the run loop last completed a turn."),
    _counter("records_read", "Records read.", "topic"),
    _counter("records_written", "Records written and acknowledged.", "topic"),
    _counter("dead_letters", "Records that could not be decoded.", "topic"),
    _counter("records_unreadable", "Records in batches that cannot be unpacked.", "topic"),
    _counter("topics_recreated", "Partitions of topics that were made anew while, or before, they were read.", "topic"),
    _counter("offsets_lost", "Records that retention removed before they were read.", "topic"),
    _counter("clock_skews", "Times a later event carried an earlier time."),
    _gauge("open_groups", "Groups without an outcome."),
    _gauge("credit_groups", "Most groups that may be open."),
    _gauge("groups_admitted", "Groups written to the prompts topic."),
    _counter("prompts_skipped", "Prompts refused where they enter.", "reason"),
    _gauge("prompts_in_flight", "Prompts taken and not acknowledged."),
    _gauge("free_slots", "Sequences the engine could take on now."),
    _gauge("running_sequences", "Sequences being generated."),
    _gauge("admitted_sequences", "Sequences that the engine is given at most."),
    _gauge("kv_use_share", "Part of the engine's KV cache in use; absent where it does not say."),
    _gauge("queued_sequences", "Sequences that stand in the engine's queue; absent where it does not say."),
    _gauge("preemptions", "Sequences that the engine threw out of its batch; absent where it does not say."),
    _counter("tokens_generated", "Completion tokens made."),
    _counter("tokens_unverified", "Completion tokens of weights that could not be checked."),
    _counter("samples_made", "Samples written, failed ones included.", "result"),
    _counter("groups_skipped", "Prompts not generated because their group has an outcome."),
    _counter("groups_begun", "Groups begun, by versions that the engine lacked then; the last one: or more.", "behind"),
    _counter("groups_handed_over", "Groups given up for another engine to go on with.", "reason"),
    _counter("groups_given_back", "Groups in environments that were not through when their process left."),
    _counter("groups_resumed", "Groups that went on from what another engine had made."),
    _counter("turns_made", "Turns that the model took in environments."),
    _counter("tokens_prefilled_again", "Tokens of earlier turns that the engine no longer had when one went on."),
    _counter("episodes_ended", "Trajectories in environments that came to their end.", "how"),
    _counter("environment_failures", "Calls of environments that failed, after their own further tries.", "reason"),
    _histogram("environment_s", "Time from a call of an environment to its answer.", "call"),
    _gauge("parked_sequences", "Trajectories that wait for their environment and hold no slot."),
    _gauge("parked_return_s", "Predicted time until one of them goes on, median; absent when not known."),
    _gauge("version_step", "Step of the policy version served or reached."),
    _gauge("version_lineage", "Lineage of the policy version served or reached."),
    _gauge("versions_behind", "Published versions newer than the one served."),
    _histogram("swap_pause_s", "Time generation stood still for a weight load."),
    _histogram("fetch_s", "Time to fetch and verify a version."),
    _counter("weight_bytes", "Weight bytes moved.", "direction"),
    _counter("samples_scored", "Samples scored.", "result"),
    _histogram("score_s", "Time to score one sample."),
    _gauge("scored_per_s", "Samples that a reward plug-in scored per second lately, failures included."),
    _gauge("score_mean_s", "Mean time that a reward plug-in took for a sample lately."),
    _gauge("score_failure_share", "Share of the samples scored lately that got a failure instead of a value."),
    _counter("rescore_paused_s", "Seconds that scoring the past stood still, as others wanted the processors."),
    _gauge("scorers_held", "Processes of a reward plug-in that a call holds which takes much longer than others."),
    _counter("scorers_lost", "Processes of a reward plug-in that were killed or died.", "reason"),
    _gauge("breaker_open", "1 while a reward plug-in is paused for failing too often."),
    _gauge("reward_required", "1 when no sample is trained without the reward this process gives."),
    _gauge("reward_weight", "Weight of the reward this process gives; 0 is shadow.", "reward", "group"),
    _gauge("reward_mean", "Mean reward of the last batch."),
    _gauge("step", "Optimizer steps done in this history."),
    _gauge("loss", "Loss of the last step."),
    _gauge("logprob_mismatch", "Mean distance of the sampler's and the trainer's log-probabilities, in nats."),
    _gauge("entropy", "Mean entropy of the policy's next-token distribution in the last batch, in nats."),
    _gauge("sampler_log_ratio", "Estimate of KL(sampler || trainer) per token, mean of the log ratio, in nats."),
    _gauge("sampler_kl", "The same from r - 1 - log r, which is never negative, in nats."),
    _gauge("learning_rate", "Learning rate of the last step."),
    _gauge("age_mean", "Mean age in versions of the last batch."),
    _gauge("age_max", "Largest age in versions of the last batch."),
    _gauge("ready_groups", "Complete groups waiting for a batch."),
    _gauge("rank_open_groups", "Groups without an outcome on one learner rank's partitions."),
    _gauge("rank_ready_groups", "Of these, complete ones waiting for a batch."),
    _gauge("oldest_open_group_s", "Age of the oldest open group, on the deadline's clock."),
    _counter("groups_closed", "Groups with an outcome.", "result"),
    _counter("members_dropped", "Sample ids dropped or failed.", "reason"),
    _counter("late_records", "Records of groups that were closed already.", "topic"),
    _counter("duplicates", "Further copies of a sample or reward.", "topic"),
    _counter("unknown_rewards", "Rewards the learner does not train with.", "topic"),
    _counter("orphans", "Records given up because their group's prompt never came.", "topic"),
    _gauge("buffered_bytes", "Encoded bytes of records held for groups without an outcome."),
    _counter("id_conflicts", "Same sample and attempt with other bytes."),
    _gauge("lag_records", "Readable records a group has not committed; absent when unknown.", "group", "topic"),
    _gauge("lag_s", "Time a group needs for its lag at its present rate; absent when unknown.", "group", "topic"),
    _gauge("phase_typical_s", "Median time of the last phases, over all processes of a stage.", "of", "phase"),
    _gauge("phase_share", "Share of time lately in a phase, over all processes of a stage or group.", "of", "phase"),
    _gauge("flow_per_s", "Rate of a counter over all processes of a stage or group.", "of", "counter"),
    _gauge("versions_behind_max", "Steps by which the engine that is furthest behind lacks the newest version."),
    _gauge("publish_lag_versions", "Versions that generation begins behind the learner, 95th percentile of groups."),
    _gauge("replicas", "Processes of a target of scale commands that run and do not retire.", "target"),
    _gauge("replicas_retiring", "Processes of it that finish what they have and end.", "target"),
    _gauge("slots", "Slots of the pool that rollouts and learner ranks share."),
    _gauge("ranks", "Learner ranks that train together."),
    _counter("commands_issued", "Commands written.", "kind"),
    _counter("traffic_bytes", "Bytes sent by the host's sender.", "traffic"),
    _counter("traffic_held_up_s", "Time a class of traffic stood back for others.", "traffic"),
    _histogram("checkpoint_upload_s", "Time to upload a checkpoint."),
    _gauge("checkpoint_uploads_waiting", "Checkpoints that wait for their upload: 0, or the newest one."),
    _counter("checkpoint_uploads_superseded", "Checkpoints whose place in the queue a newer one took."),
    _counter("checkpoint_uploads_failed", "Tries to upload a checkpoint, or to remove old ones, that failed."),
    _gauge("evaluations_due", "Published versions that wait for their evaluation, over all sets."),
    _gauge("evaluation_mean", "Mean value of the last evaluation of a set.", "set"),
    _gauge("evaluation_step", "Step of the version that was evaluated last on a set.", "set"),
    _counter("waits_over_limit", "Waits that reached their limit.", "what"),
)
_BY_NAME = {spec.name: spec for spec in METRICS}
_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """The metrics of one process.

    Args:
        labels: further labels that all of them carry.
    """

    def __init__(self, *, run: str, stage: str, instance: str, labels: Mapping[str, str] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._common = {"run": run, "stage": stage, "instance": instance, **(labels or {})}
        self._live: dict[str, Counter | Gauge | Histogram] = {}

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        metric = self._metric(name)
        if not isinstance(metric, Counter):
            raise TypeError(f"{name} is not a counter")
        metric.labels(**self._common, **labels).inc(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        metric = self._metric(name)
        if not isinstance(metric, Gauge):
            raise TypeError(f"{name} is not a gauge")
        metric.labels(**self._common, **labels).set(value)

    def absent(self, name: str, **labels: str) -> None:
        """Take a gauge away: its value is unknown, which is not 0."""
        metric = self._metric(name)
        if not isinstance(metric, Gauge):
            raise TypeError(f"{name} is not a gauge")
        values = self._common | labels
        metric.remove(*(values[label] for label in (*self._common, *_BY_NAME[name].labels)))

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add an observation to a histogram; below 0 counts as 0 and as a clock skew (promise 13)."""
        metric = self._metric(name)
        if not isinstance(metric, Histogram):
            raise TypeError(f"{name} is not a histogram")
        if value < 0:
            self.count("clock_skews")
        metric.labels(**self._common, **labels).observe(max(0.0, value))

    def snapshot(self) -> dict[str, float]:
        """Counters and gauges, and the sum of every histogram, by name and labels; goes into heartbeats."""
        values: dict[str, float] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name.endswith(("_created", "_bucket", "_count")):
                    continue
                own = [f"{key}={value}" for key, value in sample.labels.items() if key not in self._common]
                name = sample.name.removeprefix("rlweave_").removesuffix("_total")
                values[f"{name}{{{','.join(own)}}}" if own else name] = sample.value
        return values

    def expose(self, port: int, *, host: str = "127.0.0.1") -> int:
        """Serve the metrics over HTTP; returns the port."""
        server, _ = start_http_server(port, addr=host, registry=self.registry)
        return int(server.server_port)

    def _metric(self, name: str) -> Counter | Gauge | Histogram:
        if name not in self._live:
            spec = _BY_NAME[name]
            labels = [*self._common, *spec.labels]
            full = f"rlweave_{name}"
            if spec.kind == "counter":
                self._live[name] = Counter(full, spec.help, labels, registry=self.registry)
            elif spec.kind == "gauge":
                self._live[name] = Gauge(full, spec.help, labels, registry=self.registry)
            else:
                self._live[name] = Histogram(full, spec.help, labels, registry=self.registry, buckets=_BUCKETS_S)
        return self._live[name]
