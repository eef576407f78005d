"""What faults act upon: one run, its processes, its servers, and the tools that were prepared for it.

Role: handed to `inject` and `heal` of every fault.
Invariants: waiting ends when the run does, with `RunEnded`; what a fault destroys is noted in `doomed` before it goes.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ops.chaos.clocks import Clock
from ops.chaos.crew import Crew
from ops.chaos.disks import Disks
from ops.chaos.errors import RunEnded
from ops.chaos.links import Link
from ops.chaos.servers import Servers
from ops.chaos.settings import ChaosSettings
from ops.chaos.watch import Watch
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog

_POLL_S = 0.05


@dataclass
class Doomed:
    """Ids of records that faults destroyed, as the audit names them, by short topic name."""

    ids: dict[str, set[str]] = field(default_factory=dict)
    num_records: int = 0

    def add(self, topic: str, ids: set[str], *, num_records: int) -> None:
        """Note what is about to go."""
        self.ids.setdefault(topic, set()).update(ids)
        self.num_records += num_records

    def has(self, topic: str, what: str) -> bool:
        """Whether a fault destroyed it."""
        return what in self.ids.get(topic, ())


@dataclass(kw_only=True)
class World:
    """See the module."""

    settings: ChaosSettings
    crew: Crew
    servers: Servers
    watch: Watch
    log: KafkaLog  # of the run, over the brokers themselves
    raw: RawLog
    links: Mapping[str, Link]  # by program
    clocks: Mapping[str, Clock]
    disks: Disks | None
    say: Callable[[str], None]
    doomed: Doomed = field(default_factory=Doomed)
    hangs: list[str] = field(default_factory=list)
    left: list[subprocess.Popen[bytes]] = field(default_factory=list)  # processes that were replaced while they lived

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.settings.run

    def wait(self, seconds: float) -> None:
        """Wait while the run goes on.

        Raises:
            RunEnded: it did not.
        """
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.check_running()
            time.sleep(min(_POLL_S, left_s))

    def check_running(self) -> None:
        """Raises RunEnded when the run ended by itself."""
        if self.crew.ended is not None:
            raise RunEnded(f"the run ended by itself with code {self.crew.ended}: {self.crew.last_words()}")
