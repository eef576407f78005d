"""Runs beside each other: what was set, which versions ran, what came out.

Data in: a run's folder (`settings.json`, `launches.jsonl`, `summary.json`) and, for figures that no summary has, its
topics; or the folder of a repetition that `rlweave retrain` made. Data out: a `RunCard` per run, and their differences.
Invariants: a setting or version is listed only where the runs differ; figures are listed always; `None` is unknown.
Failure: `RunNotFound` for a name that is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from consumers.learner.recorded.changes import name_of
from consumers.learner.recorded.report import REPORT_FILE, STEPS_FILE
from ops.replay.sources import RunNotFound
from ops.report.summary import RunSummary
from ops.report.write import SUMMARY_FILE
from ops.run_record import RECORD_FILE, Json, read_records
from ops.runs import SETTINGS_FILE

FIGURES = (
    "steps",
    "reward_first",
    "reward_last",
    "samples_trained",
    "samples_produced",
    "trained_twice",
    "max_trained_age",
    "share_trained_at_age_1_or_more",
    "weights_published",
    "lineages",
    "tokens_generated",
    "tokens_per_s",
    "training_s",
    "wall_s",
)
_PLACES = ("run.name", "run.dir", "kafka.", "redis.")  # where a run is, not what it is
Values = Mapping[str, Json]
FromTopics = Callable[[str], RunSummary | None]  # by run name; None: no topics


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """One run."""

    name: str
    settings: Values  # by dotted name
    versions: Values
    seeds: Values
    offsets: Values  # of each topic when the last launch began or ended: records, and markers of transactions
    figures: Values
    notes: tuple[str, ...] = ()
    is_repetition: bool = False  # of another run: it has the settings of training only


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs: values in the order of `names`."""

    names: tuple[str, ...]
    settings: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)  # those that differ
    versions: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)  # those that differ
    seeds: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    offsets: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    figures: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_card(name: str, *, runs_dir: Path, from_topics: FromTopics) -> RunCard:
    """What there is to say of a run.

    Args:
        name: of a run, or the folder of a repetition.
        from_topics: asked when the folder has no summary of the last launch.

    Raises:
        RunNotFound: it is neither.
    """
    if (Path(name) / REPORT_FILE).is_file():
        return _card_of_repetition(Path(name))
    folder = runs_dir / name
    settings = _read(folder / SETTINGS_FILE)
    if settings is None:
        raise RunNotFound(
            f"{folder} has no saved settings, and {name} is no folder of a repetition",
            hint="`rlweave runs list` shows the runs there are; --dir says where their folders are",
        )
    records = read_records(folder)
    began = next((each for each in reversed(records) if each.get("event") == "began"), {})
    last = records[-1] if records else {}
    figures, notes = _figures(folder, name=name, from_topics=from_topics)
    return RunCard(
        name=name,
        settings=dict(flat(settings)),
        versions=_mapping(began.get("versions")),
        seeds=_mapping(began.get("seeds")),
        offsets=_num_offsets(_mapping(last.get("offsets"))),
        figures=figures,
        notes=notes if began else (*notes, f"{name} was launched by a release that kept no {RECORD_FILE}"),
    )


def compare(cards: Sequence[RunCard]) -> Comparison:
    """Differences in settings and versions, and all figures, side by side."""
    return Comparison(
        names=tuple(card.name for card in cards),
        settings={
            name: values
            for name, values in _beside([card.settings for card in cards]).items()
            if _differ(values)
            and not name.startswith(_PLACES)
            and all(name in card.settings for card in cards if card.is_repetition)
        },
        versions={
            name: values
            for name, values in _beside([card.versions for card in cards]).items()
            if _differ([value for value, card in zip(values, cards, strict=True) if not card.is_repetition])
        },
        seeds=_beside([card.seeds for card in cards]),
        offsets=_beside([card.offsets for card in cards]),
        figures=_beside([card.figures for card in cards]),
        notes=tuple(note for card in cards for note in card.notes),
    )


def to_json(found: Comparison) -> bytes:
    """The comparison as JSON, each value under its run's name."""
    sections = {
        section: {name: dict(zip(found.names, values, strict=True)) for name, values in getattr(found, section).items()}
        for section in ("settings", "versions", "seeds", "offsets", "figures")
    }
    return orjson.dumps({"runs": found.names, **sections, "notes": found.notes}, option=orjson.OPT_INDENT_2)


def text(found: Comparison) -> str:
    """The comparison for people."""
    titles = {
        "settings": "settings that differ",
        "versions": "versions that differ",
        "seeds": "seeds",
        "offsets": "offsets on the topics (records, and markers of transactions)",
        "figures": "figures",
    }
    lines: list[str] = []
    for section, title in titles.items():
        rows: Mapping[str, tuple[Json, ...]] = getattr(found, section)
        lines += _table(title, found.names, rows=rows)
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def flat(value: Json, *, place: str = "") -> Iterator[tuple[str, Json]]:
    """Every leaf with its dotted name; a list is one."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from flat(each, place=f"{place}.{name}" if place else name)
    else:
        yield place, value


def _table(title: str, names: Sequence[str], *, rows: Mapping[str, tuple[Json, ...]]) -> list[str]:
    cells = [(title, *names), *((name, *map(_shown, values)) for name, values in rows.items())]
    if not rows:
        cells.append(("none", *("" for _ in names)))
    widths = [max(len(row[column]) for row in cells) for column in range(len(names) + 1)]
    lines = []
    for row in cells:
        first, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join((first, *rest)).rstrip())
    return [*lines, ""]


def _shown(value: Json) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _beside(sides: Sequence[Values]) -> dict[str, tuple[Json, ...]]:
    names = dict.fromkeys(name for side in sides for name in side)
    return {name: tuple(side.get(name) for side in sides) for name in names}


def _differ(values: Sequence[Json]) -> bool:
    return any(value != values[0] for value in values[1:])


def _figures(folder: Path, *, name: str, from_topics: FromTopics) -> tuple[Values, tuple[str, ...]]:
    """From the summary, unless a launch came after it; then from the topics."""
    summary = folder / SUMMARY_FILE
    values = _read(summary)
    if values is None or _mtime_s(summary) < _mtime_s(folder / RECORD_FILE):
        found = from_topics(name)
        values = values if found is None else asdict(found)
        if values is None:
            return {}, (f"{name} has neither {SUMMARY_FILE} nor topics on this broker: its figures are not known",)
        if found is None:
            return _picked(values), (f"{name}: its {SUMMARY_FILE} is older than its last launch",)
    return _picked(values), ()


def _picked(values: Values) -> dict[str, Json]:
    found = {figure: values[figure] for figure in FIGURES if figure in values}
    for kind in ("evaluation_first", "evaluation_last", "dropped", "failed"):
        found |= {f"{kind}: {name}": each for name, each in sorted(_mapping(values.get(kind)).items())}
    return found


def _card_of_repetition(folder: Path) -> RunCard:
    report = _mapping(_read(folder / REPORT_FILE))
    lines = [orjson.loads(line) for line in (folder / STEPS_FILE).read_bytes().splitlines()]
    by_lineage = _mapping(report.get("settings"))
    last: Json = list(by_lineage.values())[-1] if by_lineage else {}
    figures = {name: lines[-1].get(name) for name in ("loss", "grad_norm", "mismatch_mean")} if lines else {}
    return RunCard(
        name=folder.name,
        settings={name_of(path): value for path, value in flat(last) if path != "cloning_source"},
        is_repetition=True,
        versions={},
        seeds={},
        offsets={},
        figures={"steps": report.get("last_step"), "trained_like_the_run": report.get("same"), **figures},
    )


def _num_offsets(offsets: Values) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for topic, partitions in offsets.items():
        ends = [each for each in _mapping(partitions).values() if isinstance(each, list)]
        found[topic] = sum(end - first for first, end in ends if isinstance(first, int) and isinstance(end, int))
    return found


def _mapping(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> dict[str, Json] | None:
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def _mtime_s(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0
