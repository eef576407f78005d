"""Live progress of a run: a small panel on a terminal, plain lines elsewhere.

Role: folds the `events` topic into what a person wants to know at a glance. Reads only; commits nothing.
Data in: heartbeats and `step` notices. Data out: text.
Failure: a broker that does not answer stops the picture, never the run.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ops.run_file import RunFile
from schemas.errors import LogError
from schemas.records import StageEvent
from topics.catalog import EVENTS
from topics.clock import Deadline
from topics.log import Log, Reader, ReaderHooks, ReaderSettings

REFRESH_S = 0.5
TOLD = frozenset(
    {
        "breaker_opened",
        "upstream_silent",
        "checkpoint_failed",
        "record_stuck",
        "offsets_lost",
        "topic_recreated",
        "batch_unreadable",
        "load_failed",
    }
)
LINE_EVERY_S = 5.0
SINGLE = frozenset({"prompts", "learner", "scheduler", "peer"})  # stages that are one process, or one per rank
_POLL_S = 0.02


@dataclass
class ProcessView:
    """The last word of one process."""

    stage: str
    phase: str = ""
    gauges: dict[str, float] = field(default_factory=dict)
    beat_s: float = 0.0  # the process's own monotonic clock at its last heartbeat
    tokens_per_s: float = 0.0


@dataclass
class RunView:
    """What is known of a run, from its events."""

    processes: dict[str, ProcessView] = field(default_factory=dict)
    last_step: dict[str, float] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)

    def add(self, event: StageEvent) -> None:
        """Fold one event; what an instance still sends after it said that it stopped is passed over."""
        if event.instance in self.stopped:
            return
        if event.instance not in self.processes and event.stage in SINGLE:
            self._succeed(event.instance)
        view = self.processes.setdefault(event.instance, ProcessView(stage=event.stage))
        if event.kind == "heartbeat":
            self._beat(view, event)
        elif event.kind == "phase_began":
            view.phase = event.name
        elif event.name == "step":
            self.last_step = dict(event.gauges)
        elif event.name == "stopped":
            self.processes.pop(event.instance, None)
            self.stopped.add(event.instance)

    def _succeed(self, new: str) -> None:
        """A seat of one process has a new one: the old one was killed, and can no longer say that it stopped."""
        gone = [instance for instance in self.processes if _seat(instance) == _seat(new)]
        for instance in gone:
            del self.processes[instance]
        self.stopped.update(gone)

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

    @property
    def dropped(self) -> float:
        """Sample ids dropped or failed, as the learner counted since its start."""
        return sum(
            value
            for view in self.processes.values()
            for name, value in view.gauges.items()
            if name.startswith("members_dropped{")
        )

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens made per second, over all rollout producers, between their last two heartbeats."""
        return sum(view.tokens_per_s for view in self.processes.values())

    @staticmethod
    def _beat(view: ProcessView, event: StageEvent) -> None:
        passed_s = event.monotonic_s - view.beat_s
        made = event.gauges.get("tokens_generated", 0.0) - view.gauges.get("tokens_generated", 0.0)
        if view.beat_s > 0 and passed_s > 0:
            view.tokens_per_s = max(0.0, made / passed_s)
        view.beat_s = event.monotonic_s
        view.gauges = dict(event.gauges)
        view.phase = event.details.get("phase", view.phase)


def _seat(instance: str) -> str:
    """What an instance is a process of: the stage, or one rank of the learner (`learner.1`)."""
    return instance.partition("-")[0]


class Progress:
    """Shows a run while it goes on. A context manager; `turn` is called often and returns at once."""

    def __init__(self, log: Log, *, run_file: RunFile, quiet: bool) -> None:
        self._log = log
        self._run_file = run_file
        self._quiet = quiet
        self._view = RunView()
        self._reader: Reader | None = None
        self._live: Live | None = None
        self._shown_s = 0.0
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        hooks = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
        self._reader = self._log.reader(ReaderSettings(topics=(EVENTS,), start="latest"), hooks=hooks)
        self._reader.poll(1, deadline=Deadline.after(_POLL_S))  # fixes where "latest" is
        if sys.stdout.isatty() and not self._quiet:
            self._live = Live(self._table(), console=Console(), refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.turn(force=True)
        if self._live is not None:
            self._live.stop()
        if self._reader is not None:
            self._reader.close()

    def say(self, line: str) -> None:
        """Print a line for people."""
        if self._live is not None:
            self._live.console.print(line)
        else:
            click.echo(line)

    def turn(self, *, force: bool = False) -> None:
        """Take in what is new and show it when it is time."""
        self._take_in()
        now_s = time.monotonic()
        every_s = REFRESH_S if self._live is not None else LINE_EVERY_S
        if not force and now_s - self._shown_s < every_s:
            return
        self._shown_s = now_s
        if self._live is not None:
            self._live.update(self._table())
        elif not self._quiet:
            click.echo(self._line())

    def _take_in(self) -> None:
        if self._reader is None:
            return
        try:
            for envelope in self._reader.poll(500, deadline=Deadline.after(_POLL_S)):
                if isinstance(envelope.record, StageEvent):
                    self._view.add(envelope.record)
                    self._tell(envelope.record)
        except LogError:
            return

    def _tell(self, event: StageEvent) -> None:
        """Print what a person should know at once."""
        if event.kind == "notice" and event.name in TOLD:
            details = ", ".join(f"{name} {value}" for name, value in event.details.items() if value)
            self.say(f"{event.stage}: {event.name}: {details}")

    def _numbers(self) -> dict[str, str]:
        view, last = self._view, self._view.last_step
        run = self._run_file.run
        bound = "no bound" if run.on_stale == "train" else f"bound {run.max_staleness}"
        return {
            "step": f"{last['step']:.0f} of {run.max_steps}" if last else f"- of {run.max_steps}",
            "reward": f"{last['reward_mean']:.3f}" if last else "-",
            "age": f"mean {last['age_mean']:.2f}, max {last['age_max']:.0f} ({bound})" if last else "-",
            "dropped": f"{view.dropped:.0f} ids",
            "open groups": f"{view.gauge('learner', 'open_groups'):.0f} of {run.credit_groups}",
            "lag": f"{view.lag_records:.0f} records",
            "tokens/s": f"{view.tokens_per_s:.0f}",
        }

    def _line(self) -> str:
        passed_s = time.monotonic() - self._began_s
        numbers = "  ".join(f"{name} {value}" for name, value in self._numbers().items())
        return f"[{passed_s:6.1f} s] {numbers}  {self._phases()}"

    def _phases(self) -> str:
        return " ".join(
            f"{view.stage}:{view.phase}" for view in self._view.processes.values() if view.stage == "learner"
        )

    def _table(self) -> Table:
        table = Table(title=f"run {self._run_file.run.name}", title_justify="left", show_header=False, box=None)
        for name, value in self._numbers().items():
            table.add_row(name, value)
        for instance, view in sorted(self._view.processes.items(), key=lambda item: (item[1].stage, item[0])):
            table.add_row(view.stage, f"{view.phase}  {instance}")
        return table
