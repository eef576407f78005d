"""When to start a dead process again. Pure: exits in, decision out."""

from __future__ import annotations

from dataclasses import dataclass

from ops.supervisor.settings import SupervisorSettings
from pipeline.exit_codes import RESTART_IS_FUTILE, ExitCode


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Start it again after `after_s` seconds."""

    after_s: float


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """Do not start it again; the run ends with `code`."""

    code: int
    reason: str


class RestartPolicy:
    """Back-off of one process slot."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._in_a_row = 0

    def decide(self, *, code: int, lived_s: float) -> Restart | GiveUp:
        """What to do after an exit that was not asked for.

        Args:
            code: exit status; negative is the signal that ended it.
            lived_s: how long it ran.
        """
        if code in RESTART_IS_FUTILE:
            return GiveUp(
                code=code, reason=f"exit code {code} ({ExitCode(code).name.lower()}), which a restart does not mend"
            )
        if lived_s >= self._settings.healthy_s:
            self._in_a_row = 0
        if self._in_a_row >= self._settings.max_restarts:
            return GiveUp(code=code if code > 0 else int(ExitCode.ERROR), reason=f"{self._in_a_row} restarts in a row")
        wait_s = min(self._settings.max_backoff_s, self._settings.restart_backoff_s * 2**self._in_a_row)
        self._in_a_row += 1
        return Restart(after_s=wait_s)
