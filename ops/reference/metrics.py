"""The page of metrics: every metric that a process exposes and carries in its heartbeats.

Data in: `pipeline.metrics.METRICS` and their groups. Data out: Markdown.
"""

from __future__ import annotations

from ops.reference.marks import code, page, table
from pipeline.metrics import GROUPS, METRICS, MetricSpec

_INTRO = """
Every process counts these. `run.metrics_port` opens them to Prometheus under the name `rlweave_NAME` (counters with
`_total`, histograms with `_bucket`, `_sum` and `_count`), with the labels `run`, `stage` and `instance` besides those
named here; heartbeats carry them to `rlweave status`. A name ends in its unit. What to do about a value:
[runbook](../runbook.md#metrics); how to watch them: [monitor a run](../guides/monitor-a-run.md)."""
_HEADERS = ("metric", "kind", "unit", "labels", "meaning")


def metrics_page() -> str:
    """The page."""
    parts = (_part(title, [spec for spec in METRICS if spec.group == group]) for group, title in _groups())
    return page("Metrics", _INTRO, *parts)


def _groups() -> list[tuple[str, str]]:
    """Groups with their headings, as they are shown."""
    return [(group, f"{group.replace('_', ' ').capitalize()}\n\n{text}") for group, text in GROUPS.items()]


def _part(title: str, specs: list[MetricSpec]) -> str:
    rows = [
        (code(spec.name), spec.kind, spec.unit, ", ".join(code(label) for label in spec.labels), spec.help)
        for spec in sorted(specs, key=lambda spec: spec.name)
    ]
    return f"## {title}\n\n{table(_HEADERS, rows)}"
