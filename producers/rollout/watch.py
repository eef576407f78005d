"""Prompts that do not come back: named, since every offset behind them waits for them.

Role: the watching side of the work queue; decides nothing. What ends a hung engine is its own limit.
Data in and out: the queue in; one notice per prompt out.
Invariants: time is monotonic; a prompt is named once by the process that holds it.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Collection

from pipeline.stage import StageContext
from schemas.records import PromptGroup
from topics.log import Envelope
from topics.queue import WorkQueue

CHECK_S = 1.0


class StuckPrompts:
    """Call `look` once a turn.

    Args:
        after_s: time from taking a prompt after which it is named.
    """

    def __init__(self, context: StageContext, *, after_s: float) -> None:
        self._context = context
        self._after_s = after_s
        self._named: set[tuple[int, int]] = set()  # (partition, offset) of those that are still out
        self._checked_s = context.clock.monotonic()

    def look(self, queue: WorkQueue, *, parked: Collection[int] = ()) -> None:
        """Name those that have been out for too long.

        Args:
            parked: groups that wait for an environment, which has a time limit of its own.
        """
        now_s = self._context.clock.monotonic()
        if now_s < self._checked_s + CHECK_S:
            return
        self._checked_s = now_s
        late = (each for each in queue.unfinished_over(self._after_s) if _group_of(each) not in parked)
        stuck = {(each.partition, each.offset): each for each in late}
        for place in sorted(stuck.keys() - self._named):
            self._tell(stuck[place])
        self._named = set(stuck)

    def _tell(self, prompt: Envelope) -> None:
        self._context.metrics.count("waits_over_limit", what="prompt")
        group = _group_of(prompt)
        details = {"topic": prompt.topic, "partition": str(prompt.partition)}
        self._context.events.notice(
            "prompt_stuck", details=details, offset=prompt.offset, group=group, waited_s=self._after_s
        )


def _group_of(prompt: Envelope) -> int:
    return prompt.record.group if isinstance(prompt.record, PromptGroup) else -1
