"""What became of the sample ids of a whole run, by the ledger: results, reasons, ages, and the last ones lost.

Data in: ledger records, in any order between partitions. Data out: counts of the history that survives.
Invariants: outcomes of void branches do not count, and count again when a later lineage starts from them (promise 3);
16 bytes per outcome and distinct result are kept, and the last `MOST_LOST` ids of each reason.
Failure: none; a reason of more names than a run has is counted as `other`.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque

from ops.live.picture import LatelyPicture, LostPicture
from pipeline.history import Lineages
from schemas.reasons import Result
from schemas.records import LineageStarted, MemberOutcome, Outcome, Record

MOST_LOST = 50
MOST_REASONS = 64
LATELY_S = 60
_Key = tuple[str, str]  # result; reason, or the age of a trained id


class Ids:
    """Call `add` with every ledger record."""

    def __init__(self) -> None:
        self.lineages = Lineages()
        self._keys: dict[_Key, int] = {}
        self._lineage_of, self._steps, self._key_of, self._nums = array("i"), array("i"), array("h"), array("i")
        self._counts: Counter[int] = Counter()
        self._lost: dict[str, deque[LostPicture]] = {}
        self._seconds: dict[int, Counter[int]] = {}  # of the last minute: second -> key -> ids

    def add(self, record: Record | None) -> None:
        """Take one ledger record; others are passed over."""
        if isinstance(record, LineageStarted):
            if self.lineages.add(record):
                self._count_again()
        elif isinstance(record, Outcome):
            found = Counter(self._key(member) for member in record.members)
            for key, num in found.items():
                self._lineage_of.append(record.lineage)
                self._steps.append(record.step)
                self._key_of.append(key)
                self._nums.append(num)
            if self.lineages.survives(record.lineage, record.step):
                self._counts.update(found)
                self._note_lately(found, second=record.closed_unix_ms // 1000)
            self._note_lost(record)

    def num(self, result: str) -> int:
        """Ids with this result."""
        return sum(num for (word, _), num in self._named() if word == result)

    def reasons(self) -> dict[str, int]:
        """Reason without its detail -> ids dropped or failed for it, most first."""
        found: Counter[str] = Counter()
        for (result, reason), num in self._named():
            if result != Result.TRAINED:
                found[reason] += num
        return dict(found.most_common())

    def ages(self) -> dict[str, int]:
        """Age in versions -> trained ids."""
        found = {age: num for (result, age), num in self._named() if result == Result.TRAINED and age.isdecimal()}
        return {age: found[age] for age in sorted(found, key=int)}

    def lost(self) -> tuple[LostPicture, ...]:
        """The last ids of each reason, oldest first; of the history that survives."""
        found = [each for kept in self._lost.values() for each in kept]
        alive = [each for each in found if self.lineages.survives(each.lineage, each.step)]
        return tuple(sorted(alive, key=lambda each: (each.at_ms, each.group, each.member)))

    def lately(self) -> LatelyPicture:
        """Of the last minute that the ledger tells of."""
        sums: Counter[int] = Counter()
        for found in self._seconds.values():
            sums.update(found)
        lost: Counter[str] = Counter()
        for (result, reason), key in self._keys.items():
            if result != Result.TRAINED and sums[key]:
                lost[reason] += sums[key]
        trained = sum(sums[key] for (result, _), key in self._keys.items() if result == Result.TRAINED)
        return LatelyPicture(trained=trained, lost=dict(lost.most_common()))

    def _note_lately(self, found: Counter[int], *, second: int) -> None:
        newest = max(self._seconds, default=second)
        if second <= newest - LATELY_S:
            return
        self._seconds.setdefault(second, Counter()).update(found)
        for old in [each for each in self._seconds if each <= second - LATELY_S]:
            del self._seconds[old]

    def _named(self) -> list[tuple[_Key, int]]:
        return [(key, num) for key, at in self._keys.items() if (num := self._counts[at])]

    def _key(self, member: MemberOutcome) -> int:
        if member.result == Result.TRAINED:
            second = "" if member.age is None else str(member.age)
        else:
            second = word_of(member.reason)
        key = (member.result, second)
        if key not in self._keys and len(self._keys) >= MOST_REASONS:
            key = (member.result, "other")
        return self._keys.setdefault(key, len(self._keys))

    def _note_lost(self, outcome: Outcome) -> None:
        for member in outcome.members:
            if member.result == Result.TRAINED:
                continue
            word = word_of(member.reason)
            if word not in self._lost and len(self._lost) >= MOST_REASONS:
                word = "other"
            self._lost.setdefault(word, deque(maxlen=MOST_LOST)).append(
                LostPicture(
                    group=outcome.group,
                    member=member.member,
                    attempt=member.attempt,
                    result=member.result,
                    reason=member.reason if member.reason is not None else "",
                    version=member.version,
                    lineage=outcome.lineage,
                    step=outcome.step,
                    at_ms=outcome.closed_unix_ms,
                )
            )

    def _count_again(self) -> None:
        self._counts = Counter()
        for lineage, step, key, num in zip(self._lineage_of, self._steps, self._key_of, self._nums, strict=True):
            if self.lineages.survives(lineage, step):
                self._counts[key] += num


def word_of(reason: str | None) -> str:
    """A reason without its detail."""
    return "" if reason is None else reason.partition(":")[0]
