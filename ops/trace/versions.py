"""The life of a policy version: from the batch to the engines that serve it.

Data in: `VersionRecords`. Data out: hops.
Invariants: differences inside one process are of its own monotonic clock, put on the wall clock at its event nearest to
the version (promise 13). A version that no engine served, as a newer one took its place, says so.
Failure: none; a hop of which no record tells the time is named as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ops.trace.gather import VersionRecords
from ops.trace.life import Hops, Life
from schemas.records import StageEvent, Version


@dataclass(frozen=True, kw_only=True)
class Making:
    """When the learner made a version; None: no event tells."""

    instance: str = ""
    cut_ms: float | None = None  # begin of the forward and backward pass
    trained_ms: float | None = None  # end of the optimizer's step
    staged_ms: float | None = None  # snapshot and encoding are done: its transaction begins


def version_life(records: VersionRecords, *, run: str) -> Life:
    """From the begin of its step to its last engine."""
    hops, unknown = Hops(), list[str]()
    making = making_of(records)
    published_ms = add_making(hops, records, making=making, unknown=unknown)
    served = add_serving(hops, records, published_ms=published_ms, unknown=unknown)
    end = (
        f"served by {served} engine(s)"
        if served
        else "no engine served it: a newer one took its place, or none was there"
    )
    facts = {}
    if records.manifest is not None:
        manifest = records.manifest.record
        base = "a whole version (no base)" if manifest.base is None else str(manifest.base)
        facts = {"encoding": manifest.encoding, "base": base, "state_bytes": str(manifest.num_bytes)}
    return Life(
        run=run,
        kind="version",
        id=str(records.version),
        end=end,
        hops=hops.all(),
        facts=facts,
        unknown=tuple(unknown),
        num_clock_skews=hops.num_clock_skews,
    )


def making_of(records: VersionRecords) -> Making:
    """The pass and the optimizer's step that made it: until it is published, the learner tells the version before."""
    before = Version(lineage=records.version.lineage, step=records.version.step - 1)
    making = Making()
    for event in records.events:
        if event.stage != "learner" or event.version != before or event.kind != "phase_began":
            continue
        if event.name == "forward_backward" and making.cut_ms is None:
            making = Making(instance=event.instance, cut_ms=event.unix_ms)
        elif event.name == "staging_weights" and making.cut_ms is not None and making.trained_ms is None:
            making = replace(making, trained_ms=event.unix_ms)
        elif event.name == "publishing" and making.trained_ms is not None and making.staged_ms is None:
            making = replace(making, staged_ms=event.unix_ms)
    return making


def add_making(hops: Hops, records: VersionRecords, *, making: Making, unknown: list[str]) -> float | None:
    """Pass, staging, publishing; returns when it was published.

    The manifest tells when its snapshot was taken, which is where staging begins, so its end is the learner's word.
    """
    staged_ms = making.staged_ms
    published_ms = records.closed_ms if records.manifest is None else records.manifest.unix_ms
    if making.cut_ms is not None and making.trained_ms is not None:
        note = _step_note(records)
        hops.add("is trained", span=(making.cut_ms, making.trained_ms), stage="learner", who=making.instance, note=note)
    else:
        unknown.append("is trained")
    if making.trained_ms is not None and staged_ms is not None:
        note = _staged_note(records)
        hops.add("is staged", span=(making.trained_ms, staged_ms), stage="learner", who=making.instance, note=note)
    elif making.trained_ms is not None and published_ms is not None:
        hops.add(
            "is staged and published",
            span=(making.trained_ms, published_ms),
            stage="learner",
            who=making.instance,
            note=_staged_note(records),
        )
    if staged_ms is not None and published_ms is not None:
        hops.add("is published", span=(staged_ms, published_ms), stage="learner", who=making.instance)
    return None if published_ms is None else float(published_ms)


def add_serving(hops: Hops, records: VersionRecords, *, published_ms: float | None, unknown: list[str]) -> int:
    """Command, fetch, wait and load at each engine; returns how many engines served it."""
    if published_ms is None:
        unknown.append("is served")
        return 0
    ready_ms = published_ms
    command = next(_commands(records), None)
    if command is not None and command.unix_ms >= published_ms - 1_000:
        hops.add(
            "waits for the scheduler",
            span=(published_ms, command.unix_ms),
            stage="scheduler",
            who=command.instance,
            note=command.details.get("reason", ""),
        )
        ready_ms = max(published_ms, float(command.unix_ms))
    swaps = list(_swaps(records))
    for began, swapped in swaps:
        _add_engine(hops, began, swapped=swapped, ready_ms=ready_ms)
    return len(swaps)


def _add_engine(hops: Hops, began: StageEvent | None, *, swapped: StageEvent, ready_ms: float) -> None:
    who, served_ms, gauges = swapped.instance, float(swapped.unix_ms), swapped.gauges
    loading_ms = served_ms if began is None else served_ms - max(0.0, swapped.monotonic_s - began.monotonic_s) * 1000
    fetched_ms = loading_ms - 1000 * gauges.get("held_s", 0.0)
    fetch_s = gauges.get("fetch_s")
    if fetch_s is None:
        hops.add("waits for an engine to fetch and load it", span=(ready_ms, loading_ms), stage="rollout", who=who)
    else:
        fetching_ms = fetched_ms - 1000 * fetch_s
        hops.add("waits for the engine", span=(min(ready_ms, fetching_ms), fetching_ms), stage="rollout", who=who)
        hops.add("is fetched and verified", span=(fetching_ms, fetched_ms), stage="rollout", who=who)
        if "held_s" in gauges:
            hops.add("waits for its wave", span=(fetched_ms, loading_ms), stage="rollout", who=who)
    hops.add("is loaded", span=(loading_ms, served_ms), stage="rollout", who=who)


def _swaps(records: VersionRecords) -> Iterator[tuple[StageEvent | None, StageEvent]]:
    """Begin of the load and its end, per engine that came to serve the version."""
    began: dict[str, StageEvent] = {}
    for event in records.events:
        if event.stage != "rollout":
            continue
        if event.kind == "phase_began" and event.name == "swapping":
            began[event.instance] = event
        elif event.name == "swapped" and event.details.get("version") == str(records.version):
            yield began.get(event.instance), event


def _commands(records: VersionRecords) -> Iterator[StageEvent]:
    wanted = {"kind": "publish", "version": str(records.version)}
    for event in records.events:
        is_command = event.stage == "scheduler" and event.name == "commanded"
        if is_command and wanted.items() <= event.details.items():
            yield event


def _said(events: Sequence[StageEvent], name: str, *, version: Version) -> StageEvent | None:
    for event in events:
        is_of_it = event.details.get("version", str(event.version)) == str(version)
        if event.stage == "learner" and event.kind == "notice" and event.name == name and is_of_it:
            return event
    return None


def _step_note(records: VersionRecords) -> str:
    step = _said(records.events, "step", version=records.version)
    if step is None:
        return ""
    gauges = step.gauges
    return f"{gauges.get('num_samples', 0):.0f} samples, loss {gauges.get('loss', 0):.4g}"


def _staged_note(records: VersionRecords) -> str:
    staged = _said(records.events, "staged", version=records.version)
    if staged is None:
        return ""
    gauges = staged.gauges
    return f"snapshot {gauges.get('snapshot_s', 0):.3f} s, encoding {gauges.get('encode_s', 0):.3f} s"
