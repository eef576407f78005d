"""Numbers whose prompts are gone from the log: who they are, so that they do not hold credit for ever.

Role: prompts are numbered without gaps, and a partition holds its numbers in order. So a number below one that was read
there, or below one that was known when the whole partition was read, has lost its prompt, unless it is open or closed.
Data in: partitions on which that may be so: after a loss to retention, and at a restart, since a checkpoint's positions
lie beyond such numbers. Data out: the numbers, ascending.
Invariants: no more numbers than the credit allows to be open, whatever number a foreign prompt has.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from schemas.records import PromptGroup, SamplingParams

ASSUMED = "lost"  # source of a prompt that stands for one that is gone


@dataclass(kw_only=True)
class Gap:
    """A partition on which prompts may be missing.

    Args:
        run: run name.
        partition: its number.
        stride: P; the partition's numbers are `partition`, `partition + P`, ...
        group_size: of the run.
        most: groups that credit allows to be open.
    """

    run: str
    partition: int
    stride: int
    group_size: int
    most: int
    since_s: float = 0.0  # on the deadline's clock
    bound: int = 0  # numbers below it were admitted before `since_s`

    def missing(self, *, first: int, below: int, is_known: Callable[[int], bool]) -> list[int]:
        """Numbers of the partition from `first` up to `below` that nobody knows."""
        begin = first + (self.partition - first) % self.stride
        return list(islice((n for n in range(begin, below, self.stride) if not is_known(n)), self.most))

    def prompt(self, number: int) -> PromptGroup:
        """What stands for a prompt that is gone: enough to join what was made of it, or to close it."""
        return PromptGroup(
            run=self.run,
            group=number,
            group_size=self.group_size,
            sampling=SamplingParams(),
            seed=0,
            source=ASSUMED,
            source_index=0,
            epoch=0,
            created_unix_ms=0,
        )
