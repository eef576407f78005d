"""The learner's pen in the ledger: outcomes, lineages and the seal, each in a transaction.

Role: the only writer of the ledger topic, and of the manifests that belong to its steps.
Data in: outcome drafts, a manifest. Data out: records on `ledger` and `weights`.
Invariants: one step's outcomes and manifest become readable together or not at all (promise 5); sequence numbers are
dense per ledger partition over all record types, also across restarts; `view` contains exactly what was committed.
Failure: whatever a transaction raises goes through. After a commit with an unknown result nothing here may be used
again: the process restarts from its checkpoint and reads what the ledger really says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from consumers.learner.outcomes import OutcomeDraft
from pipeline.history import LedgerRecord, LedgerView
from pipeline.reward_rule import rewards_seen
from schemas.reasons import Result
from schemas.records import LedgerSealed, LineageStarted, Manifest, Outcome, Version
from schemas.validation import check_possible
from topics.catalog import LEDGER, WEIGHTS, partition_of
from topics.clock import Clock, Deadline
from topics.log import Log, ReaderHooks, ReaderSettings, Writer

COMMIT_LIMIT_S = 30.0  # longest time for one transaction
_POLL_S = 0.5
_POLL_RECORDS = 2000

MakeRecord = Callable[[int], LedgerRecord]  # from a sequence number


class Ledger:
    """Reads the ledger once, then appends to it.

    Args:
        writer: transactional, with the learner's transactional id. Owned: `close` closes it.
        run: run name.
        data_partitions: P.
        clock: for deadlines, and the times that inform people.
    """

    def __init__(self, writer: Writer, *, run: str, data_partitions: int, clock: Clock) -> None:
        self._writer = writer
        self._run = run
        self._data_partitions = data_partitions
        self._clock = clock
        self.view = LedgerView(data_partitions)
        self._lineage = 0  # ours; 0: not begun
        self._rewards: list[float] = []  # of what was written here and is not told yet

    def recover(self, log: Log, *, hooks: ReaderHooks, deadline: Deadline) -> LedgerView:
        """Read what earlier learners wrote.

        1. Fence the predecessor: its open transaction is aborted, and nothing it tries later is written.
        2. Only then ask for the end of the ledger: what lies before it is all that is left of the past.
        3. Read to that end.

        Raises:
            DeadlineExceeded: the end was not reached in time.
            LogError: the broker refused.
        """
        self._writer.start(deadline=deadline)  # 1
        reader = log.reader(ReaderSettings(topics=(LEDGER,)), hooks=hooks)
        try:
            ends = reader.end_positions()  # 2
            while any(reader.positions().get(place, 0) < end for place, end in ends.items()):  # 3
                deadline.check(f"the ledger to be read to its end {ends}")
                for envelope in reader.poll(_POLL_RECORDS, deadline=Deadline.after(_POLL_S, clock=self._clock)):
                    record = envelope.record
                    if isinstance(record, Outcome | LineageStarted | LedgerSealed):
                        self.view.add(envelope.partition, record)
        finally:
            reader.close()
        return self.view

    def begin_lineage(
        self, *, parent: int, branch_step: int, holder: str, facts: Mapping[str, str] = MappingProxyType({})
    ) -> int:
        """Begin a history that goes on from (`parent`, `branch_step`); 0, 0 without one. Returns its number.

        Outcomes of the parent beyond `branch_step` are void from here on, in `view` as well. `facts`: see
        `consumers.learner.facts`.

        Raises:
            CodecError: the ledger leaves no number for it, which a forged record can bring about; nothing was written.
            LogError: the transaction failed; the process must restart.
        """
        lineage = max(self.view.lineages.current, parent) + 1  # also above a parent the ledger no longer knows
        now_ms = self._clock.unix_ms()

        def started(seq: int) -> LineageStarted:
            return LineageStarted(
                run=self._run,
                lineage=lineage,
                parent=parent,
                branch_step=branch_step,
                seq=seq,
                holder=holder,
                started_unix_ms=now_ms,
                facts=dict(facts),
            )

        self._commit([(partition, started) for partition in range(self._data_partitions)])
        self._lineage = lineage
        return lineage

    def write_step(
        self,
        step: int,
        drafts: Sequence[OutcomeDraft],
        *,
        manifest: Manifest | None = None,
        retired: Sequence[Version] = (),
    ) -> None:
        """Write a step: its outcomes, its manifest and the tombstones of versions that are no longer kept.

        1. Begin a transaction. 2. Write the outcomes, numbered. 3. Write tombstones and the manifest.
        4. Commit: all of it is readable from here on. 5. Learn the outcomes and their numbers in `view`.

        Raises:
            Fenced: a newer learner took over; nothing was written.
            DeliveryError: the result is unknown; the process must restart from its checkpoint.
            ValueError: no lineage was begun.
        """
        if self._lineage == 0:
            raise ValueError("an outcome needs a lineage: call begin_lineage first")
        digest = None if manifest is None else manifest.state_digest
        self._commit(
            [
                (partition_of(draft.group, self._data_partitions), self._outcome(draft, step=step, digest=digest))
                for draft in drafts
            ],
            manifest=manifest,
            retired=retired,
        )
        self._rewards += [reward for draft in drafts for reward in rewards_seen(draft.members)]

    def take_rewards(self) -> list[float]:
        """Rewards of the groups written since the last call; see `pipeline.reward_rule.rewards_seen`."""
        rewards, self._rewards = self._rewards, []
        return rewards

    def write_outcomes(self, step: int, drafts: Sequence[OutcomeDraft]) -> None:
        """Write outcomes of groups that were dropped between steps; `step` is the step in progress (current + 1).

        Raises:
            LogError, ValueError: as `write_step`.
        """
        if drafts:
            self.write_step(step, drafts)

    def seal(self, step: int, *, num_groups: int, reason: str) -> None:
        """Say that the run ended on purpose at `step`, on every partition in one transaction.

        Raises:
            LogError: the transaction failed.
        """
        now_ms = self._clock.unix_ms()

        def sealed(seq: int) -> LedgerSealed:
            return LedgerSealed(
                run=self._run,
                lineage=self._lineage,
                step=step,
                seq=seq,
                num_groups=num_groups,
                reason=reason,
                sealed_unix_ms=now_ms,
            )

        self._commit([(partition, sealed) for partition in range(self._data_partitions)])

    def close(self, *, deadline: Deadline) -> None:
        """Release the writer.

        Raises:
            DeliveryError: something was still queued and not acknowledged.
        """
        self._writer.close(deadline=deadline)

    def _outcome(self, draft: OutcomeDraft, *, step: int, digest: str | None) -> MakeRecord:
        now_ms = self._clock.unix_ms()
        return lambda seq: Outcome(
            run=self._run,
            group=draft.group,
            lineage=self._lineage,
            step=step,
            seq=seq,
            result=draft.result,
            reason=draft.reason,
            attempt=draft.attempt,
            members=draft.members,
            closed_unix_ms=now_ms,
            state_digest=digest if draft.result == Result.TRAINED else None,
        )

    def _commit(
        self,
        makes: Sequence[tuple[int, MakeRecord]],
        *,
        manifest: Manifest | None = None,
        retired: Sequence[Version] = (),
    ) -> None:
        next_seq = [self.view.next_seq(partition) for partition in range(self._data_partitions)]
        written: list[tuple[int, LedgerRecord]] = []
        with self._writer.transaction(deadline=Deadline.after(COMMIT_LIMIT_S, clock=self._clock)):  # 1, 4
            for partition, make in makes:  # 2
                record = make(next_seq[partition])
                check_possible(record)  # what every reader would refuse is not written
                next_seq[partition] += 1
                self._writer.write(LEDGER, record, partition=partition)
                written.append((partition, record))
            for version in retired:  # 3
                self._writer.write_raw(WEIGHTS, key=str(version).encode(), value=None, partition=0)
            if manifest is not None:
                self._writer.write(WEIGHTS, manifest)
        for partition, record in written:  # 5
            self.view.add(partition, record)
