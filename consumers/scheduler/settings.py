"""`[scheduler]`: how often it looks, and what it does about what it sees.

Role: settings of the scheduler and of the built-in policy.
Invariants: frozen; every constant has a sentence.
"""

from __future__ import annotations

from pydantic import Field, PositiveFloat

from pipeline.settings import PositiveInt, Seconds, Section


class SchedulerSettings(Section):
    """`[scheduler]`."""

    policy: str = Field(
        default="static",
        description="static, reactive (replicas by watermarks), stage_aware (replicas by prediction), an installed "
        "policy, module:attr or file.py:attr.",
    )
    heartbeat_s: Seconds = Field(
        default=1.0, description="Time between heartbeats on `commands`; without them engines fetch by themselves."
    )
    interval_s: Seconds = Field(default=0.5, description="Longest time between two decisions.")
    lag_interval_s: Seconds = Field(default=5.0, description="Time between two measurements of lag.")
    lag_max_age_s: Seconds = Field(default=30.0, description="A measurement older than this counts as unknown.")
    rate_window_s: Seconds = Field(default=30.0, description="Rates of records and tokens are over this long.")
    silence_s: Seconds = Field(
        default=10.0, description="An instance without a sign of life for this long is not acted upon."
    )
    forget_s: Seconds = Field(default=60.0, description="An instance without a sign of life for this long is gone.")
    settle_s: Seconds = Field(
        default=5.0, description="Time after start in which nothing is lifted: heartbeats must come in first."
    )
    pause_lag_records: PositiveInt | None = Field(
        default=None,
        description="Lag of a required reward at which admission pauses; it goes on at half of it. Absent: never.",
    )
    keep_generating_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Share of the engines that goes on generating while others load a version; of several one always "
        "does, and one at a time always loads.",
    )
    wave_limit_s: Seconds = Field(
        default=30.0,
        description="Longest wait for an engine that was given leave to load, its fetch included; then the next do.",
    )
    publish_within_versions: int = Field(
        default=0,
        ge=0,
        description="A version is skipped while no engine lacks more than this many, and max_staleness allows it; 0: "
        "only where publishing is not cheap.",
    )
    publish_cheap_share: float = Field(
        default=0.5,
        ge=0,
        description="Share of a step up to which a publish is cheap: every version goes out. Above it, one is skipped "
        "while engines still fetch the one before, or a newer one is due in a moment.",
    )
    credit_hold_s: Seconds = Field(
        default=60.0, description="Least time from a change of the publish lag that credit reckons with to a lower one."
    )
    scale_up_cool_down_s: Seconds = Field(
        default=20.0, description="Least time from a change of replicas to more of them."
    )
    scale_down_cool_down_s: Seconds = Field(
        default=60.0,
        description="Least time from a change of replicas to fewer of them: what was just started is kept.",
    )
    keep_warm_starts: float = Field(
        default=3.0,
        ge=0,
        description="It is at least so many times as long as a process of that kind takes to start, as measured: what "
        "is expensive to start is kept warm.",
    )
    scale_slack: float = Field(
        default=0.1, ge=0, lt=1, description="stage_aware: a need this near to what there is changes nothing."
    )
    back_slack: float = Field(
        default=0.25,
        ge=0,
        lt=1,
        description="stage_aware, in a pool: a change that takes back a part of the last one must gain more than this "
        "share: what was measured before and after a change differs by more than what it gains.",
    )
    near_slack: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="stage_aware, in a pool: of the splits that are no more than this share worse than the best one, "
        "the nearest to the present one is taken.",
    )
    steady_share: float = Field(
        default=0.1,
        gt=0,
        description="stage_aware, in a pool: nothing moves while the rate of samples differs by more than this share "
        "from that of the last half of the window.",
    )
    start_cost_share: float = Field(
        default=0.2, gt=0, description="stage_aware: largest share of the time left that a process may take to start."
    )
    starved_share: float = Field(
        default=0.2, gt=0, le=1, description="reactive: share of time waiting for data at which the learner is starved."
    )
    busy_share: float = Field(
        default=0.7,
        gt=0,
        le=1,
        description="reactive: use of slots, or share of time scoring, from which on all are busy.",
    )
    idle_share: float = Field(
        default=0.4, ge=0, lt=1, description="reactive: use up to which there is one process too many."
    )
    reward_lag_s: Seconds = Field(
        default=5.0, description="reactive: lag in time at which a reward gets a replica more."
    )
    pack_below: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of slots in use below which, with no prompt left to begin, what still runs is packed onto "
        "the fewest engines; absent: never.",
    )
    pack_cool_down_s: Seconds = Field(default=20.0, description="Least time from one packing to the next.")
    publish_bytes_s: PositiveFloat | None = Field(
        default=None, description="Most bytes per second that one engine takes while it fetches a version; absent: all."
    )
