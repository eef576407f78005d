"""The learner's ledger and intake on a real broker, where transactions leave markers that are no records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consumers.learner.intake import Intake
from consumers.learner.ledger import Ledger
from consumers.learner.settings import LearnerSettings
from pipeline.settings import RunSettings
from pipeline.stage import make_context
from schemas.errors import Fenced
from tests.unit.consumers.learner.material import G, assembler, fates, whole
from topics.catalog import PROMPTS, REWARDS, SAMPLES
from topics.clock import Deadline, ManualClock, SystemClock
from topics.kafka import KafkaLog
from topics.log import WriterSettings

pytestmark = pytest.mark.integration


def until(condition: Callable[[], bool], *, act: Callable[[], object], what: str) -> None:
    deadline = Deadline.after(20)
    while not condition():
        deadline.check(what)
        act()


def open_ledger(log: KafkaLog) -> Ledger:
    writer = log.writer(WriterSettings(transactional_id=f"rlweave.{log.run}.learner"))
    ledger = Ledger(writer, run=log.run, data_partitions=log.data_partitions, clock=SystemClock())
    context = make_context(log, run=RunSettings(name=log.run, partitions=log.data_partitions), stage="learner")
    ledger.recover(log, hooks=context.hooks(), deadline=Deadline.after(20))
    return ledger


def test_groups_written_in_transactions_are_trained_recovered_and_fenced(kafka_log: KafkaLog) -> None:
    log = kafka_log
    partitions = log.data_partitions
    run = RunSettings(name=log.run, partitions=partitions, group_size=G, groups_per_step=2)
    context = make_context(log, run=run, stage="learner")
    first = open_ledger(log)
    assert first.begin_lineage(parent=0, branch_step=0, holder="h") == 1

    prompts = log.writer(WriterSettings(transactional_id=f"rlweave.{log.run}.prompts"))
    others = log.writer(WriterSettings())
    groups = {number: whole(number) for number in range(3)}
    with prompts.transaction(deadline=Deadline.after(20)):
        for records in groups.values():
            prompts.write(PROMPTS, records[0])
    for number, records in groups.items():
        for record in records[1:-2] if number == 2 else records[1:]:
            others.write(SAMPLES if type(record).__name__ == "Sample" else REWARDS, record)
    others.flush(deadline=Deadline.after(20))

    clock = ManualClock()
    target = assembler(clock=clock, tree=first.view.lineages)
    intake = Intake(context, target, settings=LearnerSettings(), positions={})

    def pump() -> int:
        return intake.pump(deadline=Deadline.after(0.2))

    until(lambda: target.num_ready == 2, act=pump, what="two whole groups")
    batch = target.cut(0, 2)
    assert batch is not None
    assert batch.num_samples == 2 * G
    target.mark_trained(batch)
    first.write_step(1, target.take_outcomes())

    target.tick(engine_ready=True)
    clock.advance(1000)
    target.tick(engine_ready=True)
    until(lambda: target.num_unwritten == 1, act=pump, what="the deadline of the third group")
    drafts = target.take_outcomes()
    assert fates(drafts) == {2: "dropped(incomplete: 7/8)"}
    first.write_outcomes(2, drafts)
    intake.commit_for_lag()
    lag = log.admin().lag(f"rlweave.{log.run}.learner", [PROMPTS, SAMPLES, REWARDS])
    assert sum(each.lag_records or 0 for each in lag) == 0
    intake.close()

    second = open_ledger(log)
    assert (second.view.num_closed, second.view.step, second.view.closed) == (3, 1, target.closed)
    with pytest.raises(Fenced):
        first.begin_lineage(parent=1, branch_step=1, holder="zombie")
    assert second.begin_lineage(parent=1, branch_step=1, holder="h2") == 2
    assert [second.view.is_closed(number) for number in range(3)] == [True, True, False]
    second.close(deadline=Deadline.after(10))
