"""The report as one HTML page that needs nothing else: no script, no font, no request.

Data in: summary, figures, the audit's text, the settings. Data out: HTML text.
Invariants: every value is escaped; works in light and dark and at phone width; figures have a title and a description,
tables have headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

import orjson

from ops.report.figures import Figure
from ops.report.plots import phase_kind
from ops.report.summary import RunSummary, shown
from ops.run_file import RunFile


def page(summary: RunSummary, *, figures: Sequence[Figure], run_file: RunFile, audit_text: str | None) -> str:
    """The page."""
    style = files("ops.report").joinpath("page.css").read_text(encoding="utf-8")
    parts = (
        f"<h1>Run {escape(summary.run)}</h1>",
        _verdict(summary),
        _tiles(summary),
        f'<div class="grid">{"".join(_figure(figure) for figure in figures)}</div>',
        "<h2>Samples</h2>",
        '<div class="grid">',
        _table("Where every id went", ("what", "ids"), rows=_accounts(summary)),
        _table("Dropped and failed, by reason", ("reason", "ids"), rows=_reasons(summary)),
        "</div>",
        "<h2>Audit</h2>",
        "<p>No audit was made.</p>" if audit_text is None else f"<pre>{escape(audit_text)}</pre>",
        "<h2>Time by stage and phase</h2>",
        _table("Share of each stage's time", ("stage", "phase", "kind", "share"), rows=_phases(summary)),
        "<h2>Processes</h2>",
        _table("Who took part", ("stage", "pid", "instance"), rows=_processes(summary)),
        "<h2>Environment</h2>",
        _table("Machine and packages", ("what", "value"), rows=_environment(summary)),
        "<h2>Settings</h2>",
        f"<details><summary>All settings of the run</summary><pre>{escape(_settings(run_file))}</pre></details>",
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>rlweave: run {escape(summary.run)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _verdict(summary: RunSummary) -> str:
    if summary.audit_balanced is None:
        return '<p class="muted">Not audited.</p>'
    if summary.audit_balanced:
        return '<p class="ok">The audit balances: every sample id has one outcome.</p>'
    return '<p class="bad">The audit does not balance; see below what is unaccounted for.</p>'


def _tiles(summary: RunSummary) -> str:
    bound = "no bound" if summary.staleness_bound is None else f"bound {summary.staleness_bound}"
    age = "-" if summary.max_trained_age is None else str(summary.max_trained_age)
    tiles = (
        (f"{shown(summary.reward_first)} → {shown(summary.reward_last)}", "reward, first and last 10 versions"),
        (str(summary.steps), "steps"),
        (f"{summary.samples_trained:,}", f"samples trained of {summary.samples_produced:,}"),
        (str(summary.trained_twice), "trained twice"),
        (age, f"largest age trained ({bound})"),
        (shown(summary.tokens_per_s), "tokens per second"),
        (f"{shown(summary.training_s)} s", "training time"),
        (str(summary.num_processes), "processes"),
    )
    inner = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in tiles
    )
    return f'<div class="tiles">{inner}</div>'


def _figure(figure: Figure) -> str:
    return (
        f"<figure><h3>{escape(figure.title)}</h3>{figure.svg}"
        f"<figcaption>{escape(figure.description)}</figcaption></figure>"
    )


def _table(caption: str, headers: Sequence[str], *, rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column heads its rows."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in headers)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _accounts(summary: RunSummary) -> list[tuple[str, str]]:
    rows = {
        "produced": summary.samples_produced,
        "trained": summary.samples_trained,
        "dropped": sum(summary.dropped.values()),
        "failed": sum(summary.failed.values()),
        "open": summary.open,
        "trained twice": summary.trained_twice,
    }
    return [(name, f"{num:,}") for name, num in rows.items()]


def _reasons(summary: RunSummary) -> list[tuple[str, str]]:
    def rows(kind: str, counts: Mapping[str, int]) -> list[tuple[str, str]]:
        return [(f"{kind}: {reason}", f"{num:,}") for reason, num in counts.items()]

    found = rows("dropped", summary.dropped) + rows("failed", summary.failed)
    return found if found else [("none", "0")]


def _phases(summary: RunSummary) -> list[tuple[str, str, str, str]]:
    return [
        (stage, phase, phase_kind(phase), f"{share:.1%}")
        for stage, phases in summary.waits.items()
        for phase, share in sorted(phases.items(), key=lambda item: -item[1])
    ]


def _processes(summary: RunSummary) -> list[tuple[str, str, str]]:
    return [
        (process.stage, "-" if process.pid is None else str(process.pid), process.instance)
        for process in summary.processes
    ]


def _environment(summary: RunSummary) -> list[tuple[str, str]]:
    rows = [
        (name.replace("_", " "), "-" if value is None else str(value)) for name, value in summary.environment.items()
    ]
    return [*rows, ("settings digest", summary.settings_digest)]


def _settings(run_file: RunFile) -> str:
    return orjson.dumps(run_file.model_dump(mode="json"), option=orjson.OPT_INDENT_2).decode()
