"""The page of metrics: every metric that a process exposes and carries in its heartbeats.

Data in: `pipeline.metrics.METRICS`. Data out: Markdown.
"""

from __future__ import annotations

from ops.reference.marks import code, page, table
from pipeline.metrics import METRICS, MetricSpec

_INTRO = """
Every process counts these. `run.metrics_port` opens them to Prometheus under the name `rlweave_NAME` (counters with
`_total`, histograms with `_bucket`, `_sum` and `_count`), with the labels `run`, `stage` and `instance` besides those
named here; heartbeats carry them to `rlweave status`. A name ends in its unit. What to do about a value:
[runbook](../runbook.md#metrics)."""
_OTHER = "All"
_HEADERS = ("metric", "kind", "labels", "meaning")


def metrics_page() -> str:
    """The page."""
    groups: dict[str, list[MetricSpec]] = {}
    for spec in METRICS:
        groups.setdefault(_group(spec), []).append(spec)
    return page("Metrics", _INTRO, *(_part(name, specs) for name, specs in groups.items()))


def _group(spec: MetricSpec) -> str:
    """The group a metric belongs to, where its declaration says so."""
    found = getattr(spec, "group", "")
    return str(found) if found else _OTHER


def _part(name: str, specs: list[MetricSpec]) -> str:
    rows = [
        (code(spec.name), spec.kind, ", ".join(code(label) for label in spec.labels), spec.help)
        for spec in sorted(specs, key=lambda spec: spec.name)
    ]
    return f"## {name[:1].upper()}{name[1:].replace('_', ' ')}\n\n{table(_HEADERS, rows)}"
