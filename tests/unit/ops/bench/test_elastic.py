"""The parts of `bench elastic` that need no run: what is best and when it was reached, script, engine and table."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import Scalable, Scaled, Snapshot, Standing
from ops.bench.elastic.bench import elastic_result
from ops.bench.elastic.course import Change, Count, Elasticity, Lending, Move
from ops.bench.elastic.engine import TOKEN
from ops.bench.elastic.hindsight import needed_rollouts
from ops.bench.elastic.plan import LONG_S, USUAL_S, best_rollouts
from ops.bench.elastic.policy import following, lending
from ops.bench.elastic.script import Prompter, Script, write_plugins
from ops.bench.result import Noise
from pipeline.engines.backends import BackendSettings, open_backend
from pipeline.engines.base import GenerationRequest
from pipeline.settings import ModelSettings
from schemas.records import SamplingParams, StageEvent, Version
from topics.clock import Deadline

FLEET = (
    Scalable(target="rollout", group="g", least=1, most=2, initial=2),
    Scalable(target="learner", group="", least=1, most=2, initial=1),
)


def test_twice_the_load_needs_twice_the_rollouts() -> None:
    assert (best_rollouts(USUAL_S), best_rollouts(LONG_S)) == (2, 4)


def test_what_was_needed_is_the_learners_pace_over_that_of_a_producer_whose_slots_are_full() -> None:
    """16 groups in 2 s, and 4 groups per second and producer, of which only half the slots are in use."""

    def event(stage: str, kind: str, name: str, **values: object) -> StageEvent:
        plain: dict[str, object] = {"instance": stage, "seq": 0, "monotonic_s": 0.0, "unix_ms": 0}
        return StageEvent(run="r", stage=stage, kind=kind, name=name, **(plain | values))  # type: ignore[arg-type]

    spans = {"forward_backward": 1.8, "staging_weights": 0.1, "publishing": 0.1, "waiting_for_data": 9.0}
    heard = [event("learner", "phase_ended", name, gauges={"spent_s": span_s}) for name, span_s in spans.items()]
    for second in range(4):
        gauges = {"running_sequences": 16.0, "free_slots": 16.0, "records_written{topic=samples}": 16.0 * second}
        heard.append(event("rollout", "heartbeat", "heartbeat", gauges=gauges, monotonic_s=float(second)))
    assert needed_rollouts(heard) == pytest.approx(16 / 2 / 8)
    assert needed_rollouts(heard[:4]) is None


@pytest.mark.parametrize(
    ("numbers", "within_one", "best"),
    [
        ([2, 3, 4], 1.0, 2.0),
        ([2, 3, 4, 5, 6, 5], 5.0, None),
        ([4, 3, 2], None, None),
        ([4], 0.0, 0.0),
    ],
)
def test_a_number_counts_from_when_it_stays(numbers: list[int], within_one: float | None, best: float | None) -> None:
    count = Count(began_s=0.0, course=[(float(at_s), number) for at_s, number in enumerate(numbers)])
    assert (count.since_s(4, tolerance=1), count.since_s(4, tolerance=0)) == (within_one, best)


def test_a_script_is_read_anew_when_it_changes(tmp_path: Path) -> None:
    reader, writer = Prompter(tmp_path), Prompter(tmp_path)
    assert reader.now() == Script()
    for script in (Script(sequence_s=2.0), Script(is_lent=True)):
        writer.set(script)
        assert reader.now() == script


def test_a_slot_is_lent_by_two_commands_and_given_back_by_two(tmp_path: Path) -> None:
    snapshot = Snapshot(now_s=1.0, observed_s=1.0, fleet=FLEET, slots=3)
    drafts = list(lending(snapshot, is_lent=True))
    assert [(each.target, each.replicas) for each in drafts] == [("rollout", 1), ("learner", 2)]
    lent = {target: Scaled(replicas=number, at_s=0.0) for target, number in (("rollout", 1), ("learner", 2))}
    after = Snapshot(now_s=1.0, observed_s=1.0, fleet=FLEET, slots=3, standing=Standing(scale=lent))
    assert not list(lending(after, is_lent=True))
    assert [(each.target, each.replicas) for each in lending(after, is_lent=False)] == [("rollout", 2), ("learner", 1)]
    Prompter(tmp_path).set(Script(is_lent=True))
    decided = following(tmp_path)(snapshot, SchedulerSettings())
    assert [each.replicas for each in decided if each.kind == "scale"] == [1, 2]


def test_the_engine_gives_every_sequence_once_and_takes_about_the_time_of_the_script(tmp_path: Path) -> None:
    Prompter(tmp_path).set(Script(sequence_s=0.1))
    settings = BackendSettings(model=ModelSettings(path=tmp_path), max_sequences=8, num_threads=1)
    engine = open_backend(f"{write_plugins(tmp_path)}:engine", settings).engine
    version = Version(lineage=1, step=0)
    engine.load(version, {"any": np.zeros(3)})
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_tokens=4)
    names = [f"{number}/0" for number in range(8)]
    began_s = time.monotonic()
    engine.submit(
        [GenerationRequest(request_id=name, prompt_tokens=(TOKEN,), sampling=sampling, seed=1) for name in names]
    )
    done: list[str] = []
    deadline = Deadline.after(10)
    while engine.num_running:
        deadline.check("all sequences")
        for each in engine.step():
            assert (len(each.tokens), each.version_runs[0].version) == (4, version)
            done.append(each.request_id)
    assert sorted(done) == names
    assert time.monotonic() - began_s >= 0.05


def test_the_table_and_the_numbers_say_the_same() -> None:
    doubled = Change(
        needed=3.5, best=4, within_one_s=4.8, best_s=13.86, num_commands=2, course=((0.0, 2), (4.8, 3), (13.86, 4))
    )
    halved = Change(needed=1.7, best=2, within_one_s=15.8, best_s=None, num_commands=2, course=((0.0, 5), (15.8, 3)))
    found = elastic_result(
        Elasticity(doubled=doubled, halved=halved, restarted_s=0.8, serving_s=8.2, lost_ids=0, balanced=True),
        Lending(
            lent=Move(total_s=9.0, away_s=7.0),
            returned=Move(total_s=8.0, away_s=6.0),
            steps_s={1: 1.2, 2: 0.8},
            most_held=3,
            lost_ids=0,
            balanced=True,
            steps_twice=0,
        ),
        noise=Noise(),
    )
    assert (found.values["double_within_one_s"], found.values["halve_best_s"]) == (4.8, None)
    assert (found.values["lend_away_s"], found.values["step_two_ranks_s"]) == (7.0, 0.8)
    assert found.values["elastic_lost_ids"] == found.values["lend_steps_twice"] == 0
    text = found.text()
    assert "load halves" in text
    assert "since it halved (1.70): 5 at 0 s, 3 at 16 s" in text
    assert "audits: balanced" in text
