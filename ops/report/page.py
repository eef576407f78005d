"""The report as one HTML page that needs nothing else: no script, no font, no image file, no request.

Data in: summary, what was collected, figures, the audit's text, the settings, the lines of launches. Data out: HTML.
Invariants: every value is escaped; works in light and dark, at phone width, on paper and by keyboard; figures have a
title and a description, tables have headers. A content policy in the page forbids what it must not need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from ops.report import tables
from ops.report.collect import RunFacts
from ops.report.figures import Figure
from ops.report.summary import RunSummary, shown
from ops.run_file import RunFile
from ops.run_record import Json

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a page is made of."""

    summary: RunSummary
    facts: RunFacts
    figures: Sequence[Figure]
    run_file: RunFile
    audit_text: str | None  # None: no audit was made
    launches: Sequence[Mapping[str, Json]] = ()


def page(contents: Contents) -> str:
    """The page."""
    style = files("ops.report").joinpath("page.css").read_text(encoding="utf-8")
    summary, sections = contents.summary, _sections(contents)
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in sections)
    body = "".join(
        f'<section id="{_anchor(name)}" aria-labelledby="{_anchor(name)}-head">'
        f'<h2 id="{_anchor(name)}-head">{escape(name)}</h2>{inner}</section>'
        for name, inner in sections.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>rlweave: run {escape(summary.run)}</title><style>{style}</style></head><body>"
        f"<header><h1>Run {escape(summary.run)}</h1>{_verdict(summary)}{_tiles(summary)}"
        f'<nav aria-label="Sections">{links}</nav></header><main>{body}</main></body></html>\n'
    )


def _sections(contents: Contents) -> dict[str, str]:
    """The page's parts, by heading."""
    summary, facts, audit_text = contents.summary, contents.facts, contents.audit_text
    audit = "<p>No audit was made.</p>" if audit_text is None else f"<pre>{escape(audit_text)}</pre>"
    return {
        "Learning": _figures(contents, "Learning") + tables.evaluations(facts.evaluations),
        "Data": _figures(contents, "Data") + _beside(tables.accounts(summary), tables.reasons(summary)),
        "Time": tables.verdicts(facts) + _figures(contents, "Time") + _folded("All phases", tables.phases(summary)),
        "Weights": _figures(contents, "Weights") + tables.lineages(facts),
        "Audit": audit,
        "What happened": tables.decisions(facts) + tables.notices(facts),
        "Settings": tables.settings(contents.run_file),
        "Environment": tables.launches(contents.launches)
        + tables.processes(summary, facts)
        + tables.environment(summary),
    }


def _verdict(summary: RunSummary) -> str:
    if summary.audit_balanced is None:
        return '<p class="muted">Not audited.</p>'
    if summary.audit_balanced:
        return '<p class="ok">The audit balances: every sample id has one outcome, or is open.</p>'
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


def _figures(contents: Contents, section: str) -> str:
    return f'<div class="grid">{"".join(_figure(each) for each in contents.figures if each.section == section)}</div>'


def _figure(figure: Figure) -> str:
    return (
        f"<figure><h3>{escape(figure.title)}</h3>{figure.svg}"
        f"<figcaption>{escape(figure.description)}</figcaption></figure>"
    )


def _beside(*parts: str) -> str:
    return f'<div class="grid">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
