"""The prompt producer: numbers prompts as groups and admits them by credit.

Role: reads a source, writes `prompts`; reads `ledger` (credit), `weights` (admission) and `commands` (rate).
Invariants: groups are numbered 0, 1, 2, ... without a gap, and each item of the source is admitted once, whenever the
process is killed: group and cursor are one record, records are written in transactions, and a successor fences its
predecessor before it looks where that one stopped. Open groups never exceed the credit (promise 7). Admission is
closed until the current lineage has published weights (promise 3).
Failure: a prompt that is empty or malformed is counted and takes no number; a failed transaction ends the process,
whose successor continues from the log.

| phase | waits for | unblocked by |
| --- | --- | --- |
| waiting_for_weights | first manifest of the lineage | learner |
| waiting_for_credit | an outcome, or the scheduler's rate | learner, scheduler |
| admitting | - | - |
| finished | nothing: the source is at its end; the process stays, so that its end is not mistaken for a death | - |
"""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from pipeline.sources import PromptItem, SkippedLine, Source, open_source
from pipeline.stage import TURN_S, StageContext
from producers.control import Control
from producers.prompts.admission import Progress, RateLimit, lag_of, room
from producers.prompts.curriculum import Curriculum
from producers.prompts.recovery import Cursor, recover
from producers.prompts.settings import PromptsSettings
from schemas.errors import CodecError, RecordInvalid, RecordTooLarge, SettingsError
from schemas.reasons import Reason
from schemas.records import Outcome, PromptGroup
from schemas.validation import check_prompt
from topics.catalog import PROMPTS
from topics.clock import Deadline
from topics.log import Writer, WriterSettings

_MAX_LOOKS = 1_000  # items looked at in one turn, so that a turn is bounded in a source of bad items
_MAX_FRUITLESS = 10_000  # bad items in a row in a source without end
_NOTICES = 20  # bad items that are named on `events`; all are counted and logged


class PromptsStage:
    """See the module.

    Args:
        context: of the process.
        settings: `[prompts]`.
    """

    def __init__(self, context: StageContext, settings: PromptsSettings) -> None:
        self._context = context
        self._settings = settings
        self._control = Control(context, target="prompts")
        self._rate = RateLimit(context.clock)
        self._writer: Writer | None = None
        self._source: Source | None = None
        self._curriculum: Curriculum | None = None
        self._cursor = Cursor()
        self._num_fruitless = 0  # bad items in a row
        self._num_notices = 0

    @property
    def finished(self) -> bool:
        """Never: a finished source is a phase, the process stays until the run ends."""
        return False

    @property
    def next_group(self) -> int:
        """The number the next group gets, which is how many were admitted."""
        return self._cursor.next_group

    def start(self, *, deadline: Deadline) -> None:
        """1. open the source; 2. fence a predecessor; 3. recover the cursor; 4. read the control topics.

        Raises:
            SettingsError, PluginError: the source cannot be opened.
            TopicMismatch: the prompts topic is not dense.
            LogError, DeadlineExceeded: the broker failed or is too slow.
        """
        context = self._context
        self._source = open_source(self._settings.source, seed=context.run.seed, on_skipped=self._line_skipped)
        self._writer = context.log.writer(
            WriterSettings(transactional_id=f"rlweave.{context.run.name}.prompts", linger_ms=0.0)
        )
        self._writer.start(deadline=deadline)
        self._cursor = recover(context.log, source=self._source, hooks=context.hooks(), deadline=deadline)
        reward_groups = self._settings.source.reward_groups
        lineages, at = self._control.ledger.lineages, self._cursor
        self._curriculum = Curriculum(self._source, run=context.run, lineages=lineages, reward_groups=reward_groups)
        self._curriculum.restore(at.course, group=at.next_group, index=at.next_index, is_new=at.source_changed)
        if at.source_changed:
            details = {"source": self._source.name}
            context.events.notice("source_changed", details=details, next_index=at.next_index)
        self._curriculum.take(self._control.start(deadline=deadline))
        context.events.notice("recovered", next_group=self._cursor.next_group, next_index=self._cursor.next_index)
        self._report()

    def turn(self) -> None:
        """Take in what is new; then admit what there is room for, or wait for some."""
        self._take(self._control.poll(wait_s=0.0))
        phase, num_groups = self._decide()
        self._context.events.enter(phase)
        if num_groups > 0:
            self._admit(num_groups)
        else:
            self._take(self._control.poll(wait_s=TURN_S))
        self._report()

    def stop(self, *, deadline: Deadline) -> None:
        """Nothing is in hand between two turns; leave."""
        self._control.close()
        if self._writer is not None:
            self._writer.close(deadline=deadline)

    def _decide(self) -> tuple[str, int]:
        """The phase, and how many groups to admit."""
        if self._at_end():
            return "finished", 0
        control = self._control
        lineage = control.ledger.lineages.current
        if lineage == 0 or not control.has_weights(lineage):
            return "waiting_for_weights", 0
        num_groups = min(room(self._progress(), self._context.run), self._settings.batch_groups, self._allowed())
        return ("admitting", num_groups) if num_groups > 0 else ("waiting_for_credit", 0)

    def _allowed(self) -> int:
        """Groups that the scheduler and a seal allow."""
        if self._control.ledger.sealed is not None or self._control.commands.draining:
            return 0
        command = self._control.commands.latest("rate")
        self._rate.set(None if command is None else command.rate)
        allowed = self._rate.allowed()
        return self._settings.batch_groups if allowed is None else allowed

    def _at_end(self) -> bool:
        """Whether nothing will be admitted any more: the last step is done, or the source is used up."""
        if self._control.ledger.step >= self._context.run.max_steps:
            return True
        num_items = None if self._source is None else self._source.num_items
        return num_items is not None and self._cursor.next_index >= num_items

    def _progress(self) -> Progress:
        ledger = self._control.ledger
        return Progress(
            num_admitted=self._cursor.next_group,
            num_closed=ledger.num_closed,
            step=ledger.step,
            lag_versions=lag_of(self._control.commands.latest("credit")),
        )

    def _admit(self, num_groups: int) -> None:
        """One transaction; the cursor moves when it is committed, never before."""
        source, writer = self._source, self._writer
        if source is None or writer is None:
            return
        group, index = self._cursor.next_group, self._cursor.next_index
        limit = group + num_groups
        end = index + _MAX_LOOKS if source.num_items is None else min(index + _MAX_LOOKS, source.num_items)
        deadline = Deadline.after(self._settings.transaction_limit_s, clock=self._context.clock)
        with writer.transaction(deadline=deadline):
            while group < limit and index < end:
                self._look(group, index=index)
                group += self._write(writer, source, group=group, index=index)
                index += 1
        num_written = group - self._cursor.next_group
        self._cursor = Cursor(next_group=group, next_index=index)
        self._rate.used(num_written)
        self._context.metrics.count("records_written", num_written, topic=PROMPTS.name)

    def _take(self, outcomes: Sequence[Outcome]) -> None:
        if self._curriculum is not None:
            self._curriculum.take(outcomes)

    def _look(self, group: int, *, index: int) -> None:
        """Whether a stage of a curriculum begins here."""
        stage = None if self._curriculum is None else self._curriculum.look(group=group, index=index)
        if stage is not None:
            self._context.events.notice("curriculum_stage", stage=stage, group=group)

    def _write(self, writer: Writer, source: Source, *, group: int, index: int) -> int:
        """Queue item `index` as `group`; gives how many numbers it took, 0 or 1."""
        try:
            record = self._record(source.item(index), group=group, source=source.name)
            check_prompt(record)
            writer.write(PROMPTS, record)
        except RecordInvalid as error:
            self._skipped(error.reason, why=error.message, index=index, source=source)
            return 0
        except CodecError as error:
            self._skipped(Reason.PROMPT_INVALID, why=error.message, index=index, source=source)
            return 0
        except RecordTooLarge as error:
            self._skipped(Reason.TOO_LARGE, why=error.message, index=index, source=source)
            return 0
        self._num_fruitless = 0
        return 1

    def _record(self, item: PromptItem, *, group: int, source: str) -> PromptGroup:
        run = self._context.run
        return PromptGroup(
            run=run.name,
            group=group,
            group_size=run.group_size,
            text=item.text,
            messages=item.messages,
            token_ids=item.token_ids,
            sampling=self._settings.sampling,
            seed=seed_of(run.seed, group),
            answer=item.answer,
            metadata=item.metadata,
            source=source,
            source_index=item.source_index,
            epoch=item.epoch,
            created_unix_ms=self._context.clock.unix_ms(),
        )

    def _skipped(self, reason: str, *, why: str, index: int, source: Source) -> None:
        self._context.metrics.count("prompts_skipped", reason=reason)
        self._name_skipped({"source": source.name, "index": str(index), "why": why})
        self._num_fruitless += 1
        limit = _MAX_FRUITLESS if source.items_per_epoch is None else source.items_per_epoch
        if self._num_fruitless >= limit:
            raise SettingsError(
                f"{self._num_fruitless} items in a row of source {source.name} gave no prompt, the last one because: "
                f"{why}",
                hint="see the settings of [prompts.source], extract above all",
            )

    def _line_skipped(self, line: SkippedLine) -> None:
        self._context.metrics.count("prompts_skipped", reason="malformed_line")
        self._name_skipped({"file": line.file, "line": str(line.line), "why": line.why})

    def _name_skipped(self, details: dict[str, str]) -> None:
        if self._num_notices < _NOTICES:
            self._num_notices += 1
            self._context.events.notice("prompt_skipped", details=details)

    def _report(self) -> None:
        metrics = self._context.metrics
        metrics.gauge("groups_admitted", self._cursor.next_group)
        metrics.gauge("version_lineage", self._control.ledger.lineages.current)
        progress = self._progress()
        metrics.gauge("open_groups", progress.num_open)
        metrics.gauge("credit_groups", self._context.run.credit_at(progress.lag_versions))


def seed_of(run_seed: int, group: int) -> int:
    """The seed of a group, 56 bits: a function of run seed and number, so a group is sampled alike wherever it is taken
    up again; groups are far apart, so that seed + member never meets another group's."""
    return int.from_bytes(blake3(f"{run_seed}/{group}".encode()).digest(length=7), "big")
