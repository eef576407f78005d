"""What the assembler tells about itself: counts and notices per poll batch, and what it waits for.

Role: keeps metrics and events out of the join, which counts in plain dicts.
Data in and out: plain values.
Invariants: a count or notice is handed over once.
Failure: none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from consumers.learner.alarms import DropAlarm
from consumers.learner.groups import REFERENCE, OpenGroup
from consumers.learner.outcomes import OutcomeDraft
from schemas.reasons import Reason

DROP_NOTICE_SHARE = 0.1
_REASONS = frozenset(reason.value for reason in Reason)  # a failure text of somebody else's makes no label
LABELS = {"groups_closed": "result", "members_dropped": "reason"}  # of counted metrics; "topic" for others


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something worth an event: see `pipeline.events.Events.notice`."""

    name: str
    details: Mapping[str, str]
    gauges: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What incomplete groups lack."""

    num_open: int  # groups without a winner
    num_unsampled: int  # of these, groups whose best attempt lacks samples, or that have none
    num_unscored: Mapping[str, int]  # reward name, or REFERENCE -> samples read that lack it; names with 0 are absent


class Tally:
    """Counts and notices since they were last taken."""

    def __init__(self, *, drop_notice_share: float = DROP_NOTICE_SHARE) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._notices: list[Notice] = []
        self._alarm = DropAlarm(share=drop_notice_share)

    def count(self, name: str, label: str) -> None:
        """Add one to a metric with one label: a topic, a result or a reason (see `LABELS`)."""
        self._counts[name, label] += 1

    def closed(self, draft: OutcomeDraft) -> None:
        """Count a group with an outcome, and those of its members that were not trained."""
        self.count("groups_closed", str(draft.result))
        for member in draft.members:
            word = "" if member.reason is None else str(member.reason.partition(":")[0])
            if word:
                self.count("members_dropped", word if word in _REASONS else "other")
            share = self._alarm.add(word)
            if share is not None:
                self.notice("many_dropped", {"reason": word, "last": str(member.reason)}, share=share)

    def notice(self, name: str, details: Mapping[str, str], **gauges: float) -> None:
        """Keep a notice."""
        self._notices.append(Notice(name=name, details=details, gauges=gauges))

    def take_counts(self) -> dict[tuple[str, str], int]:
        """(metric, label) -> amount since the last call."""
        counts, self._counts = self._counts, Counter()
        return dict(counts)

    def take_notices(self) -> list[Notice]:
        """Notices since the last call."""
        notices, self._notices = self._notices, []
        return notices


def waiting_of(groups: list[OpenGroup]) -> Waiting:
    """What these incomplete groups lack."""
    unsampled, unscored = 0, Counter[str]()
    for group in groups:
        best = group.best()
        slots = [] if best is None else [slot for slot in best.slots.values() if slot.sample is not None]
        unsampled += len(slots) < group.size
        for slot in slots:
            if not slot.is_final:
                names = [*group.rule.weights, *((REFERENCE,) if group.needs_reference else ())]
                unscored.update(name for name in names if not slot.has_answer(name))
    return Waiting(num_open=len(groups), num_unsampled=unsampled, num_unscored=dict(unscored))
