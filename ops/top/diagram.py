"""The pipeline as it flows, in three lines: rates over the arrows, stages, and what waits before each.

Data in: a picture and its measures. Data out: three lines of the width; a line for each further reward.
Invariants: the reward shown in the pipeline is the one that most groups wait for.
Failure: none; unknown is `-`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from ops.live.crew import at_work
from ops.live.measures import Measures
from ops.live.picture import FlowPicture, RunPicture
from ops.top.words import number, padded, plain

_BACK = "--> rollout"
_NARROW = 7  # cells of a stage, at least


@dataclass(frozen=True, kw_only=True)
class _Stage:
    name: str
    below: str
    style: str = "bold"


@dataclass(frozen=True, kw_only=True)
class _Arrow:
    above: str
    below: str


def pipeline(picture: RunPicture, measures: Measures, *, width: int, starved: str) -> list[Text]:
    """The lines; `starved` is the stage that the verdict names as the slow one."""
    reward = measures.slowest_reward
    name = "" if reward is None else reward.name
    stages = [
        _stage("PROMPTS", _credit(measures), is_slow=starved == "prompts"),
        _stage(f"ROLLOUT x{measures.num_rollouts}", _in_engines(measures), is_slow=starved == "rollout"),
        _stage("REWARD" if reward else "(reward)", _reward(measures), is_slow=starved == "reward"),
        _stage("LEARNER", f"step {picture.totals.step}", is_slow=starved == "learner"),
        _stage("WEIGHTS", _newest(picture), is_slow=starved == "weights"),
    ]
    arrows = [
        _arrow(_flow(picture, "prompts", target="rollout"), what="grp"),
        _arrow(_flow(picture, "rollout", target=f"reward {name}"), what="smp"),
        _arrow(_flow(picture, f"reward {name}", target="learner"), what="ready", queued=measures.ready_groups),
        _arrow(_flow(picture, "learner", target="rollout"), what="behind"),
    ]
    lines = _drawn(stages, arrows, width=width)
    return lines + [_further(picture, each.name, width=width) for each in measures.rewards if each.name != name]


def _stage(name: str, below: str, *, is_slow: bool) -> _Stage:
    return _Stage(name=name, below=below, style="bold reverse" if is_slow else "bold")


def _arrow(flow: FlowPicture | None, *, what: str, queued: float | None = None) -> _Arrow:
    held = queued if queued is not None or flow is None else flow.queued
    return _Arrow(
        above=f"{number(None if flow is None else flow.per_s)}/s",
        below="" if held is None else f"{number(held)} {what}",
    )


def _drawn(stages: list[_Stage], arrows: list[_Arrow], *, width: int) -> list[Text]:
    """Columns as wide as what is in them; what room is left makes the arrows longer."""
    wide = [max(len(stage.name), len(stage.below)) + 1 for stage in stages]
    long = [max(6, len(arrow.above), len(arrow.below)) + 1 for arrow in arrows]
    spare = width - 1 - sum(wide) - sum(long)
    longer = min(10, max(0, spare) // len(arrows))
    while spare < 0 and max(wide) > _NARROW:
        wide[wide.index(max(wide))] -= 1
        spare += 1
    top, middle, bottom = Text(" "), Text(" "), Text(" ")
    for index, stage in enumerate(stages):
        top.append(" " * wide[index])
        middle.append(padded(stage.name, min(len(stage.name), wide[index] - 1)), style=stage.style)
        middle.append(" " * (wide[index] - min(len(stage.name), wide[index] - 1)))
        bottom.append(padded(stage.below, wide[index] - 1) + " ")
        if index < len(arrows):
            cells = long[index] + longer
            top.append(padded(arrows[index].above, cells))
            middle.append("-" * (cells - 2) + "> ")
            bottom.append(padded(arrows[index].below, cells), style="bold")
    if spare >= len(arrows) * longer + len(_BACK):
        middle.append(_BACK)
    return [top, middle, bottom]


def _further(picture: RunPicture, name: str, *, width: int) -> Text:
    arriving, said = (
        _flow(picture, "rollout", target=f"reward {name}"),
        _flow(picture, f"reward {name}", target="learner"),
    )
    queued = None if arriving is None else arriving.queued
    per_s = None if said is None else said.per_s
    return Text(padded(f" also reward {plain(name)}: {number(queued)} wait, {number(per_s)}/s", width))


def _flow(picture: RunPicture, source: str, *, target: str) -> FlowPicture | None:
    return next((each for each in picture.flows if (each.source, each.target) == (source, target)), None)


def _credit(measures: Measures) -> str:
    if measures.open_groups is None:
        return ""
    return f"{measures.open_groups:.0f}/{number(measures.credit)} open"


def _in_engines(measures: Measures) -> str:
    return "" if measures.tokens_per_s is None else f"{number(measures.tokens_per_s)} t/s"


def _reward(measures: Measures) -> str:
    reward = measures.slowest_reward
    return "" if reward is None else f"{plain(reward.name)} x{reward.num_processes}"


def _newest(picture: RunPicture) -> str:
    """The newest published version: it is what engines are behind."""
    published = [each.version for each in picture.versions if each.published_ms is not None]
    serving = [each.version for each in at_work(picture.processes, "rollout") if each.version is not None]
    found = published if published else serving
    return "" if not found else f"{max(found)}"
