"""Case 46: who is silent, and when that ends the run; engines that serve; data that is used up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import pytest

from consumers.learner.settings import LearnerSettings
from consumers.learner.upstream import UpstreamWatch
from pipeline.events import Events
from pipeline.metrics import Metrics
from pipeline.settings import RunSettings
from pipeline.stage import make_context
from schemas.errors import NoProgress
from schemas.records import Record, Reward, StageEvent
from tests.unit.consumers.learner.material import assembler, feed, prompt, whole
from topics.catalog import EVENTS
from topics.clock import Deadline, ManualClock
from topics.log import ReaderSettings, WriterSettings
from topics.memory import MemoryLog
from topics.memory.reader import MemoryReader

STAGES = ("prompts", "rollout", "reward")


class Rig:
    """A learner that watches three stages; `dead` ones send nothing."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(run="r", data_partitions=4, clock=self.clock)
        run = RunSettings(name="r", heartbeat_s=1.0)
        self.context = make_context(self.log, run=run, stage="learner", clock=self.clock)
        settings = LearnerSettings(silent_notice_s=10.0, silent_end_s=30.0)
        self.watch = UpstreamWatch(self.context, settings=settings, lineage=1)
        self.watch.poll()
        self.assembler = assembler(clock=self.clock)
        self.stages = {name: self._stage(name) for name in STAGES}
        self.step = 0

    def _stage(self, name: str) -> tuple[Events, Metrics]:
        metrics = Metrics(run="r", stage=name, instance=f"{name}-1")
        events = Events(
            partial(self.log.writer, WriterSettings()),
            run="r",
            stage=name,
            instance=f"{name}-1",
            clock=self.clock,
            metrics=metrics,
        )
        events.enter({"prompts": "waiting_for_credit", "rollout": "generating", "reward": "scoring"}[name])
        return events, metrics

    def run(self, seconds: int, *, dead: Iterable[str] = ()) -> None:
        """Second by second: heartbeats, then the learner's look."""
        for _ in range(seconds):
            for name, (events, _) in self.stages.items():
                if name not in dead:
                    events.heartbeat()
            self.watch.poll()
            self.watch.check(self.assembler, step=self.step)
            self.clock.advance(1.0)

    def notices(self) -> list[str]:
        """The stages named so far."""
        reader = self.log.reader(ReaderSettings(topics=(EVENTS,)), hooks=self.context.hooks())
        found = [
            each.record.details["stage"]
            for each in reader.poll(100_000, deadline=Deadline.after(0))
            if isinstance(each.record, StageEvent) and each.record.name == "upstream_silent"
        ]
        reader.close()
        return found


def open_groups(*, without: type | None = None) -> list[Record]:
    return [record for group in range(2) for record in whole(group) if without is None or type(record) is not without]


def test_dead_rollouts_are_named_by_t1_and_end_the_run_by_t2() -> None:
    """Case 46."""
    rig = Rig()
    rig.run(5)
    feed(rig.assembler, [prompt(0), prompt(1)])
    rig.run(15, dead=["rollout"])
    (named,) = rig.notices()
    assert "rollout: 2 groups lack samples" in named
    assert "last heard" in named
    with pytest.raises(NoProgress, match="rollout: 2 groups lack samples") as caught:
        rig.run(16, dead=["rollout"])
    assert "start or mend that stage" in caught.value.hint
    assert len(rig.notices()) == 1


def test_dead_reward_consumers_are_named_with_the_reward() -> None:
    """Case 46."""
    rig = Rig()
    feed(rig.assembler, open_groups(without=Reward))
    rig.run(12, dead=["reward"])
    (named,) = rig.notices()
    assert named.startswith("reward match: 16 samples without it")


def test_the_dead_stage_is_named_and_not_the_live_one_that_waits_as_well() -> None:
    rig = Rig()
    feed(rig.assembler, [*open_groups(without=Reward), prompt(2)])
    rig.run(12, dead=["reward"])
    (named,) = rig.notices()
    assert "reward match" in named
    assert "rollout" not in named


def test_without_open_groups_it_is_the_prompts() -> None:
    rig = Rig()
    rig.run(12, dead=["prompts"])
    assert [named.split(" (")[0] for named in rig.notices()] == ["prompts: no open group"]


def test_a_live_stage_is_named_with_its_phase() -> None:
    rig = Rig()
    feed(rig.assembler, [prompt(0)])
    rig.run(12)
    assert rig.notices() == ["rollout: 1 groups lack samples (1 alive, in phase generating)"]


def test_progress_begins_the_wait_anew() -> None:
    rig = Rig()
    rig.run(9)
    feed(rig.assembler, whole(0))
    rig.run(9)
    rig.step = 1
    rig.run(9)
    rig.watch.reset()
    rig.run(9)
    assert rig.notices() == []


def test_a_used_up_data_set_is_no_silence() -> None:
    """Case 46."""
    rig = Rig()
    events, metrics = rig.stages["prompts"]
    metrics.gauge("groups_admitted", 2)
    events.enter("finished")
    rig.run(2)
    before = rig.watch.prompts_finished
    metrics.gauge("version_lineage", 1)
    rig.run(2)
    assert before is None, "what it said was of another lineage"
    assert rig.watch.prompts_finished == 2
    assert not rig.watch.has_all(rig.assembler)
    feed(rig.assembler, whole(0))
    assert not rig.watch.last_batch(rig.assembler), "one prompt was not read yet"
    feed(rig.assembler, whole(1)[:-1])
    assert not rig.watch.last_batch(rig.assembler), "one group is not complete"
    feed(rig.assembler, whole(1)[-1:])
    assert rig.watch.last_batch(rig.assembler)
    assert not rig.watch.used_up(rig.assembler)
    batch = rig.assembler.cut(0, 8, allow_smaller=True)
    assert batch is not None
    rig.assembler.mark_trained(batch)
    assert rig.watch.used_up(rig.assembler)
    rig.step = 1
    rig.run(50)
    assert rig.notices() == []


def test_an_engine_is_ready_when_heard_lately_in_a_serving_phase() -> None:
    """Case 40."""
    rig = Rig()
    assert not rig.watch.engine_ready
    events, _ = rig.stages["rollout"]
    events.enter("waiting_for_weights")
    rig.watch.poll()
    assert not rig.watch.engine_ready
    events.enter("generating")
    rig.watch.poll()
    seen = [rig.watch.engine_ready]
    rig.clock.advance(3.5)
    rig.watch.poll()
    seen.append(rig.watch.engine_ready)
    events.heartbeat()
    rig.watch.poll()
    seen.append(rig.watch.engine_ready)
    events.notice("stopped")
    rig.watch.poll()
    seen.append(rig.watch.engine_ready)
    assert seen == [True, False, True, False]


def test_events_of_the_past_say_nothing_about_the_present() -> None:
    rig = Rig()
    rig.run(1)
    later = UpstreamWatch(rig.context, settings=LearnerSettings(), lineage=1)
    later.poll()
    assert not later.engine_ready


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_heartbeat_with_numbers_that_are_none_says_nothing_of_the_end(value: float) -> None:
    rig = Rig()
    events, metrics = rig.stages["prompts"]
    metrics.gauge("groups_admitted", value)
    metrics.gauge("version_lineage", value)
    events.enter("finished")
    rig.run(2)
    assert rig.watch.prompts_finished is None


def test_events_are_caught_up_with_though_a_poll_gives_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    poll = MemoryReader.poll
    monkeypatch.setattr(
        MemoryReader, "poll", lambda self, most, *, deadline: poll(self, min(most, 64), deadline=deadline)
    )
    events, metrics = rig.stages["prompts"]
    for _ in range(300):
        events.heartbeat()
    metrics.gauge("groups_admitted", 7)
    metrics.gauge("version_lineage", 1)
    events.enter("finished")
    events.heartbeat()
    rig.watch.poll()
    assert rig.watch.prompts_finished == 7
