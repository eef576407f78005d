"""What is known of a run while it goes on, folded from its events.

Role: the picture behind `ops.progress`; knows neither a broker nor a terminal.
Data in: events, and which processes a supervisor saw end. Data out: processes and numbers.
Invariants: times of hearing are this machine's monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from schemas.records import StageEvent

# Stages that are one process, or one per rank.
SINGLE = frozenset({"prompts", "learner", "scheduler", "peer", "evaluator"})
QUIET_BEATS = 5.0  # heartbeats without a word after which a process counts as not heard
LEAST_QUIET_S = 5.0


def quiet_after_s(heartbeat_s: float) -> float:
    """Silence after which a process is said to be not heard."""
    return max(LEAST_QUIET_S, QUIET_BEATS * heartbeat_s)


def place_of(instance: str) -> str:
    """Seat and host of an instance, `rollout-vm` of `rollout-vm-20074-1a2b3c`."""
    return instance.rsplit("-", 2)[0]


def pid_of(instance: str) -> int | None:
    """The process id in an instance name, `stage-host-pid-xxxxxx`; None when there is none."""
    parts = instance.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else None


def slot_key(stage: str, *, instance: str, labels: Mapping[str, str]) -> tuple[str, ...] | None:
    """What there is one process of at a time; None: it has not said so."""
    if stage in SINGLE:
        return (_seat(instance),)
    slot = labels.get("slot", "")
    return (place_of(instance), labels.get("reward", ""), slot) if slot else None


@dataclass
class ProcessView:
    """The last word of one process."""

    stage: str
    instance: str = ""
    phase: str = ""
    gauges: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)  # what it says of itself with each heartbeat
    beat_s: float = 0.0  # the process's own monotonic clock at its last heartbeat
    heard_s: float = 0.0  # this machine's clock
    tokens_per_s: float = 0.0

    @property
    def name(self) -> str:
        """The stage, and the reward's name."""
        return f"{self.stage} {self.labels.get('reward', '')}".rstrip()

    @property
    def slot(self) -> tuple[str, ...] | None:
        """See `slot_key`."""
        return slot_key(self.stage, instance=self.instance, labels=self.labels)


@dataclass
class RunView:
    """What the events say.

    Args:
        quiet_s: silence after which a process counts as not heard.
    """

    quiet_s: float = LEAST_QUIET_S
    processes: dict[str, ProcessView] = field(default_factory=dict)
    last_step: dict[str, float] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)  # said so, were succeeded, or were seen to end

    def add(self, event: StageEvent, *, heard_s: float = 0.0) -> None:
        """Fold one event; what an instance still sends after its end is passed over, except a step: that was made."""
        if event.kind == "notice" and event.name == "step":
            self.last_step = dict(event.gauges)
        if event.instance in self.stopped:
            return
        if event.instance not in self.processes and event.stage in SINGLE:
            self._succeed(event.instance)
        view = self.processes.setdefault(event.instance, ProcessView(stage=event.stage, instance=event.instance))
        view.heard_s = heard_s
        if event.kind == "heartbeat":
            self._beat(view, event)
        elif event.kind == "phase_began":
            view.phase = event.name
        elif event.name == "stopped":
            self._drop([event.instance])

    def ended(self, stage: str, *, host: str, pid: int) -> None:
        """A supervisor saw a process of `stage` end; it can no longer say so itself."""
        self._drop(
            [
                instance
                for instance, view in self.processes.items()
                if view.stage == stage and place_of(instance) == f"{_seat(instance)}-{host}" and pid_of(instance) == pid
            ]
        )

    def shown(self, now_s: float) -> list[ProcessView]:
        """Processes in the order they are shown in, without those that went quiet and have a successor."""
        views = sorted(self.processes.values(), key=lambda view: (view.name, view.instance))
        held = {view.slot for view in views if not self._is_quiet(view, now_s)} - {None}
        return [view for view in views if view.slot not in held or not self._is_quiet(view, now_s)]

    def silent_s(self, view: ProcessView, now_s: float) -> float | None:
        """For how long a process has not been heard; None while that is nothing to speak of."""
        return now_s - view.heard_s if self._is_quiet(view, now_s) else None

    def gauge(self, stage: str, name: str) -> float:
        """Sum of a gauge over the processes of a stage; 0 when none has it."""
        return sum(view.gauges.get(name, 0.0) for view in self.processes.values() if view.stage == stage)

    @property
    def lag_records(self) -> float:
        """Readable records that consumer groups have not committed, summed, as the scheduler measured last."""
        return sum(
            value
            for view in self.processes.values()
            if view.stage == "scheduler"
            for name, value in view.gauges.items()
            if name.startswith("lag_records{")
        )

    def tokens_per_s(self, now_s: float) -> float:
        """Completion tokens made per second, over all rollout producers that are heard, between their last two
        heartbeats."""
        return sum(view.tokens_per_s for view in self.processes.values() if not self._is_quiet(view, now_s))

    def _is_quiet(self, view: ProcessView, now_s: float) -> bool:
        return now_s - view.heard_s > self.quiet_s

    def _succeed(self, new: str) -> None:
        """A seat of one process has a new one: the old one was killed, and can no longer say that it stopped."""
        self._drop([instance for instance in self.processes if _seat(instance) == _seat(new)])

    def _drop(self, instances: Iterable[str]) -> None:
        for instance in instances:
            self.processes.pop(instance, None)
            self.stopped.add(instance)

    @staticmethod
    def _beat(view: ProcessView, event: StageEvent) -> None:
        passed_s = event.monotonic_s - view.beat_s
        made = event.gauges.get("tokens_generated", 0.0) - view.gauges.get("tokens_generated", 0.0)
        if view.beat_s > 0 and passed_s > 0:
            view.tokens_per_s = max(0.0, made / passed_s)
        view.beat_s = event.monotonic_s
        view.gauges = dict(event.gauges)
        view.labels = dict(event.details)
        view.phase = event.details.get("phase", view.phase)


def _seat(instance: str) -> str:
    """What an instance is a process of: the stage, or one rank of the learner (`learner.1`)."""
    return instance.partition("-")[0]
