"""Processes that live and die together: the ranks of a learner. Pure: exits in, decision out.

Role: one of them alone is of no use, so when one ends, all end, and all are started again with one back-off.
Invariants: decided once per fall, when none is left; an exit that a restart cannot mend counts before all others, as
it tells why the others ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ops.supervisor.restarts import GiveUp, Restart, RestartPolicy
from ops.supervisor.settings import SupervisorSettings
from pipeline.exit_codes import RESTART_IS_FUTILE


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How one process of a unit ended."""

    name: str  # of its program
    code: int
    lived_s: float


@dataclass
class Unit:
    """One set of processes.

    Args:
        settings: back-off and limits.
    """

    settings: SupervisorSettings
    exits: list[Exit] = field(default_factory=list)  # of the present fall, in the order they were seen
    kill_at_s: float | None = None  # when those that are left are killed; None: nobody has ended

    def __post_init__(self) -> None:
        self._policy = RestartPolicy(self.settings)

    def ended(self, one: Exit, *, now_s: float) -> None:
        """A process ended without being asked to."""
        self.exits.append(one)
        if self.kill_at_s is None:
            self.kill_at_s = now_s + self.settings.unit_grace_s

    def decide(self) -> tuple[Exit, Restart | GiveUp]:
        """What to do when all have ended, and the exit that says why; the fall is over with it."""
        why = next((one for one in self.exits if one.code in RESTART_IS_FUTILE), self.exits[0])
        self.exits, self.kill_at_s = [], None
        return why, self._policy.decide(code=why.code, lived_s=why.lived_s)
