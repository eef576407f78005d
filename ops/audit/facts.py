"""The columns of a fold as arrays, cut to the window that was read, with what follows from the ledger alone.

Role: computed once, read by every check.
Invariants: where retention removed records of a partition, groups below the lowest one still there, on any of the four
data topics, are outside the window and judged by no check; the report counts them. Topics are kept until their run is
deleted, so this is the rare case.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ops.audit.columns import Ints, Keys, Mask
from ops.audit.fold import Fold, Windows
from topics.catalog import LEDGER, PROMPTS, REFERENCE_SCORES, REWARDS, SAMPLES

_NOTHING = np.iinfo(np.int64).max  # the floor of a partition of which nothing is retained


class Facts:
    """See the module.

    Args:
        fold: after the last record.
        windows: offsets that were read.
    """

    def __init__(self, fold: Fold, windows: Windows) -> None:
        self.fold = fold
        self.windows = windows
        self.floor = self._floors()
        self.prompt_groups, first = np.unique(fold.prompts.ints("group"), return_index=True)
        self.prompt_sizes = fold.prompts.ints("size")[first]
        self.outcome_groups = fold.outcomes.ints("group")
        self.outcome_lineages = fold.outcomes.ints("lineage")
        self.outcome_steps = fold.outcomes.ints("step")
        self.outcome_offsets = fold.outcomes.ints("offset")
        self.member_outcomes = fold.members.ints("outcome")
        self.member_numbers = fold.members.ints("member")
        self.member_keys = fold.members.keys("key")
        self.member_results = fold.members.ints("result")

    @cached_property
    def surviving(self) -> Mask:
        """Per outcome: in the surviving history."""
        alive = self.survives(self.outcome_lineages, self.outcome_steps)
        return alive & self.in_window(self.outcome_groups)

    @cached_property
    def member_groups(self) -> Ints:
        """Group of each member row."""
        return self.outcome_groups[self.member_outcomes]

    @cached_property
    def member_surviving(self) -> Mask:
        """Per member row: of a surviving outcome."""
        return self.surviving[self.member_outcomes]

    @cached_property
    def member_trained(self) -> Mask:
        """Per member row: trained in the surviving history."""
        trained = self.fold.words.number("trained")
        is_trained: Mask = self.member_surviving & (self.member_results == trained)
        return is_trained

    @cached_property
    def sample_keys(self) -> Keys:
        """Identities on the samples topic, sorted."""
        return np.unique(self.fold.samples.keys("key"))

    @property
    def is_truncated(self) -> bool:
        """Whether retention removed records of a data topic."""
        return any(topic in _DATA and earliest > 0 for (topic, _), (earliest, _) in self.windows.items())

    @property
    def is_sealed(self) -> bool:
        """Whether the current lineage is sealed, on at least one partition."""
        return self.fold.ledger_view.sealed is not None

    def survives(self, lineages: Ints, steps: Ints) -> Mask:
        """Whether versions, or the outcomes of steps, are on the surviving path."""
        alive = np.zeros(len(lineages), dtype=np.bool_)
        for lineage, limit in self.fold.ledger_view.lineages.limits.items():
            alive |= (lineages == lineage) & (steps <= limit)
        return alive

    def in_window(self, groups: Ints) -> Mask:
        """Whether groups are judged."""
        allowed: Mask = groups >= self.floor[groups % self.fold.data_partitions]
        return allowed

    def sizes_of(self, groups: Ints) -> Ints:
        """Group sizes; 0 where there is no prompt."""
        if self.prompt_groups.size == 0:
            return np.zeros(len(groups), dtype=np.int64)
        index = np.minimum(np.searchsorted(self.prompt_groups, groups), len(self.prompt_groups) - 1)
        return np.where(self.prompt_groups[index] == groups, self.prompt_sizes[index], 0)

    def name(self, group: int, member: int | None = None) -> str:
        """`run/group[/member]`, with the run the records carry."""
        return f"{self.fold.run}/{group}" if member is None else f"{self.fold.run}/{group}/{member}"

    def outcome_place(self, outcome: int) -> str:
        """Where an outcome stands, and what it is part of."""
        partition = int(self.outcome_groups[outcome]) % self.fold.data_partitions
        version = f"{self.outcome_lineages[outcome]}.{self.outcome_steps[outcome]}"
        return f"ledger[{partition}] offset {self.outcome_offsets[outcome]} (step {version})"

    def _floors(self) -> Ints:
        fold = self.fold
        floors = np.zeros(fold.data_partitions, dtype=np.int64)
        tables = {PROMPTS.name: fold.prompts, SAMPLES.name: fold.samples, REWARDS.name: fold.rewards}
        tables |= {LEDGER.name: fold.outcomes, REFERENCE_SCORES.name: fold.scores}
        for (topic, partition), (earliest, _) in self.windows.items():
            if topic in tables and earliest > 0:
                groups = tables[topic].ints("group")
                own = groups[groups % fold.data_partitions == partition]
                lowest = int(own.min()) if own.size else _NOTHING
                floors[partition] = max(int(floors[partition]), lowest)
        return floors


_DATA = frozenset({LEDGER.name, PROMPTS.name, SAMPLES.name, REWARDS.name, REFERENCE_SCORES.name})
