"""The page of notices: what a stage says on the topic `events` besides its phases and heartbeats.

Data in: the calls that say a notice, and the runbook's tables for what it means. Data out: Markdown.
Invariants: a notice that the runbook does not explain stands here without a meaning, and a test of the runbook fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ops
from ops.reference.marks import code, page, table
from ops.reference.source import Source, calls, dotted, keywords, sources, tables

RUNBOOK = Path(ops.__file__).resolve().parents[1] / "docs" / "runbook.md"
_INTRO = """
`rlweave replay --run NAME --topic events` shows them; the terminal of `rlweave up` prints those that a person should
see at once. *Words* are the keys of the event's details, *numbers* those of its gauges, where the code names them in
the call. What to do: [runbook](../runbook.md#notices)."""
_STAGES = (  # by the beginning of the path, the longest first
    ("consumers/learner/", "learner"),
    ("consumers/rewards/", "reward"),
    ("consumers/reference/", "reference"),
    ("consumers/scheduler/", "scheduler"),
    ("consumers/evaluator/", "evaluator"),
    ("producers/prompts/", "prompts"),
    ("producers/rollout/", "rollout"),
    ("producers/", "prompts, rollout"),
    ("ops/supervisor/", "supervisor"),
    ("pipeline/uploads/", "peer"),
    ("pipeline/traffic/", "peer"),
    ("pipeline/weights/", "peer"),
)
_SAYERS = (".notice", "._notice", "._failed")


@dataclass
class _Notice:
    stages: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)


def notices_page() -> str:
    """The page."""
    found = notices()
    means = _meanings()
    rows = [
        (
            code(name),
            ", ".join(sorted(notice.stages)),
            ", ".join(map(code, sorted(notice.words))),
            ", ".join(map(code, sorted(notice.numbers))),
            means.get(name, ""),
        )
        for name, notice in sorted(found.items())
    ]
    return page("Notices", _INTRO, table(("notice", "said by", "words", "numbers", "means"), rows))


def notices() -> dict[str, _Notice]:
    """Every notice that the code can say."""
    found: dict[str, _Notice] = {}
    for source in sources():
        stage = next((name for before, name in _STAGES if source.path.startswith(before)), "any stage")
        for call in calls(source):
            for name in _names(call, source):
                notice = found.setdefault(name, _Notice())
                notice.stages.add(stage)
                notice.words |= set(_words(call, source))
                notice.numbers |= {each for each in keywords(call) if each not in ("details", "name", "error", "why")}
    return found


def _names(call: ast.Call, source: Source) -> Iterator[str]:
    called = dotted(call.func)
    if not call.args or not called.endswith(_SAYERS):
        return
    said = call.args[0]
    if isinstance(said, ast.Constant) and isinstance(said.value, str):
        yield said.value
    elif isinstance(said, ast.Subscript):
        yield from _table_of(source, dotted(said.value))


def _table_of(source: Source, name: str) -> list[str]:
    """The texts in a dictionary of the module."""
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and dotted(node.targets[0]) == name:
            return [
                each.value
                for each in node.value.values
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
    return []


def _words(call: ast.Call, source: Source) -> Iterator[str]:
    details = keywords(call).get("details", call.args[1] if len(call.args) > 1 else None)
    if isinstance(details, ast.Name):
        details = tables(source).get(id(details))
    if isinstance(details, ast.Dict):
        yield from (str(key.value) for key in details.keys if isinstance(key, ast.Constant))


def _meanings() -> Mapping[str, str]:
    """The second column of the runbook's tables of notices."""
    if not RUNBOOK.is_file():
        return {}
    text = RUNBOOK.read_text(encoding="utf-8")
    part = text.split("## Notices")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for row in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", part, re.MULTILINE):
        for name in re.findall(r"`([a-z_]+)`", row[0]):
            found.setdefault(name, _without_links(row[1]))
    return found


def _without_links(text: str) -> str:
    """Links of the runbook lead elsewhere from here."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
