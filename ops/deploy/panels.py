"""What the Grafana dashboards show: rows of panels, each a question and the expressions that answer it.

Role: the table that `ops.deploy.dashboards` turns into files.
Invariants: expressions use the recorded series where there are some; `$run` is the run that was chosen.
Failure: none.
"""

from __future__ import annotations

from dataclasses import dataclass

_RUN = '{run="$run"}'


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One graph. `queries` are (expression, legend); the legend may name labels as `{{label}}`."""

    title: str
    unit: str  # of Grafana: "s", "ms", "Bps", "percentunit", "short", ...
    queries: tuple[tuple[str, str], ...]
    text: str = ""  # what it tells


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """Rows of panels, by the title of the row."""

    uid: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def _one(title: str, unit: str, *queries: tuple[str, str], text: str = "") -> Panel:
    return Panel(title=title, unit=unit, queries=queries, text=text)


RUN = Dashboard(
    uid="rlweave-run",
    title="rlweave: a run",
    rows=(
        (
            "Who waits for whom",
            (
                _one(
                    "Share of time in which a side waits",
                    "percentunit",
                    (f"rlweave:learner_waits_for_data:share1m{_RUN}", "learner for data"),
                    (f"rlweave:rollouts_wait_for_prompts:share1m{_RUN}", "engines for prompts"),
                    (f"rlweave:rollouts_wait_for_weights:share1m{_RUN}", "engines for weights"),
                    (f"rlweave:rewards_wait_for_samples:share1m{_RUN}", "reward {{name}} for samples"),
                    (f"rlweave:prompts_wait_for_credit:share1m{_RUN}", "prompts for credit"),
                    text="One side always waits. The one that does not is the bottleneck.",
                ),
                _one(
                    "Phases of the learner",
                    "percentunit",
                    ('rlweave:phase:share1m{run="$run",stage="learner"}', "{{phase}}"),
                ),
                _one(
                    "Phases of the engines",
                    "percentunit",
                    ('rlweave:phase:share1m{run="$run",stage="rollout"}', "{{phase}}"),
                ),
                _one(
                    "Alerts",
                    "short",
                    ('ALERTS{run="$run",alertstate="firing"}', "{{alertname}} {{stage}} {{what}}"),
                ),
            ),
        ),
        (
            "Training",
            (
                _one("Steps per second", "short", (f"rlweave:steps_per_s:rate1m{_RUN}", "steps/s")),
                _one(
                    "Where a step's time goes",
                    "s",
                    (f"rlweave:step_phase_s:mean5m{_RUN}", "{{phase}}"),
                    (f"rlweave:step_s:p50{_RUN}", "whole, median"),
                    (f"rlweave:step_s:p99{_RUN}", "whole, 99th percentile"),
                ),
                _one(
                    "Trained per second",
                    "short",
                    (f"rlweave:samples_trained_per_s:rate1m{_RUN}", "samples/s"),
                    (f"rlweave:tokens_trained_per_s:rate1m{_RUN}", "tokens/s"),
                ),
                _one("Reward", "short", (f"rlweave_reward_mean{_RUN}", "mean of the batch")),
                _one(
                    "Loss, gradient",
                    "short",
                    (f"rlweave_loss{_RUN}", "loss"),
                    (f"rlweave_grad_norm{_RUN}", "gradient norm"),
                ),
                _one(
                    "Policy",
                    "short",
                    (f"rlweave_entropy{_RUN}", "entropy, nats"),
                    (f"rlweave_logprob_mismatch{_RUN}", "sampler and trainer apart, nats"),
                    (f"rlweave_sampler_kl{_RUN}", "KL(sampler, trainer), nats"),
                    (f"rlweave_clipped_share{_RUN}", "clipped share"),
                ),
            ),
        ),
        (
            "Sampling",
            (
                _one(
                    "Made per second",
                    "short",
                    (f"rlweave:tokens_generated_per_s:rate1m{_RUN}", "tokens/s"),
                    (f"rlweave:samples_made_per_s:rate1m{_RUN}", "samples/s"),
                ),
                _one(
                    "Time of a request",
                    "s",
                    (f"rlweave:request_s:p50{_RUN}", "median"),
                    (f"rlweave:request_s:p99{_RUN}", "99th percentile"),
                ),
                _one(
                    "Sequences",
                    "short",
                    ('sum(rlweave_running_sequences{run="$run"})', "running"),
                    (f"rlweave:queue_depth:sum{_RUN}", "queued"),
                    ('sum(rlweave_parked_sequences{run="$run"})', "parked on environments"),
                ),
                _one("Pause for a load of weights", "s", (f"rlweave:swap_pause_s:p99{_RUN}", "99th percentile")),
                _one(
                    "Length of samples",
                    "short",
                    (f"rlweave:produced_length_tokens:mean5m{_RUN}", "made, tokens"),
                    (f"rlweave:trained_length_tokens:mean5m{_RUN}", "trained, tokens"),
                    text="Trained ones that are shorter: long ones are dropped on the way.",
                ),
                _one("KV cache in use", "percentunit", (f"rlweave_kv_use_share{_RUN}", "{{instance}}")),
            ),
        ),
        (
            "Data flow",
            (
                _one(
                    "A sample's way, hop by hop",
                    "ms",
                    (f"rlweave:sample_hop_ms:mean5m{_RUN}", "{{hop}}"),
                    text="made_trained is from the last token to the step's transaction.",
                ),
                _one("A sample's way, 99th percentile", "ms", (f"rlweave:sample_hop_ms:p99{_RUN}", "{{hop}}")),
                _one(
                    "A version's way, hop by hop",
                    "s",
                    (f"rlweave:weight_hop_s:mean5m{_RUN}", "{{hop}}"),
                    text="trained_serving is from the optimizer to an engine.",
                ),
                _one("A version's way, 99th percentile", "s", (f"rlweave:weight_hop_s:p99{_RUN}", "{{hop}}")),
            ),
        ),
        (
            "Network",
            (
                _one(
                    "From peers, by class and distance",
                    "Bps",
                    (f"rlweave:network_bytes_per_s:rate1m{_RUN}", "{{traffic}} {{scope}}"),
                ),
                _one("Sent by hosts, by class", "Bps", (f"rlweave:traffic_bytes_per_s:rate1m{_RUN}", "{{traffic}}")),
                _one("To the broker, by topic", "Bps", (f"rlweave:record_bytes_per_s:rate1m{_RUN}", "{{topic}}")),
                _one(
                    "From the broker, by topic",
                    "Bps",
                    (f"rlweave:record_read_bytes_per_s:rate1m{_RUN}", "{{topic}}"),
                ),
                _one(
                    "Time that traffic stood back",
                    "percentunit",
                    ('rate(rlweave_traffic_held_up_s_total{run="$run"}[1m])', "{{traffic}}"),
                ),
            ),
        ),
        (
            "Staleness and outcomes",
            (
                _one(
                    "Age in versions",
                    "short",
                    ('avg by (kind) (rlweave_age_mean_versions{run="$run"})', "{{kind}}, mean"),
                    ('max by (kind) (rlweave_age_max_versions{run="$run"})', "{{kind}}, largest"),
                ),
                _one("Lag in records", "short", (f"rlweave_lag_records{_RUN}", "{{group}} {{topic}}")),
                _one("Lag in seconds", "s", (f"rlweave_lag_s{_RUN}", "{{group}} {{topic}}")),
                _one(
                    "Lag in versions",
                    "short",
                    (f"rlweave_lag_versions{_RUN}", "{{group}} {{topic}}"),
                    (f"rlweave_publish_lag_versions{_RUN}", "publishing"),
                    (f"rlweave_versions_behind_max{_RUN}", "engine furthest behind"),
                ),
                _one(
                    "Groups",
                    "short",
                    ('rlweave_open_groups{run="$run",stage="prompts"}', "open"),
                    (f"rlweave_credit_groups{_RUN}", "credit"),
                    (f"rlweave_ready_groups{_RUN}", "ready"),
                ),
                _one("Oldest open group", "s", ('max(rlweave_oldest_open_group_s{run="$run"})', "age")),
                _one(
                    "Dropped by reason, per second",
                    "short",
                    (f"rlweave:members_dropped_per_s:rate5m{_RUN}", "{{reason}}"),
                ),
                _one(
                    "Share of samples not trained", "percentunit", (f"rlweave:members_dropped:share5m{_RUN}", "share")
                ),
            ),
        ),
    ),
)
PROCESSES = Dashboard(
    uid="rlweave-processes",
    title="rlweave: processes of a run",
    rows=(
        (
            "Health",
            (
                _one("Answers", "short", ('up{job="rlweave",run="$run"}', "{{instance}}")),
                _one("Time since the last turn", "s", (f"rlweave_turn_age_s{_RUN}", "{{instance}}")),
                _one("Processor", "short", (f"rlweave:cpu_cores:rate1m{_RUN}", "{{stage}}, cores")),
                _one("Memory", "bytes", (f"rlweave_resident_bytes{_RUN}", "{{instance}}")),
                _one("Records not used", "short", (f"rlweave:faults:increase5m{_RUN}", "{{stage}} {{what}}")),
                _one(
                    "Waits over their limit",
                    "short",
                    (f"rlweave:waits_over_limit:increase5m{_RUN}", "{{stage}} {{what}}"),
                ),
            ),
        ),
        (
            "Rewards",
            (
                _one(
                    "Scored per second",
                    "short",
                    ('rate(rlweave_samples_scored_total{run="$run"}[1m])', "{{name}} {{result}}"),
                ),
                _one("Time to score a sample", "s", (f"rlweave_score_mean_s{_RUN}", "{{name}}")),
                _one("Share that failed", "percentunit", (f"rlweave_score_failure_share{_RUN}", "{{name}}")),
                _one("Breaker open", "short", (f"rlweave_breaker_open{_RUN}", "{{name}}")),
            ),
        ),
        (
            "Environments and evaluations",
            (
                _one(
                    "Calls of environments, 99th percentile",
                    "s",
                    (f"rlweave:environment_s:p99{_RUN}", "{{call}}"),
                ),
                _one("Episodes per second", "short", ('rate(rlweave_episodes_ended_total{run="$run"}[1m])', "{{how}}")),
                _one("Evaluations", "short", (f"rlweave_evaluation_mean{_RUN}", "{{set}}")),
                _one("Evaluations due", "short", (f"rlweave_evaluations_due{_RUN}", "due")),
            ),
        ),
        (
            "Scheduling",
            (
                _one(
                    "Commands per minute",
                    "short",
                    ('60 * rate(rlweave_commands_issued_total{run="$run"}[5m])', "{{kind}}"),
                ),
                _one(
                    "Processes", "short", (f"rlweave_replicas{_RUN}", "{{target}}"), (f"rlweave_ranks{_RUN}", "ranks")
                ),
                _one("Version served or reached", "short", (f"rlweave_version_step{_RUN}", "{{instance}}")),
                _one("Checkpoint uploads waiting", "short", (f"rlweave_checkpoint_uploads_waiting{_RUN}", "waiting")),
            ),
        ),
    ),
)
DASHBOARDS = (RUN, PROCESSES)
