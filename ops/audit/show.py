"""An audit report as text of at most 80 columns where names allow, and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ops.audit.fold import AUDITED
from ops.audit.report import SHOWN, AuditReport

_WIDTH = 22


def lines_of(report: AuditReport) -> Iterator[str]:
    """The report, line by line, without colour."""
    name = report.run if report.records_of in ("", report.run) else f"{report.run} (records of {report.records_of})"
    yield f"audit of run {name}: {'sealed' if report.sealed else 'not sealed'}, step {report.step}"
    yield ""
    yield _row("produced", report.produced, note=f"ids of {report.num_groups} groups")
    yield _row("trained", report.trained, note=_age_text(report))
    yield from _by_reason("dropped", report.dropped)
    yield from _by_reason("failed", report.failed)
    yield from (_row(word, count) for word, count in sorted(report.other.items()))
    yield _row("open", report.open, note=f"ids of {report.open_groups} groups" if report.open_groups else "")
    yield from _asides(report)
    yield ""
    yield from _lineages(report)
    yield from _window(report)
    yield ""
    yield from _verdict(report)


def as_json(report: AuditReport) -> dict[str, object]:
    """Plain values, in a stable order."""
    return {
        "run": report.run,
        "records_of": report.records_of,
        "balanced": report.balanced,
        "sealed": report.sealed,
        "step": report.step,
        "groups": report.num_groups,
        "produced": report.produced,
        "trained": report.trained,
        "dropped": dict(sorted(report.dropped.items())),
        "failed": dict(sorted(report.failed.items())),
        "other": dict(sorted(report.other.items())),
        "open": report.open,
        "open_groups": report.open_groups,
        "strays": report.strays,
        "not_scored_yet": report.not_scored_yet,
        "max_trained_age": report.max_trained_age,
        "age_bound": report.age_bound,
        "lineages": [
            {
                "lineage": each.lineage,
                "parent": each.parent,
                "branch_step": each.branch_step,
                "survives_to": each.survives_to,
                "void_outcomes": each.num_void,
            }
            for each in report.lineages
        ],
        "records": dict(report.records),
        "undecodable": dict(report.undecodable),
        "window": {
            topic.name: {str(part): list(bounds) for part, bounds in _bounds(report, topic.name).items()}
            for topic in AUDITED
        },
        "truncated": report.is_truncated,
        "num_findings": report.num_findings,
        "findings_by_kind": {str(kind): count for kind, count in report.findings_by_kind.items()},
        "findings": [{"kind": str(each.kind), "what": each.what, "why": each.why} for each in report.findings],
    }


def _row(what: str, count: int, *, note: str = "") -> str:
    return f"{what:<{_WIDTH}} {count:>10}  {note}".rstrip()


def _by_reason(result: str, reasons: Mapping[str, int]) -> Iterator[str]:
    yield _row(result, sum(reasons.values()))
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        yield _row(f"  {reason}", count)


def _age_text(report: AuditReport) -> str:
    if report.max_trained_age is None:
        return ""
    bound = "no bound is known" if report.age_bound is None else f"the bound is {report.age_bound}"
    return f"greatest age {report.max_trained_age}, {bound}"


def _asides(report: AuditReport) -> Iterator[str]:
    if report.strays:
        yield f"besides: {report.strays} samples with a member number outside their group, dropped"
    if report.not_scored_yet:
        yield f"besides: {report.not_scored_yet} samples await a reward"
    for topic, count in sorted(report.undecodable.items()):
        yield f"besides: {count} undecodable records on {topic}"


def _lineages(report: AuditReport) -> Iterator[str]:
    for each in report.lineages:
        origin = f"from {each.parent}.{each.branch_step}" if each.parent else "from the beginning"
        if each.survives_to is None:
            fate = "abandoned"
        else:
            fate = "current" if each is report.lineages[-1] else f"counts up to step {each.survives_to}"
        void = f", {each.num_void} outcomes void" if each.num_void else ""
        yield f"lineage {each.lineage} {origin}: {fate}{void}"


def _window(report: AuditReport) -> Iterator[str]:
    for topic in AUDITED:
        bounds = _bounds(report, topic.name)
        if not bounds:
            yield f"window  {topic.name:<8} the topic does not exist"
            continue
        low, high = min(low for low, _ in bounds.values()), max(high for _, high in bounds.values())
        read = report.records.get(topic.name)
        count = "" if read is None else f", {read} records"
        yield f"window  {topic.name:<8} {len(bounds)} partitions, offsets {low} to {high}{count}"
    if report.is_truncated:
        yield "window  retention removed records; groups below the first ones left are not judged"


def _bounds(report: AuditReport, topic: str) -> dict[int, tuple[int, int]]:
    return {part: bounds for (name, part), bounds in sorted(report.windows.items()) if name == topic}


def _verdict(report: AuditReport) -> Iterator[str]:
    if report.balanced:
        yield "balanced: every id has one outcome or is open"
        return
    yield f"UNACCOUNTED: {report.num_findings} finding(s)"
    for finding in report.findings[:SHOWN]:
        yield f"  {finding}"
    if report.num_findings > min(SHOWN, len(report.findings)):
        yield f"  ... and {report.num_findings - min(SHOWN, len(report.findings))} more"
