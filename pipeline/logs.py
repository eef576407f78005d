"""What a process says on stderr: one line per event, as text or as JSON.

Role: set up once per process; `supervisor` writes it to the process's file, `rlweave run` shows it.
Data in: notices (`pipeline.events`) and the log records of libraries. Data out: lines with run, stage and instance.
Invariants: quiet by default: what is routine (`ROUTINE`) is on the topic `events` and, here, only at level `info`; one
line per event, tracebacks of text lines excepted, without control characters; nothing that looks like a secret leaves
(`pipeline.secrets`), nor does any text that `hidden` names.
Failure: none; of a record that cannot be made a line, the line says which it was.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, TextIO

import orjson
from pydantic import Field

from pipeline.secrets import HIDDEN, is_secret_name, scrubbed
from pipeline.settings import Section

# Notices of a run that goes as it should; each other one is a warning.
ROUTINE = frozenset(
    {
        "started",
        "stopped",
        "recovered",
        "curriculum_stage",
        "swapped",
        "fetch_superseded",
        "stage_superseded",
        "handed_over",
        "breaker_half_open",
        "breaker_closed",
        "rescored",
        "reference_loaded",
        "evaluated",
        "cloned",
        "staged",
        "step",
        "finished",
        "restored",
        "lease_skipped",
        "epoch",
        "commanded",
        "peer_serves",
        "checkpoint_uploaded",
        "traffic_permitted",
        "scaled",
    }
)
_MIN_HIDDEN_CHARS = 4  # shorter texts are words of ordinary lines
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LogSettings(Section):
    """`[logs]`: what processes say on stderr; with `rlweave up`, in their files."""

    format: Literal["text", "json"] = Field(
        default="text", description="text: lines for people. json: one object per line, with run, stage and instance."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="warning",
        description="Least level that is said. warning: what is worth a look. info: the course of the run as well.",
    )


def level_of(notice: str) -> int:
    """The level that a notice is logged at."""
    return logging.INFO if notice in ROUTINE else logging.WARNING


def set_up_logs(
    settings: LogSettings,
    *,
    labels: Mapping[str, str],
    hidden: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Say from here on what `settings` let through, in place of what was set up before.

    Args:
        labels: on each line: run, stage, instance.
        hidden: texts that are never said, for example passwords.
        stream: None: stderr.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    kind = JsonLines if settings.format == "json" else TextLines
    handler.setFormatter(kind(labels, hidden=hidden))
    logging.basicConfig(level=_LEVELS[settings.level], handlers=[handler], force=True)


class TextLines(logging.Formatter):
    """`time LEVEL stage instance message`."""

    def __init__(self, labels: Mapping[str, str], *, hidden: Iterable[str] = ()) -> None:
        place = " ".join(value.replace("%", "%%") for key, value in labels.items() if key != "run")
        super().__init__(f"%(asctime)s %(levelname)s {place} %(message)s")
        self._hidden = _long_enough(hidden)

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows on lines of its own."""
        message = _without_controls(_clean(_message(record), self._hidden))
        plain = logging.makeLogRecord({**record.__dict__, "msg": message, "args": None, "exc_text": None})
        return _without(super().format(plain), self._hidden)

    def formatException(self, ei: _ExcInfo) -> str:
        """A traceback that is as clean as the line before it."""
        lines = _clean(super().formatException(ei), self._hidden).split("\n")
        return "\n".join(map(_without_controls, lines))


class JsonLines(logging.Formatter):
    """One JSON object per line: `time`, `level`, the labels, `event`, and what is told of it.

    A notice has its name as `event`, its words and numbers as `details` and `numbers`; anything else is `event` "log",
    with `logger` and `text`.
    """

    def __init__(self, labels: Mapping[str, str], *, hidden: Iterable[str] = ()) -> None:
        super().__init__()
        self._labels = dict(labels)
        self._hidden = _long_enough(hidden)

    def format(self, record: logging.LogRecord) -> str:
        """One line without a line break in it."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._labels,
            "event": getattr(record, "event", "log"),
        }
        if hasattr(record, "event"):
            details: Mapping[str, str] = getattr(record, "details", {})
            line["details"] = {key: self._shown(key, str(value)) for key, value in details.items()}
            line["numbers"] = dict(getattr(record, "numbers", {}))
        else:
            line |= {"logger": record.name, "text": _clean(_message(record), self._hidden)}
        if record.exc_info:
            line["trace"] = _clean(self.formatException(record.exc_info), self._hidden)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # half a character, or a number of more than 64 bits
            return json.dumps(line, default=str)

    def _shown(self, key: str, value: str) -> str:
        return HIDDEN if is_secret_name(key) else _clean(value, self._hidden)


def _long_enough(hidden: Iterable[str]) -> tuple[str, ...]:
    return tuple(text for text in hidden if len(text) >= _MIN_HIDDEN_CHARS)


def _message(record: logging.LogRecord) -> str:
    """The library would print a line that cannot be made as it is, secrets and all."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError) as error:
        return f"{record.msg} (its {len(record.args or ())} values do not fit: {error})"


def _without_controls(text: str) -> str:
    """On one line, and nothing in it that a terminal would obey: others write texts that are said here."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else _escaped(mark) for mark in text)


def _escaped(mark: str) -> str:
    return mark.encode("unicode_escape").decode()


def _clean(text: str, hidden: tuple[str, ...]) -> str:
    return _without(scrubbed(text), hidden)


def _without(text: str, hidden: tuple[str, ...]) -> str:
    for secret in hidden:
        text = text.replace(secret, HIDDEN)
    return text
