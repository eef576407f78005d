"""What became of every sample id, along the surviving history.

Data in: prompts, samples and ledger outcomes of one partition at a time. Data out: counts by result and reason, ages.
Invariants: outcomes of void branches do not count; an id is counted once per outcome that survives, and ids in more
than one trained outcome are `trained_twice`. Memory is one partition's group numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.history import LedgerView
from schemas.reasons import Result
from schemas.records import MemberOutcome, Outcome, PromptGroup, Sample

_BYTES_PER_TOKEN = 4


class Accounts:
    """Folds outcomes.

    Args:
        view: of the whole ledger, read before.
    """

    def __init__(self, view: LedgerView) -> None:
        self._view = view
        self._prompts: set[int] = set()
        self._trained: dict[int, int] = {}  # group -> bits of the members trained
        self.num_produced = 0
        self.num_open = 0
        self.num_trained = 0
        self.num_trained_twice = 0
        self.num_tokens = 0
        self.dropped: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.ages: Counter[int] = Counter()
        self.by_step: dict[int, Counter[str]] = {}  # step of the outcome -> ids by "trained" or reason
        self.first_prompt_unix_ms: int | None = None

    def add_prompt(self, prompt: PromptGroup) -> None:
        """Take one prompt; a further copy changes nothing."""
        if prompt.group in self._prompts:
            return
        self._prompts.add(prompt.group)
        self.num_produced += prompt.group_size
        if not self._view.is_closed(prompt.group):
            self.num_open += prompt.group_size
        first = self.first_prompt_unix_ms
        self.first_prompt_unix_ms = prompt.created_unix_ms if first is None else min(first, prompt.created_unix_ms)

    def add_sample(self, sample: Sample) -> None:
        """Take one sample, of any attempt."""
        self.num_tokens += len(sample.completion_tokens) // _BYTES_PER_TOKEN

    def add_outcome(self, outcome: Outcome) -> None:
        """Take one outcome."""
        if not self._view.lineages.survives(outcome.lineage, outcome.step):
            return
        words = self.by_step.setdefault(outcome.step, Counter())
        for member in outcome.members:
            words["trained" if member.result == Result.TRAINED else _word(member)] += 1
            if member.result == Result.TRAINED:
                self.num_trained += 1
                if member.age is not None:
                    self.ages[member.age] += 1
            else:
                counts = self.failed if member.result == Result.FAILED else self.dropped
                counts[_word(member)] += 1
        self._count_twice(outcome)

    def end_partition(self) -> None:
        """Forget the group numbers: those of the next partition are others."""
        self._prompts.clear()
        self._trained.clear()

    @property
    def max_age(self) -> int | None:
        """Largest age that was trained."""
        return max(self.ages, default=None)

    @property
    def share_aged(self) -> float | None:
        """Share of trained samples at least one version old."""
        num = self.ages.total()
        return None if num == 0 else 1 - self.ages[0] / num

    def _count_twice(self, outcome: Outcome) -> None:
        bits = _bits([member.member for member in outcome.members if member.result == Result.TRAINED])
        before = self._trained.get(outcome.group, 0)
        self.num_trained_twice += (before & bits).bit_count()
        if bits:
            self._trained[outcome.group] = before | bits


def _bits(members: Sequence[int]) -> int:
    bits = 0
    for member in members:
        bits |= 1 << max(0, member)
    return bits


def _word(member: MemberOutcome) -> str:
    """The reason without its detail, so that there are few of them."""
    return "unknown" if member.reason is None else member.reason.partition(":")[0]
