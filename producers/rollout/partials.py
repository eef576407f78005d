"""Groups that engines gave up: what is remembered of them, and which of it may be gone on with.

Role: the reading side of `partials`, and the making of its records.
Data in: `Partial` records, the ledger; data out: the newest usable one of a group, and the news since the last look.
Invariants: bounded by bytes, the oldest go first; nothing of a closed group is kept. A partial is usable when each of
its versions is on the surviving history and its age, of the oldest run as the learner counts it, is within the bound
(promises 3 and 7). A hint: what is not here is made afresh.
Failure: none.
"""

from __future__ import annotations

from collections import OrderedDict

from pipeline.history import LedgerView
from pipeline.settings import RunSettings
from producers.rollout.groups import Finished, Parted
from producers.rollout.stitching import oldest
from producers.rollout.tickets import Ticket
from schemas.records import Partial, Version, birth_version
from topics.log import Envelope

PACKED, RETIRED, RETURNED, WRITTEN = "packed", "retired", "returned", "written"


class Partials:
    """See the module.

    Args:
        max_bytes: encoded bytes of all that is remembered.
    """

    def __init__(self, ledger: LedgerView, *, run: RunSettings, max_bytes: int) -> None:
        self._ledger = ledger
        self._run = run
        self._max_bytes = max_bytes
        self._held: OrderedDict[int, tuple[Partial, int]] = OrderedDict()  # by group, with its bytes; oldest first
        self._num_bytes = 0
        self._news: dict[int, None] = {}  # groups, in order; not records, which would not be within the bound

    @property
    def num_bytes(self) -> int:
        """Encoded bytes of what is remembered."""
        return self._num_bytes

    def add(self, envelope: Envelope) -> None:
        """Take a record in: the newest of a group counts."""
        record = envelope.record
        if not isinstance(record, Partial) or self._ledger.is_closed(record.group):
            return
        self.forget(record.group)
        self._held[record.group] = (record, envelope.num_bytes)
        self._num_bytes += envelope.num_bytes
        self._news[record.group] = None
        while self._num_bytes > self._max_bytes and self._held:
            self.forget(next(iter(self._held)))

    def forget(self, group: int) -> None:
        """It is closed, or of no use."""
        _, num_bytes = self._held.pop(group, (None, 0))
        self._num_bytes -= num_bytes
        self._news.pop(group, None)

    def news(self) -> list[Partial]:
        """What is remembered of what came in since the last call, in order."""
        found, self._news = self._news, {}
        return [self._held[group][0] for group in found]

    def usable(self, group: int) -> Partial | None:
        """What is known of a group, if it still counts; see the module."""
        partial, _ = self._held.get(group, (None, 0))
        return partial if partial is not None and self.counts(partial) else None

    def counts(self, partial: Partial) -> bool:
        """Whether its samples, were they whole now, could be trained."""
        versions = {run.version for member in partial.members for run in member.version_runs}
        return all(self._in_bound(version) for version in versions | ({partial.born} - {None}))

    def _in_bound(self, version: Version | None) -> bool:
        horizon = self._ledger.horizon
        if version is None or horizon is None or not self._ledger.is_made(version):
            return False
        return self._run.on_stale == "train" or horizon.step - version.step <= self._run.max_staleness


def partial_of(parted: Parted[Ticket], *, producer: str, holder: str, taker: str, reason: str, unix_ms: int) -> Partial:
    """The record of a group that was given up."""
    prompt = parted.attempt.prompt
    return Partial(
        run=prompt.run,
        group=prompt.group,
        attempt=parted.attempt.attempt,
        producer=producer,
        holder=holder,
        taker=taker,
        born=oldest(parted.members),
        prompt=prompt,
        prompt_tokens=parted.prompt_tokens.tokens.astype("<i4").tobytes(),
        logprobs_kind=parted.logprobs_kind,
        members=parted.members,
        reason=reason,
        given_unix_ms=unix_ms,
    )


def written_of(finished: Finished[Ticket], *, producer: str, unix_ms: int) -> Partial:
    """Says that all samples of an attempt are on the topic: who else holds its prompt has nothing to do."""
    prompt = finished.attempt.prompt
    runs = tuple(run for sample in finished.samples for run in sample.version_runs)
    return Partial(
        run=prompt.run,
        group=prompt.group,
        attempt=finished.attempt.attempt,
        producer=producer,
        written=True,
        born=birth_version(runs) if runs else None,
        reason=WRITTEN,
        given_unix_ms=unix_ms,
    )
