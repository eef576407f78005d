"""Wall clocks of single processes, stepped by libfaketime: the host's own clock is never touched.

Role: finds the library, says with which environment a process must be started for its clock to be stepped later, and
steps it. The monotonic clock of the process stays true, as it does when a real clock is set.
Failure: without the library, `missing` says what to install.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The variant for programs with threads comes first.
_PLACES = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/lib/*/faketime/libfaketime.so.1",
)
CLOCKED = (sys.executable, "-m", "ops.chaos.clocked")  # what takes the place of `python -m ops.cli`
_REREAD_S = 1  # how soon a process sees that its clock was stepped


class Clock:
    """The clock of one process, through a file that the library reads.

    Args:
        file: holds the offset; written here.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self.step(0)

    @property
    def environment(self) -> dict[str, str]:
        """What the process must be started with; nothing without the library."""
        library = find_library()
        if library is None:
            return {}
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(_REREAD_S),
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, offset_s: int) -> None:
        """Set the clock that many seconds off the host's."""
        aside = self._file.with_suffix(".new")
        aside.write_text(f"{offset_s:+d}\n")
        aside.replace(self._file)


def find_library() -> Path | None:
    """Where libfaketime is; None: it is not installed."""
    for pattern in _PLACES:
        found = sorted(Path("/").glob(pattern.lstrip("/")))
        if found:
            return found[0]
    return None


def missing() -> str | None:
    """Why clocks cannot be stepped here; None: they can."""
    return None if find_library() is not None else "libfaketime is not installed (Debian: apt install faketime)"
