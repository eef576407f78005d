"""The kinds of faults. To add one: a class with `inject` and `heal`, and a `Kind` in its module's `KINDS`."""

from ops.chaos.faults import poison, processes, records, servers, surroundings, workers
from ops.chaos.faults.base import Fault, Kind, Layout

KINDS: tuple[Kind, ...] = (
    *processes.KINDS,
    *workers.KINDS,
    *servers.KINDS,
    *surroundings.KINDS,
    *poison.KINDS,
    *records.KINDS,
)

__all__ = ["KINDS", "Fault", "Kind", "Layout"]
