"""Where a mix of sources is on its curriculum.

Role: tells the mix how far the run has come, before each prompt is drawn.
Data in: outcomes of the ledger; the next group and index. Data out: stages that began.
Invariants: the step of a prompt is that of its number (`groups_per_step` groups are a step), not the learner's, so a
stage by step begins at the same prompt whatever the speed of the run. The reward is the mean over the last
`reward_groups` groups of the stage itself that were trained or had no signal: of numbers from its first group on, and
of the surviving history, as far as it is known when the next prompt is drawn.
Failure: none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pipeline.history import Lineages
from pipeline.reward_rule import rewards_seen
from pipeline.settings import RunSettings
from pipeline.sources import MixSource, Source
from schemas.records import Outcome


class Curriculum:
    """See the module; does nothing for a source that is no mix.

    Args:
        lineages: tell which outcomes count.
        reward_groups: groups that the mean reward is over.
    """

    def __init__(self, source: Source, *, run: RunSettings, lineages: Lineages, reward_groups: int) -> None:
        self._mix = source if isinstance(source, MixSource) else None
        self._run = run
        self._lineages = lineages
        self._rewards: deque[tuple[int, int, float]] = deque(maxlen=reward_groups)  # lineage, step, mean of a group
        self._first_group = 0  # of the present stage; a little below after a restart where items gave no prompt

    def restore(self, course: str, *, group: int, index: int, is_new: bool) -> None:
        """Go on where a predecessor was.

        Args:
            group, index: the next ones.
            is_new: another source's groups came last.
        """
        if self._mix is not None:
            self._mix.restore(course)
            self._first_group = group if is_new else max(0, group - (index - self._mix.stage_began))

    def take(self, outcomes: Iterable[Outcome]) -> None:
        """Learn the rewards of groups that were trained, or dropped without a signal."""
        if self._mix is None:
            return
        for outcome in outcomes:
            rewards = rewards_seen(outcome.members)
            counts = outcome.group >= self._first_group and self._lineages.survives(outcome.lineage, outcome.step)
            if rewards and counts:
                self._rewards.append((outcome.lineage, outcome.step, sum(rewards) / len(rewards)))

    def look(self, *, group: int, index: int) -> int | None:
        """Before item `index` is drawn for `group`: number of the stage that begins with it; None: none does."""
        mix = self._mix
        if mix is None:
            return None
        known = [reward for lineage, step, reward in self._rewards if self._lineages.survives(lineage, step)]
        reward = sum(known) / len(known) if len(known) == self._rewards.maxlen else None
        if not mix.look(index, step=group // self._run.groups_per_step, reward=reward):
            return None
        self._rewards.clear()
        self._first_group = group
        return mix.stage
