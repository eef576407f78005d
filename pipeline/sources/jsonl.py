"""JSONL files as rows.

Role: index every usable line once, read lines on demand; a file may be larger than memory.
Data in: files of one JSON object a line; data out: rows.
Invariants: a line that holds no prompt is named and skipped, the rest goes on; memory is 12 bytes a line.
Failure: `SettingsError` for a file that is absent or unreadable, for files without one usable line, and for a file that
changed after it was indexed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import orjson

from pipeline.sources.base import Row, SkippedLine
from pipeline.sources.shaping import check_row, invalid
from schemas.errors import RecordInvalid, SettingsError


class JsonlRows:
    """See `base.Rows`.

    Raises:
        SettingsError: see the module.
    """

    def __init__(self, files: Sequence[Path], *, on_skipped: Callable[[SkippedLine], None]) -> None:
        self._files = tuple(files)
        self._file_of = array("i")
        self._starts = array("q")
        num_skipped = 0
        for number, path in enumerate(self._files):
            for start, line_number, line in _lines(path):
                try:
                    _parse(line)
                except RecordInvalid as error:
                    num_skipped += 1
                    on_skipped(SkippedLine(file=str(path), line=line_number, why=error.message))
                    continue
                self._file_of.append(number)
                self._starts.append(start)
        if not self._starts:
            raise SettingsError(
                f"no usable line in {', '.join(map(str, files))}; {num_skipped} were skipped",
                hint='write one JSON object a line, such as {"question": "4 + 3 =", "answer": "7"}',
            )

    @property
    def name(self) -> str:
        """Kind, file names and number of rows."""
        return f"jsonl:{','.join(path.name for path in self._files)}:{len(self._starts)}"

    @property
    def num_rows(self) -> int | None:
        """Usable lines of all files."""
        return len(self._starts)

    def row(self, index: int) -> Row:
        """The object of one line."""
        path = self._files[self._file_of[index]]
        try:
            with path.open("rb") as file:
                file.seek(self._starts[index])
                return _parse(file.readline())
        except OSError as error:
            raise _unreadable(path, error) from error
        except RecordInvalid as error:
            raise SettingsError(
                f"{path} changed while it was in use: {error.message}", hint="restart after the file is complete"
            ) from error


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(byte offset, line number from 1, bytes) of each line."""
    start = 0
    try:
        with path.open("rb") as file:
            for line_number, line in enumerate(file, start=1):
                yield start, line_number, line
                start += len(line)
    except OSError as error:
        raise _unreadable(path, error) from error


def _parse(line: bytes) -> Row:
    if not line.strip():
        raise invalid("the line is empty")
    try:
        row: object = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise invalid(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise invalid(f"a JSON object is needed, got a {type(row).__name__}")
    check_row(row)
    return row


def _unreadable(path: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"prompt file {path} cannot be read: {error.strerror}", hint=f"relative paths start at {Path.cwd()}"
    )
