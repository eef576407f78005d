"""What a benchmark gives: flat numbers for machines, a table for people, and how noisy the machine was.

Invariants: keys carry their unit; every number is the median of repeats, and their count is stated.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

Number = float | int | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows for people."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """The table in columns; the first one is left-aligned."""
        lines = [self.headers, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.headers))]
        texts = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        rule = "-" * max(len(text) for text in texts)
        return "\n".join((self.title, texts[0], rule, *texts[1:]))


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """One benchmark."""

    name: str
    table: Table
    values: Mapping[str, Number]
    notes: tuple[str, ...] = ()
    noise: Mapping[str, Number] = field(default_factory=dict)

    def text(self) -> str:
        """For people."""
        noise = "machine: " + ", ".join(f"{name} {value}" for name, value in self.noise.items())
        return "\n".join((self.table.text(), "", *self.notes, noise))

    def to_json(self) -> bytes:
        """Flat keys."""
        flat = {"bench": self.name, **self.values, **self.noise}
        return orjson.dumps(flat, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def save(self, path: Path) -> None:
        """Write the JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.to_json())


class Noise:
    """The load of the machine around a benchmark: other work on it makes every number worse."""

    def __init__(self) -> None:
        self._before = os.getloadavg()[0]

    def values(self, *, num_repeats: int) -> dict[str, Number]:
        """Processors, load averages over one minute before and after, and repeats."""
        return {
            "num_cpus": os.cpu_count(),
            "load_average_before": round(self._before, 2),
            "load_average_after": round(os.getloadavg()[0], 2),
            "num_repeats": num_repeats,
        }


def per_second(works: Sequence[Callable[[], object]], *, num_repeats: int, repeat_s: float) -> list[float]:
    """Calls per processor second of each work: medians over repeats of `repeat_s` seconds, in turns.

    Processor time is what one thread had, so other work on the machine makes the numbers noisy but not small.
    """
    calls = [_num_calls(work, repeat_s) for work in works]
    rounds = [[num / _time(work, num) for work, num in zip(works, calls, strict=True)] for _ in range(num_repeats)]
    return [statistics.median(each) for each in zip(*rounds, strict=True)]


def rate(value: float) -> str:
    """A rate for people."""
    return f"{value:,.0f}"


def ratio(values: Sequence[float]) -> str:
    """A quotient of two for people, as `4.2x`."""
    over, under = values
    return f"{over / under:,.1f}x"


def _num_calls(work: Callable[[], object], repeat_s: float) -> int:
    """Calls that take about `repeat_s`."""
    num_calls = 1
    while (spent_s := _time(work, num_calls)) < repeat_s / 4:
        num_calls *= 2
    return max(1, round(num_calls * repeat_s / spent_s))


def _time(work: Callable[[], object], num_calls: int) -> float:
    began_s = time.thread_time()
    for _ in range(num_calls):
        work()
    return max(1e-9, time.thread_time() - began_s)
