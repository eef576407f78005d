"""The evaluator beside a learner with a real peer server: which versions, what is written, and what it waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pydantic import ValidationError

from consumers.evaluator.plan import Task, due_tasks
from consumers.evaluator.settings import EvaluationSettings, EvaluatorSettings
from consumers.evaluator.stage import EvaluatorSetup, EvaluatorStage
from ops.evaluations import curves_of, evaluations_of
from pipeline.engines.backends import Backend
from pipeline.engines.base import Generation
from pipeline.engines.pressure import EnginePressure
from pipeline.engines.scripted import ScriptedEngine
from pipeline.environments.base import Action, Observation
from pipeline.environments.base import Task as Act
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.sources import SourceSettings
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.state import decode_arrays
from pipeline.weights.tokens import load_or_create_token
from schemas.errors import EngineError, SettingsError
from schemas.evaluation import Evaluation
from schemas.records import LedgerSealed, StageEvent, Version
from tests.unit.producers.world import World, events_of, records_of, started, until
from topics.catalog import EVALUATIONS, EVENTS, LEDGER
from topics.clock import Deadline, SystemClock
from topics.memory import MemoryLog

FIELDS = {"partitions": 4, "groups_per_step": 4, "group_size": 2, "max_staleness": 2, "max_steps": 100}
QUICK = EvaluatorSettings(engine="scripted", niceness=0, fetch_retry_s=0.05)


def settings_of(folder: Path, **fields: object) -> EvaluationSettings:
    """Three prompts whose answer is 20: right for version 20 only, since a scripted engine says its step."""
    file = folder / "set.jsonl"
    file.write_text("".join(json.dumps({"question": f"{n} + 1 =", "answer": "20"}) + "\n" for n in range(3)))
    source = SourceSettings(files=(file,), shuffle=False, epochs=1)
    return EvaluationSettings.model_validate(
        {"source": source, "plugin": "number_match", "max_tokens": 1, "every_steps": 10, **fields}
    )


@dataclass
class Site:
    """A run with its learner, and evaluators made on demand."""

    world: World
    log: MemoryLog
    sets: dict[str, EvaluationSettings]
    own: EvaluatorSettings = QUICK
    stages: list[EvaluatorStage] = field(default_factory=list)

    def evaluator(self, engine: ScriptedEngine | None = None) -> EvaluatorStage:
        setup = EvaluatorSetup(
            evaluator=self.own,
            sets=self.sets,
            model=ModelSettings(path=Path("none")),
            weights=WeightsSettings(fetch_deadline_s=30.0),
            backend=Backend(engine=ScriptedEngine() if engine is None else engine, decode=decode_arrays),
        )
        stage = EvaluatorStage(self.world.context("evaluator"), setup)
        self.stages.append(stage)
        started(stage)
        return stage

    def evaluations(self) -> list[Evaluation]:
        return [each for each in records_of(self.log, EVALUATIONS) if isinstance(each, Evaluation)]

    def seen(self) -> list[str]:
        return [f"{each.name} {each.version}" for each in self.evaluations()]

    def phases(self) -> list[str]:
        events = [each for each in records_of(self.log, EVENTS) if isinstance(each, StageEvent)]
        return [each.name for each in events if each.stage == "evaluator" and each.kind == "phase_began"]

    def seal(self, step: int) -> None:
        records = [
            LedgerSealed(
                run=self.log.run, lineage=1, step=step, seq=10_000, num_groups=0, reason="end", sealed_unix_ms=0
            )
        ] * self.log.data_partitions
        self.world.write(*((LEDGER, record, partition) for partition, record in enumerate(records)))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    log = MemoryLog(run="r", data_partitions=4)
    log.admin().ensure_topics()
    world = World(log=log, folder=tmp_path, clock=SystemClock(), fields=FIELDS)
    store = ChunkStore(world.run.folder / "weights" / "learner", max_bytes=2**30)
    peer = PeerServer(PeerSettings(stores=[store], token=load_or_create_token(world.run.folder / "peer-token")))
    world.seeds = (peer.start(),)
    made = Site(world=world, log=log, sets={"sums": settings_of(tmp_path)})
    yield made
    for stage in made.stages:
        stage.stop(deadline=Deadline.after(5))
    peer.stop()


def test_versions_that_are_due_are_evaluated_once_the_newest_first(site: Site) -> None:
    site.world.lineage(1)
    for step in (0, 3, 10, 20):
        site.world.publish(1, step)
    stage = site.evaluator()
    until(stage, lambda: len(site.seen()) == 3)
    assert site.seen() == ["sums 1.20", "sums 1.10", "sums 1.0"]
    assert [each.mean for each in site.evaluations()] == [1.0, 0.0, 0.0]
    first = site.evaluations()[0]
    assert (first.num_prompts, first.num_scored, first.num_failed, first.mean_tokens) == (3, 3, 0, 1.0)
    assert [(item.index, item.member, item.value, item.text) for item in first.items] == [
        (index, 0, 1.0, "20") for index in range(3)
    ]
    again = site.evaluator()
    site.world.publish(1, 30)
    until(again, lambda: len(site.seen()) == 4)
    assert site.seen()[-1] == "sums 1.30", "a successor repeats nothing"
    assert {each["version"] for each in events_of(site.log, "evaluated")} == {"1.0", "1.10", "1.20", "1.30"}


def test_the_last_version_of_a_sealed_run_is_evaluated_whatever_its_step(site: Site) -> None:
    site.world.lineage(1)
    site.world.publish(1, 17)
    stage = site.evaluator()
    for _ in range(3):
        stage.turn()
    assert site.seen() == []
    site.seal(17)
    until(stage, lambda: site.seen() == ["sums 1.17"])
    stage.turn()
    stage.turn()
    assert site.phases()[-1] == "finished"


def test_a_branch_that_was_abandoned_counts_no_more_and_its_steps_come_again(site: Site) -> None:
    site.world.lineage(1)
    site.world.publish(1, 10)
    site.world.publish(1, 20)
    stage = site.evaluator()
    until(stage, lambda: len(site.seen()) == 2)
    site.world.lineage(2, parent=1, branch_step=10)
    site.world.publish(2, 20)
    until(stage, lambda: "sums 2.20" in site.seen())
    assert len(site.seen()) == 3, "step 10 survives in lineage 1"
    (curve,) = curves_of(evaluations_of(site.log), stage._news.ledger.lineages)
    assert [str(each.version) for each in curve.points] == ["1.10", "2.20"]
    assert curve.values == ([10, 20], [0.0, 1.0])


def test_other_settings_make_another_curve(site: Site, tmp_path: Path) -> None:
    site.world.lineage(1)
    site.world.publish(1, 20)
    until(site.evaluator(), lambda: len(site.seen()) == 1)
    site.sets = {"sums": settings_of(tmp_path, samples_per_prompt=2, temperature=1.0)}
    until(site.evaluator(), lambda: len(site.seen()) == 2)
    assert [each.num_scored for each in site.evaluations()] == [3, 6]
    assert site.evaluations()[0].settings_digest != site.evaluations()[1].settings_digest


def test_a_scorer_that_fails_gives_failures_and_no_mean(site: Site, tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text("def score(sample):\n    raise ValueError('no')\n")
    site.sets = {"sums": settings_of(tmp_path, plugin=f"{plugin}:score", num_workers=1)}
    site.world.lineage(1)
    site.world.publish(1, 20)
    until(site.evaluator(), lambda: len(site.seen()) == 1)
    (found,) = site.evaluations()
    assert (found.mean, found.best_mean, found.num_scored, found.num_failed) == (None, None, 0, 3)
    assert all(item.failure is not None and item.failure.startswith("ValueError") for item in found.items)


class Twice:
    """Two turns; each is worth 1 when it says 20. One prompt's sandbox is gone, and one waits before it answers."""

    async def reset(self, task: Act) -> Observation:
        self._group = task.group
        if task.group == 1:
            raise RuntimeError("gone")
        return Observation(text="?")

    async def step(self, action: Action) -> Observation:
        if self._group == 2:
            await asyncio.sleep(0.02)
        return Observation(text="!", reward=float(action.text == "20"), done=action.turn == 1)

    async def close(self) -> None:
        CLOSED.append(self._group)


CLOSED: list[int] = []


def test_a_set_may_be_played_in_an_environment(site: Site, tmp_path: Path) -> None:
    CLOSED.clear()
    environment = {"plugin": f"{__name__}:Twice", "max_retries": 0, "park_after_s": 0.0}
    site.sets = {"sums": settings_of(tmp_path, plugin="environment", environment=environment)}
    site.world.lineage(1)
    site.world.publish(1, 10)
    site.world.publish(1, 20)
    stage = site.evaluator(ScriptedEngine(max_concurrent_sequences=1))
    until(stage, lambda: len(site.seen()) == 2)
    newest, older = site.evaluations()
    assert [(item.value, item.failure, item.text) for item in newest.items] == [
        (2.0, None, "?20!20"),
        (None, "environment: environment_failed", ""),
        (2.0, None, "?20!20"),
    ]
    assert (newest.mean, older.mean, newest.num_failed) == (2.0, 0.0, 1)
    assert newest.items[0].num_tokens == 2, "what the environment said is not its own"
    assert sorted(CLOSED) == [0, 0, 1, 1, 2, 2]


class BusyEngine(ScriptedEngine):
    """An engine in which others' requests wait."""

    queued = 3

    @property
    def pressure(self) -> EnginePressure:
        return EnginePressure(measured_s=0.0, queued=self.queued)


def test_evaluation_begins_nothing_while_requests_wait_in_the_engine(site: Site) -> None:
    site.world.lineage(1)
    site.world.publish(1, 20)
    engine = BusyEngine()
    stage = site.evaluator(engine)
    until(stage, lambda: engine.version is not None)
    for _ in range(2):
        stage.turn()
    assert engine.num_running == 0
    assert site.seen() == []
    engine.queued = 0
    until(stage, lambda: len(site.seen()) == 1)


def test_an_engine_that_fails_costs_the_pass_and_no_more(site: Site) -> None:
    site.world.lineage(1)
    site.world.publish(1, 20)
    engine = ScriptedEngine()
    stage = site.evaluator(engine)
    until(stage, lambda: stage._pass is not None)
    engine.close()
    until(stage, lambda: bool(events_of(site.log, "evaluation_failed")))
    assert site.seen() == []


class FailingEngine(ScriptedEngine):
    """Keeps its version, and generates nothing."""

    def step(self) -> list[Generation]:
        raise EngineError("the server is away")


def test_an_engine_that_goes_on_failing_is_asked_again_after_a_pause_only(site: Site) -> None:
    site.own = QUICK.model_copy(update={"fetch_retry_s": 600.0})
    site.world.lineage(1)
    site.world.publish(1, 20)
    stage = site.evaluator(FailingEngine())
    until(stage, lambda: bool(events_of(site.log, "evaluation_failed")))
    for _ in range(3):
        stage.turn()
    assert len(events_of(site.log, "evaluation_failed")) == 1
    assert site.phases()[-1] == "waiting_for_versions"


def test_a_set_without_prompts_is_refused(site: Site, tmp_path: Path) -> None:
    site.sets = {"sums": settings_of(tmp_path, source={"files": [str(tmp_path / "set.jsonl")], "extract": "none"})}
    with pytest.raises(SettingsError, match=r"evaluation\.sums: source .* gives no prompt"):
        site.evaluator()


def test_the_plan_prefers_the_newest_and_the_later_lineage(tmp_path: Path) -> None:
    sets = {"a": settings_of(tmp_path), "b": settings_of(tmp_path, every_steps=20)}
    published = [Version(lineage=1, step=step) for step in (0, 10, 20, 25)] + [Version(lineage=2, step=20)]
    done = {Task(version=Version(lineage=1, step=0), name="a")}
    found = due_tasks(sets, published=published, done=done, last=None)
    assert [f"{task.name} {task.version}" for task in found] == ["a 2.20", "b 2.20", "a 1.10", "b 1.0"]
    last = due_tasks(sets, published=published, done=done, last=Version(lineage=1, step=25))
    assert [f"{task.name} {task.version}" for task in last[:2]] == ["a 1.25", "b 1.25"]


def test_an_empty_stop_string_is_refused_as_for_prompts() -> None:
    source = {"kind": "jsonl", "files": ["q.jsonl"]}
    with pytest.raises(ValidationError, match="at least 1 character"):
        EvaluationSettings.model_validate({"source": source, "plugin": "exact_match", "stop": [""]})
