"""Writes `summary.json` and `report.html` of a run.

Data in: the topics, the settings, what the audit says. Data out: two files in the run's folder.
Invariants: each file is written whole or not at all; the summary is written first and needs no matplotlib.
Failure: `SettingsError` when matplotlib is missing; the summary is there by then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import orjson

from ops.report.collect import collect, summarise
from ops.report.figures import figures
from ops.report.page import Contents, page
from ops.report.summary import RunSummary
from ops.run_file import RunFile
from ops.run_record import read_records
from topics.log import Log

SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"


class Verdict(Protocol):
    """What the report shows of an audit."""

    @property
    def balanced(self) -> bool:
        """True when every id has its one outcome."""
        ...

    def text(self) -> str:
        """For people."""
        ...


def write_report(log: Log, *, run_file: RunFile, audit: Verdict | None, wall_s: float | None) -> RunSummary:
    """Read the topics and write both files.

    Args:
        audit: None: not audited.
        wall_s: duration of the run in seconds as its launcher measured it; None: taken from an earlier summary.

    Raises:
        SettingsError: matplotlib is missing.
        DeadlineExceeded, LogError: a topic cannot be read.
    """
    folder = run_file.run.folder
    facts = collect(log, run_file=run_file)
    summary = summarise(
        facts,
        run_file=run_file,
        wall_s=wall_s if wall_s is not None else _earlier_wall_s(folder / SUMMARY_FILE),
        balanced=None if audit is None else audit.balanced,
    )
    _write(folder / SUMMARY_FILE, summary.to_json())
    html = page(
        Contents(
            summary=summary,
            facts=facts,
            figures=figures(facts),
            run_file=run_file,
            audit_text=None if audit is None else audit.text(),
            launches=read_records(folder),
        )
    )
    _write(folder / REPORT_FILE, html.encode())
    return summary


def _earlier_wall_s(path: Path) -> float | None:
    """The duration an earlier summary holds: topics do not say how long the launcher took."""
    try:
        values = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    wall_s = values.get("wall_s") if isinstance(values, dict) else None
    return float(wall_s) if isinstance(wall_s, int | float) else None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_bytes(content)
    aside.replace(path)
