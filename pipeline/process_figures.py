"""What a process takes of its machine, as metrics.

Role: called with every heartbeat.
Data in: the kernel's account of this process, the log's of its bytes. Data out: `cpu_s`, `resident_bytes`,
`record_bytes`, `record_read_bytes`.
Failure: where there is no `/proc`, memory is not told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.metrics import Metrics
from topics.log import Log, Metered

_STATM = Path("/proc/self/statm")  # proc(5): in pages; the second one is resident


class ProcessFigures:
    """Processor time, as a counter from the start of the process; memory; bytes to and from the log."""

    def __init__(self, metrics: Metrics, *, log: Log) -> None:
        self._metrics = metrics
        self._log = log
        self._written_bytes: dict[str, int] = {}
        self._read_bytes: dict[str, int] = {}
        self._told_s = 0.0

    def tell(self) -> None:
        """Bring all of it up to date."""
        spent_s = time.process_time()
        self._metrics.count("cpu_s", spent_s - self._told_s)
        self._told_s = spent_s
        with suppress(OSError, IndexError, ValueError):
            pages = int(_STATM.read_text(encoding="ascii").split()[1])
            self._metrics.gauge("resident_bytes", pages * os.sysconf("SC_PAGE_SIZE"))
        if isinstance(self._log, Metered):
            self._written_bytes = self._told("record_bytes", self._log.written_bytes, before=self._written_bytes)
            self._read_bytes = self._told("record_read_bytes", self._log.read_bytes, before=self._read_bytes)

    def _told(self, metric: str, now: Mapping[str, int], *, before: Mapping[str, int]) -> dict[str, int]:
        found = dict(now)
        for topic, num_bytes in found.items():
            self._metrics.count(metric, num_bytes - before.get(topic, 0), topic=topic)
        return found
