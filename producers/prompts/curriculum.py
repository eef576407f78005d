"""Where a mix of sources is on its curriculum.

Role: tells the mix how far the run has come, before each prompt is drawn.
Data in: outcomes of the ledger; the next group and index. Data out: stages that began.
Invariants: the step of a prompt is that of its number (`groups_per_step` groups are a step), not the learner's, so a
stage by step begins at the same prompt whatever the speed of the run. The reward is the mean over the last
`reward_groups` groups of the stage itself that were trained or had no signal: of numbers from its first group on.
Failure: none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pipeline.reward_rule import rewards_seen
from pipeline.settings import RunSettings
from pipeline.sources import MixSource, Source
from schemas.records import Outcome


class Curriculum:
    """See the module; does nothing for a source that is no mix.

    Args:
        reward_groups: groups that the mean reward is over.
    """

    def __init__(self, source: Source, *, run: RunSettings, reward_groups: int) -> None:
        self._mix = source if isinstance(source, MixSource) else None
        self._run = run
        self._rewards: deque[float] = deque(maxlen=reward_groups)
        self._first_group = 0  # of the present stage, or a little above: an item that gave no prompt took no number

    def restore(self, course: str) -> None:
        """Go on where a predecessor was."""
        if self._mix is not None:
            self._mix.restore(course)
            self._first_group = self._mix.stage_began

    def take(self, outcomes: Iterable[Outcome]) -> None:
        """Learn the rewards of groups that were trained, or dropped without a signal."""
        if self._mix is None:
            return
        for outcome in outcomes:
            rewards = rewards_seen(outcome.members)
            if rewards and outcome.group >= self._first_group:
                self._rewards.append(sum(rewards) / len(rewards))

    def look(self, *, group: int, index: int) -> int | None:
        """Before item `index` is drawn for `group`: number of the stage that begins with it; None: none does."""
        mix = self._mix
        if mix is None:
            return None
        is_full = len(self._rewards) == self._rewards.maxlen
        reward = sum(self._rewards) / len(self._rewards) if is_full else None
        if not mix.look(index, step=group // self._run.groups_per_step, reward=reward):
            return None
        self._rewards.clear()
        self._first_group = index
        return mix.stage
