"""Several sources as one: by weights, along a curriculum.

Role: item i is drawn from one of the parts; a curriculum is a list of stages with weights of their own.
Data in: open parts, the stages, a seed; how far the run has come. Data out: `PromptItem`s, each with the name of its
part in the metadata (`part`).
Invariants: given at which index each stage began (`course`), item i is a pure function of settings, seed and i: which
part it is from is drawn by Philox, which is specified bit for bit, and it is the part's next one. The course is written
beside every prompt (metadata `course`), so a restart, or a replay, goes on with the same items whatever the rewards
would say then. A stage never comes back. Memory: a block of draws, and a count per part.
Failure: `SettingsError` for a part that has an end: the mix could not keep its weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pipeline.sources.base import PromptItem, Source
from pipeline.sources.settings import CurriculumStage
from schemas.errors import RecordInvalid, SettingsError

PART_KEY, COURSE_KEY = "part", "course"  # of the metadata
_BLOCK = 4096  # draws made at a time
Counts = npt.NDArray[np.int64]


class MixSource:
    """See `base.Source`, and the module.

    Args:
        parts: by name, without an end.
        stages: at least one; its weights are of parts by name, those left out are 0.
        seed: of the draws.

    Raises:
        SettingsError: a part has an end.
    """

    def __init__(self, parts: Mapping[str, Source], *, stages: Sequence[CurriculumStage], seed: int) -> None:
        for name, part in parts.items():
            if part.num_items is not None:
                raise SettingsError(
                    f"part {name} of the mix ends after {part.num_items} items, so it could not keep its weight",
                    hint="leave `epochs` of the parts out; limit the run with run.max_steps or a phase",
                )
        self._names = list(parts)
        self._parts = list(parts.values())
        self.stages = tuple(stages)
        self._shares = [np.array([stage.weights.get(name, 0.0) for name in parts]) for stage in stages]
        self._draws = lru_cache(maxsize=4)(lambda block: _uniform(seed, block))
        self._course = [0]  # index at which each stage began
        self._at, self._counts = 0, np.zeros(len(parts), dtype=np.int64)  # items of each part before index `at`

    @property
    def name(self) -> str:
        """Names of the parts; not the weights: to change these is not another source."""
        return "mix:" + "+".join(f"{name}={part.name}" for name, part in zip(self._names, self._parts, strict=True))

    @property
    def num_items(self) -> int | None:
        """Endless."""
        return None

    @property
    def items_per_epoch(self) -> int | None:
        """One endless epoch."""
        return None

    @property
    def stage(self) -> int:
        """Number of the present stage, from 0."""
        return len(self._course) - 1

    @property
    def course(self) -> str:
        """Index at which each stage after the first began; empty: none has."""
        return ",".join(map(str, self._course[1:]))

    @property
    def stage_began(self) -> int:
        """Index at which the present stage began."""
        return self._course[-1]

    def restore(self, course: str) -> None:
        """Go on from a course that was written; one of another form, or of more stages than there are, is cut short."""
        begins = [int(text) for text in course.split(",") if text.isdecimal()][: len(self.stages) - 1]
        if begins != sorted(begins):
            begins = []
        self._course = [0, *begins]
        self._at, self._counts = 0, np.zeros(len(self._parts), dtype=np.int64)

    def look(self, index: int, *, step: int, reward: float | None) -> bool:
        """Begin the next stage at `index`, if the present one is over; whether one began.

        Args:
            index: the next item, never lower than in an earlier call.
            step: optimizer step that the item is meant for.
            reward: measured mean over the stage's own groups; None: too few were trained.
        """
        if self.stage + 1 >= len(self.stages):
            return False
        rule = self.stages[self.stage]
        is_over = (rule.until_step is not None and step >= rule.until_step) or (
            rule.until_reward is not None and reward is not None and reward >= rule.until_reward
        )
        if is_over:
            self._course.append(index)
        return is_over

    def item(self, index: int) -> PromptItem:
        """See `Source.item`."""
        part = int(self._parts_of(index, index + 1)[0])
        number = int(self._counts_before(index)[part])
        try:
            found = self._parts[part].item(number)
        except RecordInvalid as error:
            raise RecordInvalid(f"part {self._names[part]}: {error.message}", reason=error.reason) from error
        metadata = {**found.metadata, PART_KEY: self._names[part]}
        if self.course or COURSE_KEY in metadata:  # a row's own would be taken for ours by a successor
            metadata[COURSE_KEY] = self.course
        return replace(found, metadata=metadata, source_index=index, epoch=0)

    def _counts_before(self, index: int) -> Counts:
        """Items of each part below `index`; walks on from where it was last, or from the beginning."""
        if index < self._at:
            self._at, self._counts = 0, np.zeros(len(self._parts), dtype=np.int64)
        if index > self._at:
            drawn = self._parts_of(self._at, index)
            self._counts = self._counts + np.bincount(drawn, minlength=len(self._parts))
            self._at = index
        return self._counts

    def _parts_of(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The part of each item from `begin` to below `end`."""
        bounds = [*self._course[1:], max(end, self._course[-1] + 1)]
        pieces = []
        for stage, (first, last) in enumerate(itertools.pairwise([0, *bounds])):
            low, high = max(begin, first), min(end, last)
            if low < high:
                edges = np.cumsum(self._shares[stage]) / self._shares[stage].sum()
                pieces.append(np.searchsorted(edges, self._uniform_of(low, high), side="right"))
        return np.minimum(np.concatenate(pieces), len(self._parts) - 1).astype(np.int64)

    def _uniform_of(self, begin: int, end: int) -> npt.NDArray[np.float64]:
        blocks = [
            self._draws(block)[max(begin - block * _BLOCK, 0) : end - block * _BLOCK]
            for block in range(begin // _BLOCK, (end - 1) // _BLOCK + 1)
        ]
        return np.concatenate(blocks)


def _uniform(seed: int, block: int) -> npt.NDArray[np.float64]:
    """Draws from [0, 1) of one block."""
    generator = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), 2**63 + block]))
    return generator.random(_BLOCK)
