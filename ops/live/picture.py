"""The picture of a run, as values: what `rlweave top`, the dashboard and the report show.

Role: the words between the fold (`ops.live.follower`) and its views; `ops.live.verdict` reads them, too.
Data in and out: plain frozen values; `orjson.dumps` takes them as they are.
Invariants: everything in it is bounded, however long the run; `None` means unknown, never 0. Times are Unix
milliseconds; those of one process are its first wall-clock time plus differences of its own monotonic clock, so a
clock that is set does not move them against each other (promise 13). Text in it was written by others: a view shows it
as it is and takes none of it for markup.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from schemas.versions import Version

Standing = Literal["at work", "not heard", "gone", "stopped"]  # gone: not heard, and succeeded, or the run ended
VerdictKind = Literal[
    "balanced",  # nobody waits much: the learner has work nearly always
    "reward",  # a reward is slower than the samples come
    "rollout",  # generation is slower than everybody behind it
    "weights",  # versions reach the engines late
    "learner",  # the learner is the slowest; what is before it waits for credit
    "prompts",  # the source gives no prompts
    "credit",  # nobody is slow, but so few groups may be open that learner and rollouts wait for each other by turns
    "nobody",  # no process is heard
    "stopped",  # every process said that it stopped, and the run is not at its end
    "missing",  # a stage that the run needs is not heard
    "scheduler",  # no scheduler is heard: weights go out without it
    "starting",  # not enough was heard yet
    "finished",  # the run ended
    "trouble",  # the broker cannot be read
]


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of time that a process spent in a phase. Old ones are coarse: many short ones become the longest."""

    phase: str
    began_ms: int
    ended_ms: int | None = None  # None: it goes on


@dataclass(frozen=True, kw_only=True)
class ProcessPicture:
    """One process."""

    stage: str
    name: str  # the stage, with the reward's name or the rank
    instance: str
    host: str
    slot: str  # of its kind on its host, as a supervisor numbers them; empty: it has not said
    domain: str  # of its host in the topology; empty: it has not said
    standing: Standing
    phase: str
    phase_since_ms: int | None
    began_ms: int  # when it was first heard of
    heard_ms: int  # its newest event
    version: Version | None  # served or reached
    gauges: Mapping[str, float] = field(default_factory=dict)  # of its last heartbeat: gauges and counters
    rates: Mapping[str, float] = field(default_factory=dict)  # counters, per second over the last few heartbeats
    spans: tuple[Span, ...] = ()  # in order, without overlaps
    shares: Mapping[str, float] = field(default_factory=dict)  # phase -> share of the window; adds up to at most 1
    waits: Mapping[str, float] = field(default_factory=dict)  # those of `shares` in which it waits for somebody
    made: SeriesPicture | None = None  # samples written, per bin; None: it made none
    ended: str = ""  # why it stopped, by its own word: "SIGTERM", "exit code 1"; empty: it has not said
    is_replaced: bool = False  # a later process does its work
    best_scored_per_s: float | None = None  # of a reward: the most over several heartbeats so far


@dataclass(frozen=True, kw_only=True)
class VersionPicture:
    """The way of one policy version from the optimizer to the engines."""

    version: Version
    trained_ms: int | None = None  # end of its optimizer step
    staged_ms: int | None = None  # all its chunks are there, and its transaction begins
    published_ms: int | None = None  # its manifest became readable
    commanded_ms: int | None = None  # the scheduler sent it out; the first wave
    served_ms: Mapping[str, int] = field(default_factory=dict)  # instance -> first token could be made with it
    num_bytes: int | None = None  # that an engine fetches which has the version before
    encoding: str = ""  # "full" or "delta"
    fetched_s: Mapping[str, float] = field(default_factory=dict)  # instance -> time its fetch and verification took
    fetched_bytes: Mapping[str, int] = field(
        default_factory=dict
    )  # instance -> size of what it lacked, with `fetched_s`


@dataclass(frozen=True, kw_only=True)
class CommandPicture:
    """A command of the scheduler, and why."""

    at_ms: int
    target: str
    kind: str
    reason: str
    version: str  # of a publish; empty: none
    replicas: int | None = None  # of a scale


@dataclass(frozen=True, kw_only=True)
class NoticePicture:
    """Something that a process found worth saying. Those of the ordinary course are left out."""

    at_ms: int
    stage: str
    instance: str
    name: str
    text: str  # a sentence, or name and details in a line
    details: Mapping[str, str] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LagPicture:
    """How far a consumer group is behind on a topic, in three ways."""

    group: str  # without `rlweave.<run>.`
    topic: str
    records: float | None  # readable ones that it has not committed
    seconds: float | None  # that it needs for them at its present rate
    versions: float | None  # steps made since; of rollouts: by which the one furthest behind lacks the newest weights
    records_mean: float | None = None  # of `records` lately: batches make it jump
    records_per_s: float | None = None  # by which `records` grew lately; below 0: it catches up


@dataclass(frozen=True, kw_only=True)
class FlowPicture:
    """What passes from one stage to the next, lately."""

    source: str  # a stage
    target: str  # a stage; of a reward: "reward NAME"
    what: str  # "groups", "samples", "rewards", "versions"
    per_s: float | None
    queued: float | None  # of them between the two
    queued_growth_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SeriesPicture:
    """Numbers over time. When full it halves its resolution."""

    name: str
    began_ms: int  # of the first bin
    bin_ms: int
    values: tuple[float | None, ...]  # mean of the bin; None: nothing in it


@dataclass(frozen=True, kw_only=True)
class StepsPicture:
    """The learner's last steps, all numbers over the same ones."""

    num: int = 0  # of them; 0: not known
    per_s: float | None = None  # lower when one is long overdue
    step_s: float | None = None  # mean from one to the next: steps may come in bursts
    trained_per_s: float | None = None  # samples
    best_trained_per_s: float | None = None  # over as many steps, at any time so far
    best_step_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class LatelyPicture:
    """What became of the sample ids that were closed in the last minute of the ledger."""

    trained: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)  # reason without detail -> dropped or failed ids, most first


@dataclass(frozen=True, kw_only=True)
class HeldPicture:
    """The kind of verdict that held at the last look, and since when."""

    kind: VerdictKind
    since_ms: int


@dataclass(frozen=True, kw_only=True)
class LostPicture:
    """A sample id that was dropped or failed; the last ones of each reason."""

    group: int
    member: int
    attempt: str | None
    result: str
    reason: str  # with its detail
    version: Version | None
    lineage: int
    step: int  # the step in progress when it was closed
    at_ms: int


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Of the whole run, in the history that survives (promise 3), however late the follower began."""

    lineage: int = 0  # 0: no learner began
    step: int = 0
    groups_closed: int = 0
    trained: int = 0  # sample ids
    dropped: int = 0
    failed: int = 0
    groups_admitted: int | None = None  # by the prompt producer's word
    sealed: bool = False  # the run ended on purpose
    ages: Mapping[str, int] = field(default_factory=dict)  # age in versions -> trained sample ids


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the run's settings say that a view needs; unknown for a run whose settings are not at hand."""

    max_steps: int | None = None
    max_staleness: int | None = None  # None: no bound
    groups_per_step: int | None = None
    group_size: int | None = None
    credit_groups: int | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Which side starves, and why."""

    kind: VerdictKind
    text: str  # a sentence with the numbers
    advice: str = ""  # what to do; empty: nothing
    evidence: tuple[str, ...] = ()  # further numbers that it stands on, one each
    is_provisional: bool = False  # the learner is not past its first step, so numbers are of a start
    since_ms: int | None = None  # it has been of this kind since then; None: not known


@dataclass(frozen=True, kw_only=True)
class RunPicture:
    """A run at one moment."""

    run: str
    now_ms: int  # of a run that ended: its last moment
    is_live: bool  # some process was heard lately
    share_read: float  # part of what there was when the follower began that is folded in; below 1: totals are not whole
    window_s: float  # over which shares are
    processes: tuple[ProcessPicture, ...] = ()  # in the order prompts, rollout, reward, ..., learner, scheduler, rest
    afterwards: tuple[ProcessPicture, ...] = ()  # those that joined after the run's end; no part of it
    versions: tuple[VersionPicture, ...] = ()  # oldest first
    lag: tuple[LagPicture, ...] = ()  # of a run that is over: nobody measures it
    flows: tuple[FlowPicture, ...] = ()  # in the order of the pipeline
    commands: tuple[CommandPicture, ...] = ()  # oldest first, heartbeats left out
    notices: tuple[NoticePicture, ...] = ()  # oldest first
    drops: Mapping[str, int] = field(default_factory=dict)  # reason without detail -> sample ids, whole run
    lost: tuple[LostPicture, ...] = ()  # the last of each reason
    series: Mapping[str, SeriesPicture] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    facts: RunFacts = field(default_factory=RunFacts)
    last_step: Mapping[str, float] = field(default_factory=dict)  # what the learner told of its last step
    steps: StepsPicture = field(default_factory=StepsPicture)
    lately: LatelyPicture = field(default_factory=LatelyPicture)
    is_settled: bool = True  # shares leave the start out; False: the learner is not past its first step
    held: HeldPicture | None = None  # None: nobody has looked before
    trouble: str = ""  # why the broker cannot be read; the rest is as of when it could
