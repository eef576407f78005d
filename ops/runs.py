"""The runs there are: as topics on a broker, as folders on this machine, or both.

Role: find, describe and delete runs.
Data in: topic names, the ends of their events and ledgers, folders with saved settings. Data out: `RunSeen`.
Invariants: only the ends of topics are read, so listing is quick whatever a run's size; a run whose processes have all
said that they stopped is not called running; a run that shows signs of life is not deleted. Liveness for `delete` is
judged by watching its events arrive, not by anyone's clock.
Failure: `RunAlive`, `RunNotFound`, errors of the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ops.outputs import writing
from ops.replay.sources import RunNotFound, decode
from schemas.errors import CodecError, LogError, RlweaveError
from schemas.reasons import Result
from schemas.records import LedgerSealed, LineageStarted, Outcome, Record, StageEvent
from topics.catalog import BY_NAME, EVENTS, LEDGER, Topic, full_name
from topics.clock import Clock, Deadline, SystemClock
from topics.kafka.raw import Ranges, RawLog

State = Literal["running", "finished", "stopped", "folder only", "no events"]
SETTINGS_FILE = "settings.json"
_TAIL = 200  # offsets looked at before the end of a partition
_RECENT_MS = 15_000  # for people: an event younger than this means running
_WATCH_S = 4.0  # heartbeats come every second by default
_POLL_S = 0.1


class RunAlive(RlweaveError):
    """A run has processes at work."""


@dataclass(frozen=True, kw_only=True)
class RunSeen:
    """One run."""

    name: str
    topics: int  # on the broker
    folder: Path | None  # with its saved settings
    lineage: int
    step: int
    state: State
    last_unix_ms: int | None  # of its newest event; None: none


def list_runs(log: RawLog, *, runs_dir: Path, clock: Clock | None = None) -> list[RunSeen]:
    """Every run on the broker or under `runs_dir`, by name; one that is deleted meanwhile may be left out.

    Raises:
        LogError: the broker does not answer, or not as it should.
    """
    now_ms = (clock if clock is not None else SystemClock()).unix_ms()
    counts = log.partition_counts()
    on_broker = runs_on(counts)
    folders = run_folders(runs_dir)
    found = []
    for name in sorted(on_broker.keys() | folders.keys()):
        num_topics, folder = on_broker.get(name, 0), folders.get(name)
        try:
            found.append(_describe(log, name, counts=counts, num_topics=num_topics, folder=folder, now_ms=now_ms))
        except LogError:
            if runs_on(log.partition_counts()).get(name, 0) >= num_topics:
                raise
            # It is being deleted, so there is nothing to say of it.
    return found


def runs_on(counts: dict[str, int]) -> dict[str, int]:
    """Number of topics per run among full topic names."""
    found: dict[str, int] = {}
    for full in counts:
        parts = full.split(".")
        if len(parts) == 3 and parts[0] == "rlweave" and parts[2] in BY_NAME:
            found[parts[1]] = found.get(parts[1], 0) + 1
    return found


def run_folders(runs_dir: Path) -> dict[str, Path]:
    """Folders with saved settings, by run name."""
    return {path.parent.name: path.parent for path in sorted(runs_dir.glob(f"*/{SETTINGS_FILE}"))}


def delete_run(log: RawLog, run: str, *, folder: Path | None) -> list[str]:
    """Delete a run's topics, and its folder if given; returns what was deleted.

    Raises:
        RunAlive: its events still arrive.
        RunNotFound: there is neither a topic nor a folder.
        SettingsError: the folder cannot be removed.
    """
    counts = log.partition_counts()
    names = [full_name(run, topic) for topic in BY_NAME.values() if full_name(run, topic) in counts]
    if not names and (folder is None or not folder.is_dir()):
        raise RunNotFound(f"there is no run {run!r} to delete", hint="`rlweave runs list` shows the runs there are")
    if is_alive(log, run, counts=counts):
        raise RunAlive(
            f"run {run!r} has processes at work (its events arrive); nothing was deleted",
            hint="stop `rlweave up` of this run first",
        )
    log.delete(names)
    if folder is not None and folder.is_dir():
        with writing(folder, setting="the run's folder"):
            shutil.rmtree(folder)
        return [*names, str(folder)]
    return names


def is_alive(log: RawLog, run: str, *, counts: dict[str, int], watch_s: float = _WATCH_S) -> bool:
    """Whether events of a run arrive within `watch_s` seconds."""
    place = (full_name(run, EVENTS), 0)
    if place[0] not in counts:
        return False
    deadline = Deadline.after(watch_s)
    end = log.ranges([place])[place][1]
    while not deadline.expired:
        if log.ranges([place])[place][1] != end:
            return True
        deadline.clock.wait(_POLL_S)
    return False


def stages_at_work(log: RawLog, run: str, *, counts: dict[str, int], watch_s: float) -> frozenset[str]:
    """Stages whose events arrive within `watch_s` seconds."""
    place = (full_name(run, EVENTS), 0)
    if place[0] not in counts:
        return frozenset()
    before = log.ranges([place])[place][1]
    SystemClock().wait(watch_s)
    new = {place: (before, log.ranges([place])[place][1])}
    records = [record for record, _ in _decodable(log, EVENTS, ranges=new)]
    return frozenset(record.stage for record in records if isinstance(record, StageEvent))


def tail(
    log: RawLog, run: str, *, topic: Topic, num_partitions: int, num_offsets: int = _TAIL
) -> Iterator[tuple[Record | None, int]]:
    """Decodable records near the end of each partition, with their times in Unix milliseconds."""
    name = full_name(run, topic)
    ranges = log.ranges([(name, partition) for partition in range(num_partitions)])
    last = {place: (max(low, end - num_offsets), end) for place, (low, end) in ranges.items()}
    yield from _decodable(log, topic, ranges=last)


def _decodable(log: RawLog, topic: Topic, *, ranges: Ranges) -> Iterator[tuple[Record | None, int]]:
    for raw in log.read(ranges):
        try:
            yield decode(topic, raw), raw.unix_ms
        except CodecError:
            continue


def _describe(
    log: RawLog, name: str, *, counts: dict[str, int], num_topics: int, folder: Path | None, now_ms: int
) -> RunSeen:
    at, sealed = _progress(log, name, num_partitions=counts.get(full_name(name, LEDGER), 0))
    events = tail(log, name, topic=EVENTS, num_partitions=counts.get(full_name(name, EVENTS), 0))
    last, at_work_ms = last_heard_ms(events)
    return RunSeen(
        name=name,
        topics=num_topics,
        folder=folder,
        lineage=at[0],
        step=at[1],
        state=_state(num_topics, sealed=sealed, last_ms=last, silent_ms=now_ms - at_work_ms),
        last_unix_ms=last,
    )


def _state(num_topics: int, *, sealed: bool, last_ms: int | None, silent_ms: int) -> State:
    if num_topics == 0:
        return "folder only"
    if sealed:
        return "finished"
    if last_ms is None:
        return "no events"
    return "running" if silent_ms < _RECENT_MS else "stopped"


def _progress(log: RawLog, name: str, *, num_partitions: int) -> tuple[tuple[int, int], bool]:
    """((lineage, step), sealed) by the last ledger records."""
    at, sealed = (0, 0), 0
    for record, _ in tail(log, name, topic=LEDGER, num_partitions=num_partitions):
        match record:
            case Outcome() if record.result == Result.TRAINED:
                at = max(at, (record.lineage, record.step))
            case LineageStarted():
                at = max(at, (record.lineage, record.branch_step))
            case LedgerSealed():
                at = max(at, (record.lineage, record.step))
                sealed = max(sealed, record.lineage)
    return at, 0 < sealed == at[0]


def last_heard_ms(events: Iterable[tuple[Record | None, int]]) -> tuple[int | None, int]:
    """When a run was last heard of.

    Args:
        events: the end of the topic, with times in Unix milliseconds. The last word of a process that stops comes
            after all its others, so the end tells who has stopped.

    Returns: times of the newest event, None if there is none, and of the newest one of a process that has not said that
    it stopped, 0 if there is none.
    """
    newest: dict[str, int] = {}  # by instance
    stopped: set[str] = set()
    for record, unix_ms in events:
        if isinstance(record, StageEvent):
            newest[record.instance] = max(newest.get(record.instance, 0), unix_ms)
            if (record.kind, record.name) == ("notice", "stopped"):
                stopped.add(record.instance)
    at_work = (unix_ms for instance, unix_ms in newest.items() if instance not in stopped)
    return max(newest.values(), default=None), max(at_work, default=0)
