"""Live progress of a run: a small panel on a terminal, plain lines elsewhere.

Role: shows what `ops.run_view` makes of the `events` topic and of the ledger. Reads only; commits nothing.
Data in: heartbeats and notices from now on; the ledger from its beginning, a piece at each turn. Data out: text.
Invariants: what others wrote (messages, names, errors) is shown as it is, never taken for markup or for controls.
Failure: a broker that does not answer stops the picture, never the run.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ops.live.ids import Ids
from ops.live.notices import described
from ops.run_file import RunFile
from ops.run_view import ProcessView, RunView, quiet_after_s
from schemas.errors import LogError
from schemas.reasons import Result
from schemas.records import StageEvent
from topics.catalog import EVENTS, LEDGER
from topics.clock import Deadline
from topics.log import Envelope, Log, Reader, ReaderHooks, ReaderSettings, TopicPartition

REFRESH_S = 0.5
TOLD = frozenset(
    {
        "breaker_opened",
        "breaker_closed",
        "upstream_silent",
        "checkpoint_failed",
        "record_stuck",
        "rescored",
        "offsets_lost",
        "topic_recreated",
        "batch_unreadable",
        "load_failed",
    }
)
LINE_EVERY_S = 5.0
_POLL_S = 0.02
_LAST_S = 2.0  # at most, for what was written before the end and is not read yet
_HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)


def plain(text: str) -> Text:
    """Text that is not ours, for the terminal: no markup, no emoji codes, no control characters."""
    return Text("".join(mark if mark.isprintable() or mark in "\n\t" else "?" for mark in text))


class Progress:
    """Shows a run while it goes on. A context manager; `turn` is called often and returns at once."""

    def __init__(
        self, log: Log, *, run_file: RunFile, quiet: bool, on_event: Callable[[StageEvent], None] = lambda _: None
    ) -> None:
        self._on_event = on_event
        self._log = log
        self._run_file = run_file
        self._quiet = quiet
        self._view = RunView(quiet_s=quiet_after_s(run_file.run.heartbeat_s))
        self._ids = Ids()
        self._reader: Reader | None = None
        self._ledger: Reader | None = None
        self._ledger_ends: dict[TopicPartition, int] = {}  # at the start; empty: read that far
        self._live: Live | None = None
        self._told: dict[str, str] = {}  # the last line about an instance
        self._shown_s = 0.0
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        self._reader = self._log.reader(ReaderSettings(topics=(EVENTS,), start="latest"), hooks=_HOOKS)
        self._reader.poll(1, deadline=Deadline.after(_POLL_S))  # fixes where "latest" is
        self._ledger = self._log.reader(ReaderSettings(topics=(LEDGER,)), hooks=_HOOKS)
        self._ledger_ends = self._ledger.end_positions()
        if sys.stdout.isatty() and not self._quiet:
            self._live = Live(self._table(), console=Console(), refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_last()
        self.turn(force=True)
        if self._live is not None:
            self._live.stop()
        for reader in (self._reader, self._ledger):
            if reader is not None:
                reader.close()

    def say(self, line: str) -> None:
        """Print a line for people."""
        if self._live is not None:
            self._live.console.print(plain(line))
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

    def ended(self, stage: str, pid: int) -> None:
        """A process that was started here has ended: it is shown no more."""
        self._take_in()
        self._view.ended(stage, host=socket.gethostname(), pid=pid)

    def _take_in(self) -> int:
        """Fold what is new; returns how many records that were."""
        num = 0
        for envelope in _read(self._reader):
            num += 1
            if isinstance(envelope.record, StageEvent):
                self._view.add(envelope.record, heard_s=time.monotonic())
                self._tell(envelope.record)
                self._on_event(envelope.record)
        for envelope in _read(self._ledger):
            num += 1
            self._ids.add(envelope.record)
        if self._ledger is not None and self._ledger_ends:
            at = self._ledger.positions()
            if all(at.get(place, 0) >= end for place, end in self._ledger_ends.items()):
                self._ledger_ends = {}
        return num

    def _take_last(self) -> None:
        """Read on until nothing comes: the last step and the last drops belong to the picture that stays."""
        deadline = Deadline.after(_LAST_S)
        while self._take_in() and not deadline.expired:
            continue

    def _tell(self, event: StageEvent) -> None:
        """Print what a person should know at once."""
        if event.kind != "notice" or event.name not in TOLD:
            return
        line = described(event)
        if self._told.get(event.instance) != line:  # a reward that fails at each new try says so once
            self._told[event.instance] = line
            self.say(line)

    def _dropped(self) -> str:
        """Of the whole run. `-` while the ledger has not been read to where it ended at the start."""
        if self._ledger is None or self._ledger_ends:
            return "-"
        failed = self._ids.num(Result.FAILED)
        ids = f"{self._ids.num(Result.DROPPED)} ids"
        return f"{ids}, {failed} failed" if failed else ids

    def _numbers(self) -> dict[str, str]:
        view, last = self._view, self._view.last_step
        run = self._run_file.run
        bound = "no bound" if run.on_stale == "train" else f"bound {run.max_staleness}"
        return {
            "step": f"{last['step']:.0f} of {run.max_steps}" if last else f"- of {run.max_steps}",
            "reward": f"{last['reward_mean']:.3f}" if last else "-",
            "age": f"mean {last['age_mean']:.2f}, max {last['age_max']:.0f} ({bound})" if last else "-",
            "dropped": self._dropped(),
            "open groups": f"{view.gauge('learner', 'open_groups'):.0f} of {run.credit_groups}",
            "lag": f"{view.lag_records:.0f} records",
            "tokens/s": f"{view.tokens_per_s(time.monotonic()):.0f}",
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
        title = plain(f"run {self._run_file.run.name}")
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for name, value in self._numbers().items():
            table.add_row(plain(name), plain(value))
        now_s = time.monotonic()
        for view in self._view.shown(now_s):
            table.add_row(plain(view.name), plain(f"{self._doing(view, now_s)}  {view.instance}"))
        return table

    def _doing(self, view: ProcessView, now_s: float) -> str:
        silent_s = self._view.silent_s(view, now_s)
        return view.phase if silent_s is None else f"not heard for {silent_s:.0f} s"


def _read(reader: Reader | None) -> Iterator[Envelope]:
    """What a reader has; nothing when the broker does not answer."""
    if reader is None:
        return
    try:
        yield from reader.poll(500, deadline=Deadline.after(_POLL_S))
    except LogError:
        return
