"""Which topics the run's positions belong to, as the broker names them.

Role: a position means something in the topic with the id it was read from, and in no other of that name.
Data in: the broker's metadata. Data out: ids by topic name.
Invariants: a topic that is not known for a moment, beside a broker that has just come back, is not called gone.
Failure: `LogError` when the broker does not answer.
"""

from __future__ import annotations

from collections.abc import Set

from pipeline.stage import StageContext
from topics.clock import Deadline

_LIMIT_S = 10.0
_RETRY_S = 0.1


def known_topic_ids(context: StageContext, wanted: Set[str]) -> dict[str, str]:
    """Ids of the run's topics; asked for again for a while (10 s) when one of `wanted` is absent.

    Raises:
        LogError: the broker does not answer.
    """
    deadline = Deadline.after(_LIMIT_S, clock=context.clock)
    while True:
        ids = context.log.admin().topic_ids()
        if wanted <= ids.keys() or deadline.expired:
            return ids
        deadline.clock.wait(_RETRY_S)
