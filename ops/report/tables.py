"""The tables of a report, as HTML.

Data in: the summary, what was collected, the settings, the lines of launches. Data out: HTML text.
Invariants: every value is escaped; the first column heads its row; a table without rows says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

import orjson
from pydantic import BaseModel

from ops.evaluations import EvaluationCurve
from ops.report.activity import Process
from ops.report.collect import RunFacts
from ops.report.plots import phase_kind
from ops.report.summary import RunSummary, shown
from ops.run_file import RunFile
from ops.run_record import Json

Row = Sequence[str]


def table(caption: str, headers: Row, *, rows: Iterable[Row]) -> str:
    """A table."""
    found = list(rows)
    if not found:
        return f'<p class="muted">{escape(caption)}: none.</p>'
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in headers)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in found
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def accounts(summary: RunSummary) -> str:
    """Where every id went."""
    rows = {
        "produced": summary.samples_produced,
        "trained": summary.samples_trained,
        "dropped": sum(summary.dropped.values()),
        "failed": sum(summary.failed.values()),
        "open": summary.open,
        "trained twice": summary.trained_twice,
    }
    return table("Where every id went", ("what", "ids"), rows=[(name, f"{num:,}") for name, num in rows.items()])


def reasons(summary: RunSummary) -> str:
    """Drops and failures by reason."""
    kinds = {"dropped": summary.dropped, "failed": summary.failed}
    rows = [(f"{kind}: {reason}", f"{num:,}") for kind, counts in kinds.items() for reason, num in counts.items()]
    return table("Dropped and failed, by reason", ("reason", "ids"), rows=rows)


def evaluations(curves: Sequence[EvaluationCurve]) -> str:
    """First, best and last value of each set."""
    return table(
        "Evaluation sets",
        ("set", "versions", "first", "best", "at", "last"),
        rows=[_evaluation(each) for each in curves],
    )


def verdicts(facts: RunFacts) -> str:
    """What `rlweave top` said while the run went on."""
    rows = [(each.last.kind, f"{each.share:.0%}", each.last.text, each.last.advice) for each in facts.verdicts]
    return table("Who starved, and why", ("verdict", "of the time", "what it said last", "what to do"), rows=rows)


def phases(summary: RunSummary) -> str:
    """Share of each phase."""
    rows = [
        (stage, phase, phase_kind(phase), f"{share:.1%}")
        for stage, shares in summary.waits.items()
        for phase, share in sorted(shares.items(), key=lambda item: -item[1])
    ]
    return table("Share of each stage's time", ("stage", "phase", "kind", "share"), rows=rows)


def lineages(facts: RunFacts) -> str:
    """Each begin of a learner, and what of it survives."""
    limits = facts.view.lineages.limits
    rows = []
    for lineage, (parent, branch_step) in sorted(facts.view.lineages.origins.items()):
        limit = limits.get(lineage)
        kept = (
            "nothing" if limit is None else "all" if lineage == facts.view.lineages.current else f"up to step {limit}"
        )
        rows.append((str(lineage), f"{parent}.{branch_step}" if parent else "the beginning", kept))
    return table("Lineages: each start of a learner", ("lineage", "from", "survives"), rows=rows)


def decisions(facts: RunFacts) -> str:
    """What was decided about processes and credit."""
    kept, num = facts.journal.decisions, facts.journal.num_decisions
    some = "" if num == len(kept) else f" (the first and last {len(kept)} of {num})"
    rows = [(_time(each.unix_ms), each.who, each.what, each.why) for each in kept]
    return table(f"Replicas and credit, and why{some}", ("time (UTC)", "by", "what", "why"), rows=rows)


def notices(facts: RunFacts) -> str:
    """What was said, by kind."""
    told = sorted(facts.journal.told.items())
    rows = [(stage, name, f"{each.num:,}", _time(each.last_unix_ms), each.last) for (stage, name), each in told]
    return table("Notices", ("stage", "notice", "times", "last (UTC)", "what it said then"), rows=rows)


def processes(summary: RunSummary, facts: RunFacts) -> str:
    """Who took part, and who joined afterwards."""
    headers = ("stage", "pid", "instance")
    found = table("Processes", headers, rows=map(_process, summary.processes))
    if facts.afterwards:
        found += table("Joined after the end, no part of its time", headers, rows=map(_process, facts.afterwards))
    return found


def _process(process: Process) -> Row:
    return process.stage, "-" if process.pid is None else str(process.pid), process.instance


def launches(records: Sequence[Mapping[str, Json]]) -> str:
    """Each `rlweave up` of the run."""
    return table("Launches", ("began (UTC)", "host", "stages", "code", "packages"), rows=_launches(records))


def environment(summary: RunSummary) -> str:
    """Where this page was made."""
    rows = [(name.replace("_", " "), "-" if each is None else str(each)) for name, each in summary.environment.items()]
    rows.append(("settings digest", summary.settings_digest))
    return table("Where this report was made", ("what", "value"), rows=rows)


def settings(run_file: RunFile) -> str:
    """What differs from the defaults, and all of it."""
    rows = [(name, _text(value), _text(default)) for name, value, default in changed(run_file)]
    whole = orjson.dumps(run_file.model_dump(mode="json"), option=orjson.OPT_INDENT_2).decode()
    return (
        table("Settings that are not the default", ("setting", "value", "default"), rows=rows)
        + f"<details><summary>All settings, as JSON</summary><pre>{escape(whole)}</pre></details>"
    )


def changed(section: BaseModel, *, within: str = "") -> Iterator[tuple[str, Json, Json]]:
    """Settings with another value than their default, by dotted name; a required one has no default."""
    values = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), f"{within}{name}"
        if isinstance(value, BaseModel):
            yield from changed(value, within=f"{path}.")
        elif isinstance(value, dict) and any(isinstance(each, BaseModel) for each in value.values()):
            for key, each in value.items():
                yield from changed(each, within=f"{path}.{key}.")
        else:
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            if field.is_required() or default != value:
                yield path, values[name], None if default is None else _plain(default)


def _evaluation(curve: EvaluationCurve) -> Row:
    steps, means = curve.values
    best = max(range(len(means)), key=means.__getitem__, default=None)
    return (
        curve.name,
        str(len(curve.points)),
        shown(curve.first),
        "-" if best is None else shown(means[best]),
        "-" if best is None else f"step {steps[best]}",
        shown(curve.last),
    )


def _launches(records: Sequence[Mapping[str, Json]]) -> Iterator[Row]:
    for each in records:
        versions, began_ms = each.get("versions"), each.get("unix_ms")
        if each.get("event") != "began" or not isinstance(versions, dict):
            continue
        code = versions.get("code_git")
        packages = [f"{name} {one}" for name, one in versions.items() if one and not name.endswith("_git")]
        stages = each.get("stages")
        yield (
            _time(began_ms) if isinstance(began_ms, int) else "-",
            str(each.get("host", "-")),
            ", ".join(map(str, stages)) if isinstance(stages, list) else "-",
            str(code)[:12] if code else "-",
            ", ".join(packages),
        )


def _time(unix_ms: int) -> str:
    """`-` for a time of no calendar, which others may have written."""
    try:
        found = datetime.fromtimestamp(unix_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return "-"
    return found.strftime("%Y-%m-%d %H:%M:%S")


def _text(value: Json) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _plain(value: object) -> Json:
    """A default as JSON has it."""
    found: Json = orjson.loads(orjson.dumps(value, default=str))
    return found
