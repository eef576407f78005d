"""One program of a run, and what is to become of it."""

from __future__ import annotations

from dataclasses import dataclass

from ops.supervisor.processes import Slot
from ops.supervisor.restarts import RestartPolicy
from ops.supervisor.scaling import Retirement, Standing


@dataclass
class Kept:
    """One program, and what is to become of it."""

    slot: Slot
    policy: RestartPolicy
    start_at_s: float | None = None  # set while waiting for a restart
    is_wanted: bool = True  # False: spare, or retiring
    retirement: Retirement | None = None  # while a process that is wanted no more lives

    @property
    def standing(self) -> Standing:
        """As `scaling` sees it."""
        if self.retirement is not None:
            return "retiring"
        return "working" if self.is_wanted else "free"
