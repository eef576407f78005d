"""Recorded mode on the memory log: the same bits from the topics of a run that died, and differences where they are."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.learner import checkpoint
from consumers.learner.recorded.history import RecordedGroup, RecordedHistory, RecordedStep
from consumers.learner.recorded.output import write_output
from consumers.learner.recorded.retrain import Repetition
from consumers.learner.recorded.samples import RecordedSamples
from consumers.learner.settings import CloningSettings
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.settings import WeightsSettings
from schemas.errors import CheckpointError, NotRepeatable
from schemas.records import LedgerSealed, Outcome, Version
from tests.unit.consumers.learner.recorded_world import STEPS, RecordedRun, recorded_run
from topics.catalog import LEDGER
from topics.memory import MemoryLog

BORN2 = Version(lineage=2, step=0)
SHAPE = TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=SHAPE)
    return path


def died_twice(folder: Path, model: Path, *, cloning_steps: int = 3) -> RecordedRun:
    """Two minibatches a step; deaths after steps 3 and 5, of which the checkpoints of 2 and 4 know nothing."""
    log = MemoryLog(run="r", data_partitions=4)
    run = recorded_run(log, folder, model, minibatches=2, cloning_steps=cloning_steps)
    for until in (3, 5, STEPS):
        run.live(until=until)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model: Path) -> RecordedRun:
    """For tests that only read."""
    return died_twice(tmp_path_factory.mktemp("run"), model)


def test_a_run_that_died_comes_out_the_same_and_nothing_of_it_is_written(
    run: RecordedRun, tmp_path: Path, model: Path
) -> None:
    before, files = run.ends(), sorted(run.folder.rglob("*"))
    history = run.history()
    assert list(history.facts) == [1, 2, 3]
    assert [str(step.version) for step in history.steps] == ["1.1", "1.2", "2.3", "2.4", "3.5", "3.6"]
    repetition = Repetition(run.log, history, setup=run.setup_of_record())
    reports = list(repetition.run())
    assert [report.agrees for report in reports] == [True] * (STEPS + 1)
    assert len({report.training_digest for report in reports}) == STEPS + 1, (
        "a step that changes nothing proves nothing"
    )
    places = [{each.place for each in report.compared} for report in reports]
    assert places[0] >= {"weights", "anchor"}
    assert places[-1] == {"ledger", "weights", "checkpoint"}
    versions = {each.version for report in reports for each in report.compared if each.place == "weights"}
    assert {"1.0", "1.2", "2.2", "3.4", "3.6"} <= versions, "anchors of later lineages are compared as well"
    write_output(tmp_path, repetition.trainer, model=model)
    kept = run.folder / "r" / "checkpoints" / "3.6"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "state" / name).read_bytes() == (kept / name).read_bytes()
    assert run.ends() == before
    assert sorted(run.folder.rglob("*")) == files


def test_what_is_left_loads_and_is_no_checkpoint(run: RecordedRun, tmp_path: Path, model: Path) -> None:
    repetition = Repetition(run.log, run.history(until_step=1), setup=run.setup_of_record())
    *_, last = repetition.run()
    write_output(tmp_path, repetition.trainer, model=model)
    elsewhere = run.setup_of_record().model.model_copy(update={"path": tmp_path / "model"})
    loaded = Repetition(
        run.log,
        replace(run.history(), facts={1: {}, 2: {}, 3: {}}),
        setup=replace(run.setup_of_record(), model=elsewhere),
    )
    assert loaded.trainer.state_digest(wire_dtype=None) == last.state_digest
    with pytest.raises(CheckpointError):
        checkpoint.load(tmp_path / "state")


def changed(history: RecordedHistory, step: int, groups: tuple[RecordedGroup, ...]) -> RecordedHistory:
    steps = [replace(each, groups=groups) if each.version.step == step else each for each in history.steps]
    return replace(history, steps=steps)


def groups_of(history: RecordedHistory, step: int) -> tuple[RecordedGroup, ...]:
    return history.steps[step - 1].groups


def other_reward(groups: tuple[RecordedGroup, ...]) -> tuple[RecordedGroup, ...]:
    first, *rest = groups
    return (replace(first, rewards=(first.rewards[0] + 0.25, *first.rewards[1:])), *rest)


def other_order(groups: tuple[RecordedGroup, ...]) -> tuple[RecordedGroup, ...]:
    return (groups[1], groups[0], *groups[2:])


def fewer_members(groups: tuple[RecordedGroup, ...]) -> tuple[RecordedGroup, ...]:
    first, *rest = groups
    return (replace(first, members=first.members[1:], rewards=first.rewards[1:]), *rest)


@pytest.mark.parametrize("change", [other_reward, other_order, fewer_members], ids=lambda each: each.__name__)
def test_another_reward_order_or_batch_differs_from_that_step_on(run: RecordedRun, change: object) -> None:
    history = run.history()
    assert callable(change)
    verdict = run.repeat(changed(history, 3, change(groups_of(history, 3))))
    assert not verdict.same
    assert verdict.last_agreeing == 2
    assert verdict.first_differing is not None
    assert verdict.first_differing.version == Version(lineage=2, step=3)


def test_groups_in_another_step_differ_at_the_first_of_the_two(run: RecordedRun) -> None:
    history = run.history()
    second, fourth = groups_of(history, 2), groups_of(history, 4)
    swapped = changed(history, 2, (*second[:-1], fourth[0]))
    swapped = changed(swapped, 4, (second[-1], *fourth[1:]))
    verdict = run.repeat(swapped)
    assert verdict.last_agreeing == 1
    assert verdict.first_differing is not None


def test_a_small_buffer_reads_what_the_step_needs_first(run: RecordedRun) -> None:
    history = run.history()
    samples = RecordedSamples(run.log, history.steps, limit_bytes=1)
    for step in history.steps:
        batch = samples.batch(step)
        assert [group.group for group in batch.groups] == [group.group for group in step.groups]
    assert samples.buffered_bytes == 0
    setup = run.setup_of_record()
    small = replace(setup, settings=setup.settings.model_copy(update={"buffer_bytes": 1}))
    assert run.repeat(setup=small).same


def test_some_steps_of_it(run: RecordedRun) -> None:
    verdict = run.repeat(run.history(until_step=2))
    assert verdict.same
    assert verdict.last_step == 2
    with pytest.raises(NotRepeatable, match="ends with step 6"):
        run.history(until_step=7)


def test_digests_of_the_ledger_suffice_when_manifests_are_gone(run: RecordedRun) -> None:
    history = run.history()
    kept = {step: [each for each in digests if each.place == "ledger"] for step, digests in history.digests.items()}
    gone = replace(run.setup_of_record(), checkpoints=run.folder / "none")
    verdict = run.repeat(replace(history, digests=kept), setup=gone)
    assert verdict.same
    assert verdict.num_compared == STEPS + 1, "the first anchor is among the facts"
    unknown = run.repeat(replace(history, digests={}), setup=gone)
    assert unknown.first_differing is None
    assert not unknown.same, "what was not compared is not called the same"


def test_settings_of_each_lineage_are_applied(tmp_path: Path, model: Path) -> None:
    log = MemoryLog(run="r", data_partitions=4)
    run = recorded_run(log, tmp_path, model, weights=WeightsSettings(wire_dtype="bfloat16"))
    run.live(until=3)
    faster = run.learner_settings.optimizer.model_copy(update={"learning_rate": 1e-2, "beta1": 0.8})
    run.learner_settings = run.learner_settings.model_copy(update={"optimizer": faster})
    run.weights = WeightsSettings()
    run.live(until=STEPS)
    verdict = run.repeat()
    assert verdict.same
    assert verdict.num_compared == STEPS + 1
    history = run.history()
    facts = {1: history.facts[2], 2: history.facts[2]}
    early = run.repeat(replace(history, facts=facts))
    assert early.first_differing is not None


def test_without_facts_the_settings_at_hand_are_taken(run: RecordedRun) -> None:
    history = replace(run.history(), facts={1: {}, 2: {}, 3: {}})
    repetition = Repetition(run.log, history, setup=run.setup_of_record())
    assert repetition.without_facts == [1, 2, 3]
    assert run.repeat(history).same
    setup = run.setup_of_record()
    faster = setup.settings.optimizer.model_copy(update={"learning_rate": 1e-2})
    other = replace(setup, settings=setup.settings.model_copy(update={"optimizer": faster}))
    verdict = run.repeat(history, setup=other)
    assert verdict.first_differing is not None
    assert verdict.first_differing.version.step == 1


def test_facts_go_before_the_settings_at_hand_and_the_environment_is_compared(run: RecordedRun) -> None:
    setup = run.setup_of_record()
    faster = setup.settings.optimizer.model_copy(update={"learning_rate": 1e-2})
    other = replace(setup, settings=setup.settings.model_copy(update={"optimizer": faster, "threads": 2}), seed=99)
    history = run.history()
    repetition = Repetition(run.log, history, setup=other)
    assert [report.agrees for report in repetition.run()] == [True] * (STEPS + 1)
    assert repetition.settings_apart == {lineage: ["optimizer", "seed", "threads"] for lineage in (1, 2, 3)}
    facts = {lineage: {**each, "torch": "0.1"} if lineage == 2 else each for lineage, each in history.facts.items()}
    found = Repetition(run.log, replace(history, facts=facts), setup=setup).environment
    assert {lineage: list(names) for lineage, names in found.items()} == {2: ["torch"]}


def test_other_initial_weights_are_refused(run: RecordedRun, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "other", seed=4, context_tokens=32, shape=SHAPE)
    setup = run.setup_of_record()
    other = replace(setup, model=setup.model.model_copy(update={"path": tmp_path / "other"}))
    with pytest.raises(NotRepeatable, match="the run began with weights"):
        run.repeat(setup=other)


def test_steps_of_several_ranks_are_refused_and_those_before_are_not(run: RecordedRun) -> None:
    history = run.history()
    two = history.facts[3]["settings"].replace('"ranks":1', '"ranks":2')
    facts = {**history.facts, 3: {**history.facts[3], "settings": two}}
    with pytest.raises(NotRepeatable, match=r"step 5 was trained by 2 ranks.*steps 1 to 4 can be repeated") as caught:
        run.repeat(replace(history, facts=facts))
    assert caught.value.hint == "give --until-step 4"
    assert run.repeat(replace(history, facts=facts, steps=history.steps[:4])).same


class TestRetention:
    """What retention took is named, with the steps that are left."""

    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog(run="r", data_partitions=4)

    @pytest.fixture
    def run(self, log: MemoryLog, tmp_path: Path, model: Path) -> RecordedRun:
        run = recorded_run(log, tmp_path, model)
        run.live(until=STEPS)
        return run

    def test_samples(self, run: RecordedRun, log: MemoryLog) -> None:
        step = next(step for step in run.history().steps if any(group.group % 4 == 1 for group in step.groups))
        log.delete_records({("samples", 1): run.ends()["samples"][1][1]})
        with pytest.raises(
            NotRepeatable, match=r"not on topic samples any more: r/\d+/0 \(attempt a\).* more; "
        ) as caught:
            run.repeat()
        assert f"step {step.version.step} trained" in caught.value.message

    def test_a_sample_of_a_later_step(self, run: RecordedRun, log: MemoryLog) -> None:
        history = run.history()
        lost: RecordedStep = history.steps[3]
        alien = replace(lost.groups[0], attempt="never made")
        with pytest.raises(NotRepeatable, match="steps 1 to 3 can be repeated") as caught:
            run.repeat(changed(history, 4, (alien, *lost.groups[1:])))
        assert caught.value.hint == "give --until-step 3"

    def test_the_ledgers_beginning(self, run: RecordedRun, log: MemoryLog) -> None:
        log.delete_records({("ledger", 2): run.ends()["ledger"][2][0] + 3})
        with pytest.raises(NotRepeatable, match=r"ledger partition 2 lacks . records before number .*no step can be"):
            run.history()

    def test_the_whole_ledger(self, run: RecordedRun, log: MemoryLog) -> None:
        log.delete_records({("ledger", part): end for part, (_, end) in run.ends()["ledger"].items()})
        with pytest.raises(NotRepeatable, match="has no lineage"):
            run.history()


def test_a_learner_that_died_before_its_first_version_left_no_trace(tmp_path: Path, model: Path) -> None:
    run = recorded_run(MemoryLog(run="r", data_partitions=4), tmp_path, model, cloning_steps=2, born=BORN2)
    run.die_at_once()
    run.live(until=STEPS)
    history = run.history()
    assert list(history.facts) == [2]
    assert run.repeat(history).same


def test_a_lineage_left_for_an_older_checkpoint_is_left_out(tmp_path: Path, model: Path) -> None:
    run = recorded_run(MemoryLog(run="r", data_partitions=4), tmp_path, model)
    run.live(until=3)
    run.live(until=5)
    shutil.rmtree(tmp_path / "r" / "checkpoints" / "2.4")
    shutil.rmtree(tmp_path / "r" / "checkpoints" / "2.2")
    run.live(until=STEPS)
    history = run.history()
    assert [str(step.version) for step in history.steps] == ["1.1", "1.2", "3.3", "3.4", "3.5", "3.6"]
    assert list(history.facts) == [1, 3]
    assert run.repeat(history).same


def test_copies_of_the_ledger_change_nothing_and_a_group_trained_twice_is_named(tmp_path: Path, model: Path) -> None:
    run = recorded_run(MemoryLog(run="r", data_partitions=4), tmp_path, model)
    run.live(until=STEPS)
    history = run.history()
    records = run.records(LEDGER)
    for partition, record in records:
        run.writer.write(LEDGER, record, partition=partition)
    again = run.history()
    assert (again.steps, again.digests, again.facts) == (history.steps, history.digests, history.facts)
    outcome = next(record for _, record in records if isinstance(record, Outcome) and record.step == 2)
    last = max(record.seq for part, record in records if part == outcome.group % 4 and isinstance(record, LedgerSealed))
    run.writer.write(LEDGER, replace(outcome, step=5, seq=last + 1))
    with pytest.raises(NotRepeatable, match=rf"group {outcome.group} was trained by steps 2 and 5; steps 1 to 4 can"):
        run.history()
    assert run.repeat(run.history(until_step=4)).same


def test_a_run_that_trained_nothing_is_said_to_be_one(tmp_path: Path, model: Path) -> None:
    with pytest.raises(NotRepeatable, match="no lineage"):
        recorded_run(MemoryLog(run="r", data_partitions=4), tmp_path, model).history()


def test_a_run_that_was_cloned_and_whose_settings_name_no_source_any_more_is_refused(
    tmp_path: Path, model: Path
) -> None:
    run = recorded_run(MemoryLog(run="r", data_partitions=4), tmp_path, model, cloning_steps=2)
    run.live(until=STEPS)
    setup = run.setup_of_record()
    later = replace(setup, settings=setup.settings.model_copy(update={"cloning": CloningSettings()}))
    with pytest.raises(
        NotRepeatable, match=r"lineage 1 was cloned for 2 steps .* no learner\.cloning\.source"
    ) as caught:
        run.repeat(setup=later)
    assert "as it was at the first start" in caught.value.hint
