"""Groups that a rollout producer gives up, and others that go on with them: by retirement and by a pack command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from pipeline.engines.base import GenerationRequest
from pipeline.engines.scripted import ScriptedEngine
from producers.rollout.stage import RolloutStage
from schemas.errors import DeadlineExceeded, LogUnavailable
from schemas.packed import unpack_i32
from schemas.records import Partial, Sample, Version
from schemas.validation import check_sample
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.test_rollout import begin, committed, samples
from tests.unit.producers.world import World, events_of, until
from topics.catalog import PARTIALS
from topics.clock import Deadline, ManualClock

STOP_S = 5.0


def partials(world: World) -> list[Partial]:
    return [record for record in world.read(PARTIALS) if isinstance(record, Partial)]


def retired(rollouts: Rollouts, stage: RolloutStage) -> None:
    """Ask it to leave, and see it out."""
    rollouts.context_of(stage).retire.request("test")
    until(stage, lambda: stage.finished, what="the end of a retired process")
    stage.stop(deadline=Deadline.after(STOP_S))


def uneven(request: GenerationRequest) -> int:
    """Member 0 of a group is short, member 1 is long."""
    return 5 if request.seed % 2 == 0 else 30


def by_member(world: World, group: int) -> dict[int, Sample]:
    return {sample.member: sample for sample in samples(world) if sample.group == group}


def test_a_retired_process_hands_its_groups_over_and_another_goes_on_from_the_tokens_made(
    rollouts: Rollouts, clock: ManualClock
) -> None:
    world = begin(rollouts)
    world.prompts(*range(3), max_tokens=30)
    first = ScriptedEngine(length=uneven)
    stage = rollouts.make(first, hand_over_s=0)
    until(stage, lambda: rollouts.metrics_of(stage).get("tokens_generated") == 15, what="the end of the short ones")
    for _ in range(4):
        stage.turn()
    clock.advance(2.0)
    retired(rollouts, stage)
    assert samples(world) == [], "no group was through"
    given = {partial.group: partial for partial in partials(world)}
    assert given.keys() == {0, 1, 2}
    lengths = [[len(member.tokens) // 4 for member in partial.members] for partial in given.values()]
    assert all(short == 5 and 5 < long < 30 for short, long in lengths)
    world.publish(1, 1, command=True)
    second = ScriptedEngine(length=uneven)
    successor = rollouts.make(second, slot=1)
    until(successor, lambda: len(samples(world)) == 6, what="the rest")
    assert rollouts.metrics_of(successor)["groups_resumed"] == 3
    for group, (_, num_before) in zip(given, lengths, strict=True):
        members = by_member(world, group)
        assert {member.attempt for member in members.values()}.isdisjoint({given[group].attempt})
        assert len({member.attempt for member in members.values()}) == 1
        short, long = members[0], members[1]
        assert [(run.num_tokens, run.version.step) for run in short.version_runs] == [(5, 0)]
        assert [(run.num_tokens, run.version.step) for run in long.version_runs] == [
            (num_before, 0),
            (30 - num_before, 1),
        ]
        assert unpack_i32(long.completion_tokens).tolist() == [0] * num_before + [1] * (30 - num_before)
        assert long.completion_text == " ".join(str(token) for token in unpack_i32(long.completion_tokens))
        assert 2000 <= long.finished_unix_ms - long.started_unix_ms < 3000, "time in both engines"
        for sample in (short, long):
            check_sample(sample, group_size=2)
    until(successor, lambda: sum(committed(world).values()) == 3, what="commits")
    assert rollouts.metrics_of(successor)["tokens_generated"] == sum(30 - before for _, before in lengths)


def test_time_to_finish_is_given_first(rollouts: Rollouts, clock: ManualClock) -> None:
    world = begin(rollouts)
    world.prompts(0, max_tokens=10)
    world.prompts(1, max_tokens=900)
    engine = ScriptedEngine()
    stage = rollouts.make(engine, hand_over_s=5.0)
    until(stage, lambda: engine.num_running == 4)
    rollouts.context_of(stage).retire.request("test")
    until(stage, lambda: len(samples(world)) == 2, what="the short group")
    assert partials(world) == []
    clock.advance(6.0)
    until(stage, lambda: stage.finished)
    assert [partial.group for partial in partials(world)] == [1]


def test_what_was_written_behind_a_group_handed_over_is_not_made_twice(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    engine = ScriptedEngine()
    stage = rollouts.make(engine, hand_over_s=0)
    world.prompts(0, max_tokens=900)
    world.prompts(4, 8, 1, max_tokens=3)  # 4 and 8 are behind 0 on its partition
    until(stage, lambda: len(samples(world)) == 6, what="the short groups")
    retired(rollouts, stage)
    successor = rollouts.make(ScriptedEngine(tokens_per_step=100), slot=1)
    until(successor, lambda: sum(committed(world).values()) == 4, what="all acknowledged")
    assert Counter((sample.group, sample.member) for sample in samples(world)).most_common(1)[0][1] == 1
    assert len(samples(world)) == 8


def test_a_partial_beyond_the_bound_or_of_a_branch_left_is_not_gone_on_with(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0, 1, max_tokens=40)
    stage = rollouts.make(ScriptedEngine(), hand_over_s=0)
    until(stage, lambda: rollouts.metrics_of(stage).get("running_sequences") == 4)
    retired(rollouts, stage)
    assert len(partials(world)) == 2
    for step in range(1, 4):  # the bound is 2
        world.publish(1, step, command=True)
    successor = rollouts.make(ScriptedEngine(tokens_per_step=50), slot=1)
    until(successor, lambda: len(samples(world)) == 4)
    assert "groups_resumed" not in rollouts.metrics_of(successor)
    assert {run.version for sample in samples(world) for run in sample.version_runs} == {Version(lineage=1, step=3)}


def test_groups_whose_prompt_is_lost_to_nobody_without_a_partial(rollouts: Rollouts) -> None:
    """The hint expired: made afresh."""
    world = begin(rollouts)
    world.prompts(0, max_tokens=40)
    stage = rollouts.make(ScriptedEngine(), hand_over_s=0)
    until(stage, lambda: rollouts.metrics_of(stage).get("running_sequences") == 2)
    retired(rollouts, stage)
    successor = rollouts.make(ScriptedEngine(tokens_per_step=50), slot=1, partials_max_bytes=1)
    until(successor, lambda: len(samples(world)) == 2)
    assert "groups_resumed" not in rollouts.metrics_of(successor)


Pair = tuple[RolloutStage, RolloutStage, ScriptedEngine, ScriptedEngine]


@pytest.fixture
def pair(rollouts: Rollouts) -> Pair:
    """Two producers with groups of long completions each, and no prompts left."""
    world = begin(rollouts)
    engines = (ScriptedEngine(), ScriptedEngine())
    first = rollouts.make(engines[0])
    until(first, lambda: first._started().weights.may_take_prompts)
    second = rollouts.make(engines[1], slot=1)
    until(second, lambda: second._started().weights.may_take_prompts)
    world.prompts(*range(4), max_tokens=900)
    both(first, second, lambda: engines[0].num_running == 4 == engines[1].num_running)
    return first, second, *engines


def both(first: RolloutStage, second: RolloutStage, condition: Callable[[], bool]) -> None:
    """Turn the two until the condition holds."""
    for _ in range(3000):
        if condition():
            return
        first.turn()
        second.turn()
    raise AssertionError("it did not come about")


def pack(world: World, giver: RolloutStage, taker: RolloutStage) -> None:
    names = (giver._context.instance, taker._context.instance)
    world.command("pack", targets=names[:1], waves=(names[1:],))


def test_a_pack_command_empties_one_engine_into_another(rollouts: Rollouts, pair: Pair) -> None:
    world = rollouts.world
    giver, taker, from_, to = pair
    pack(world, giver, taker)
    both(giver, taker, lambda: from_.num_running == 0 and to.num_running == 8)
    assert sum(committed(world).values()) == 0, "the prompts are the giver's still"
    assert rollouts.metrics_of(giver)["prompts_in_flight"] == 2
    to.tokens_per_step = 100
    both(giver, taker, lambda: sum(committed(world).values()) == 4)
    assert len(samples(world)) == 8
    assert {sample.producer for sample in samples(world)} == {taker._context.instance}
    assert len({sample.attempt for sample in samples(world)}) == 4
    for _ in range(5):
        giver.turn()
    assert len(partials(world)) == 4, "two groups, and the word that they are written: the command acts once"


def test_the_giver_is_free_for_new_prompts_and_is_told_of_outcomes(rollouts: Rollouts, pair: Pair) -> None:
    world = rollouts.world
    giver, taker, from_, to = pair
    held = [group for group in range(4) if giver._started().generator.holds(group)]
    pack(world, giver, taker)
    both(giver, taker, lambda: from_.num_running == 0 and to.num_running == 8)
    world.close(*held)  # by another attempt, say
    both(giver, taker, lambda: to.num_running == 4)
    both(giver, taker, lambda: rollouts.metrics_of(giver)["prompts_in_flight"] == 0)
    assert from_.num_running == 0


def test_a_taker_that_is_gone_costs_time_only(rollouts: Rollouts, pair: Pair, clock: ManualClock) -> None:
    world = rollouts.world
    giver, taker, from_, _ = pair
    pack(world, giver, taker)
    until(giver, lambda: from_.num_running == 0 and len(partials(world)) == 2)
    for _ in range(3):
        giver.turn()
    assert from_.num_running == 0
    clock.advance(121.0)  # and the taker never turns
    until(giver, lambda: from_.num_running == 4, what="its own groups")
    assert [event["taker"] for event in events_of(world.log, "lent_too_long")] == [taker._context.instance] * 2
    assert rollouts.metrics_of(giver)["groups_resumed"] == 2


def test_a_taker_that_retires_gives_back_what_it_took_over(rollouts: Rollouts, pair: Pair, clock: ManualClock) -> None:
    world = rollouts.world
    giver, taker, from_, to = pair
    pack(world, giver, taker)
    both(giver, taker, lambda: from_.num_running == 0 and to.num_running == 8)
    rollouts.context_of(taker).retire.request("test")
    taker.turn()
    clock.advance(6.0)
    until(taker, lambda: taker.finished)
    taker.stop(deadline=Deadline.after(STOP_S))
    from_.tokens_per_step = 100
    until(giver, lambda: len(samples(world)) == 8, what="the groups of both")
    assert rollouts.metrics_of(giver)["groups_resumed"] == 4
    until(giver, lambda: sum(committed(world).values()) == 4)


def test_a_giver_that_is_killed_loses_nothing(rollouts: Rollouts, pair: Pair) -> None:
    """Its prompts go to the taker, which knows that it works on them already."""
    world = rollouts.world
    giver, taker, from_, to = pair
    pack(world, giver, taker)
    both(giver, taker, lambda: from_.num_running == 0 and to.num_running == 8)
    giver._started().weights.close()
    giver._started().queue.close()
    rollouts.stages.remove(giver)
    until(taker, lambda: rollouts.metrics_of(taker)["prompts_in_flight"] == 4, what="the prompts of both")
    assert to.num_running == 8
    to.tokens_per_step = 100
    until(taker, lambda: sum(committed(world).values()) == 4)
    assert len(samples(world)) == 8


class Deaf(ScriptedEngine):
    """Can neither hand over nor go on."""

    hands_over = False

    def continues(self, *_: object, **__: object) -> bool:
        return False


def test_an_engine_that_cannot_go_on_makes_the_group_afresh_and_one_that_cannot_hand_over_finishes(
    rollouts: Rollouts, clock: ManualClock
) -> None:
    world = begin(rollouts)
    world.prompts(0, max_tokens=40)
    stage = rollouts.make(ScriptedEngine(), hand_over_s=0)
    until(stage, lambda: rollouts.metrics_of(stage).get("running_sequences") == 2)
    retired(rollouts, stage)
    deaf = Deaf()
    successor = rollouts.make(deaf, slot=1, hand_over_s=0)
    until(successor, lambda: deaf.num_running == 2)
    assert "groups_resumed" not in rollouts.metrics_of(successor)
    (told,) = events_of(world.log, "partial_unused")
    assert "cannot go on" in told["error"]
    rollouts.context_of(successor).retire.request("test")
    clock.advance(100.0)
    until(successor, lambda: successor.finished)
    assert len(samples(world)) == 2
    assert len(partials(world)) == 1
    assert PARTIALS.retention_ms < 3_600_000


def test_a_group_offered_and_delivered_before_there_are_weights_is_taken_on_once(
    rollouts: Rollouts, pair: Pair
) -> None:
    """Taken on twice, the first delivery of its prompt would be forgotten, and never acknowledged."""
    world = rollouts.world
    giver, other, *_ = pair
    engine = ScriptedEngine()
    taker = rollouts.make(engine, slot=2)  # cold: it has not turned yet
    pack(world, giver, taker)
    until(giver, lambda: len(partials(world)) == 2)
    for gone in (giver, other):
        gone._started().weights.close()
        gone._started().queue.close()
        rollouts.stages.remove(gone)
    until(taker, lambda: engine.num_running == 8, what="the groups of both")
    engine.tokens_per_step = 100
    until(taker, lambda: sum(committed(world).values()) == 4)
    assert len(samples(world)) == 8
    assert len({sample.attempt for sample in samples(world)}) == 4


def test_a_broker_that_is_away_while_partitions_move_costs_the_hint_only(
    rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions move just then; the ends of the control topics are asked for to hear of groups given up."""
    world = begin(rollouts)
    world.prompts(0)
    stage = rollouts.make(ScriptedEngine())

    def away() -> dict[tuple[str, int], int]:
        raise LogUnavailable("no broker answered")

    monkeypatch.setattr(stage._control._reader, "end_positions", away)
    until(stage, lambda: len(samples(world)) == 2)
    assert partials(world) == []


def test_outcomes_heard_before_the_time_was_over_are_told_later(rollouts: Rollouts, clock: ManualClock) -> None:
    """Else what is in flight for them goes on to its end, and a lent prompt waits for nothing."""
    world = begin(rollouts)
    control = rollouts.make(ScriptedEngine())._control
    reader = control._reader
    assert reader is not None
    world.close(7)
    ends = reader.end_positions()
    far = dict.fromkeys(ends, max(ends.values()) + 1_000)
    reader.end_positions = lambda: far  # type: ignore[method-assign]
    deadline = Deadline.after(1.0, clock=clock)
    take = control._take

    def slow(*args: object, **options: object) -> None:
        take(*args, **options)  # type: ignore[arg-type]
        clock.advance(0.6)

    control._take = slow  # type: ignore[method-assign]
    with pytest.raises(DeadlineExceeded):
        control.catch_up(deadline=deadline)
    assert [outcome.group for outcome in control.poll(wait_s=0.0)] == [7]
