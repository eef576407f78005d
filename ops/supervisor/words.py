"""What a process said before it ended: out of the log that it shares with its earlier lives.

Data in: a log file and where the present life begins in it. Data out: lines for people.
Failure: none; a log that cannot be read has no lines.
"""

from __future__ import annotations

from pathlib import Path

_MOST_LINES = 6
_MOST_CHARS = 240


def how_it_ended(code: int) -> str:
    """An exit code for people; negative is the signal."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def last_words(log_file: Path, *, begin_bytes: int = 0) -> list[str]:
    """The last `error:` and `hint:` lines of a log."""
    lines = _lines(log_file, begin_bytes=begin_bytes)
    begin = max((index for index, line in enumerate(lines) if line.startswith("error:")), default=len(lines))
    return lines[begin:][:_MOST_LINES]


def reason_of(code: int, *, log_file: Path, begin_bytes: int) -> str:
    """Why a process ended, in a line: its last error, else the last line it wrote. Empty: a signal ended it, or it said
    nothing."""
    if code <= 0:
        return ""
    lines = last_words(log_file, begin_bytes=begin_bytes)
    if not lines:
        lines = [line for line in _lines(log_file, begin_bytes=begin_bytes) if line.strip()][-1:]
    said = lines[0].removeprefix("error:").strip() if lines else ""
    return said if len(said) <= _MOST_CHARS else f"{said[:_MOST_CHARS]}..."


def _lines(log_file: Path, *, begin_bytes: int) -> list[str]:
    try:
        with log_file.open("rb") as log:
            log.seek(begin_bytes)
            return log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
