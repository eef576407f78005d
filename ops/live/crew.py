"""Numbers over several processes of a picture.

Data in: `ProcessPicture`s. Data out: sums, largest values, means; None where nobody has said anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

from ops.live.picture import ProcessPicture

_REWARD = re.compile(r"reward_weight\{reward=([^,={}]+),group=([^,={}]+)\}\Z")


def at_work(processes: Iterable[ProcessPicture], stage: str) -> list[ProcessPicture]:
    """Those of a stage that are at work."""
    return [each for each in processes if each.stage == stage and each.standing == "at work"]


def gauge(processes: Iterable[ProcessPicture], name: str) -> float | None:
    """Sum of a gauge or counter; None: nobody has said it."""
    values = [each.gauges[name] for each in processes if name in each.gauges]
    return sum(values) if values else None


def largest(processes: Iterable[ProcessPicture], name: str) -> float | None:
    """The largest of a gauge; None: nobody has said it."""
    return max((each.gauges[name] for each in processes if name in each.gauges), default=None)


def rate(processes: Iterable[ProcessPicture], counter: str) -> float | None:
    """Rate of a counter, with these labels or over all of them; None: nobody has counted it twice."""
    values = [
        value for each in processes for name, value in each.rates.items() if counter in (name, name.partition("{")[0])
    ]
    return sum(values) if values else None


def share(processes: Collection[ProcessPicture], phases: Collection[str]) -> float:
    """Mean share of the window that was spent in any of the phases; 0 of nobody."""
    if not processes:
        return 0.0
    return sum(each.shares.get(phase, 0.0) for each in processes for phase in phases) / len(processes)


def rewards_of(processes: Iterable[ProcessPicture]) -> dict[str, str]:
    """Reward -> its consumer group, without the run's prefix, of the rewards that are at work."""
    found: dict[str, str] = {}
    for process in at_work(processes, "reward"):
        for name in process.gauges:
            if (match := _REWARD.match(name)) is not None:
                found[match[1]] = ".".join(match[2].split(".")[2:])
    return dict(sorted(found.items()))


def told(processes: Iterable[ProcessPicture]) -> str:
    """Names, each once: `reward digits, twice`; empty of nobody."""
    counts = Counter(each.name for each in processes)
    times = {1: "", 2: ", twice"}
    return "; ".join(f"{name}{times.get(num, f', {num} times')}" for name, num in sorted(counts.items()))
