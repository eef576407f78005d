"""The books balance for any order, copy and loss of records, and across crashes (promises 1, 2, 3 and 7).

A small world: a log with everything that goes wrong in it, a learner that reads it in a random order, and a ledger and
checkpoint that survive when the learner does not.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from consumers.learner.assembler import Assembler
from consumers.learner.outcomes import OutcomeDraft
from pipeline.history import ClosedSet, LedgerView
from schemas.records import LineageStarted, Outcome, PromptGroup, Record, Reward, Sample, Version
from tests.unit.consumers.learner.material import P, Topics, assembler, prompt, reward, sample, version
from topics.clock import ManualClock

NUM_GROUPS = 24
SIZE = 3


def group_records(rng: random.Random, number: int, *, published: list[Version]) -> list[Record]:
    """A group as a flaky fleet leaves it: attempts that stop half-way, failures, copies, losses, late swaps."""
    records: list[Record] = []
    for attempt in ("a", "b")[: rng.choice((1, 1, 1, 2))]:
        recent = published[-rng.randint(1, 4) :]
        for member in range(SIZE):
            if rng.random() < 0.06:
                continue
            logprobs = (float("nan"), -1.0) if rng.random() < 0.02 else (-0.5, -0.5)
            failure = "engine_failed" if rng.random() < 0.02 else None
            births = recent[:2]
            if rng.random() < 0.03:
                births = [Version(lineage=published[-1].lineage, step=published[-1].step + 50)]
            records.append(sample(number, member, attempt=attempt, born=births, logprobs=logprobs, failure=failure))
            if failure is None and rng.random() > 0.03:
                value = None if rng.random() < 0.02 else 1.0
                records.append(
                    reward(number, member, attempt=attempt, value=value, failure=None if value else "timeout")
                )
    records += [each for each in records if rng.random() < 0.15]
    rng.shuffle(records)
    return records


@dataclass
class World:
    """What survives the learner, and the learner."""

    topics: Topics
    rng: random.Random
    mode: str
    eta: int = 2
    clock: ManualClock = field(default_factory=ManualClock)
    ledger: LedgerView = field(default_factory=lambda: LedgerView(P))
    outcomes: list[Outcome] = field(default_factory=list)
    published: list[Version] = field(default_factory=list)
    num_prompts: int = 0
    in_flight: list[list[Record]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.topics.logs:
            self.topics.logs = {(topic, part): [] for topic in ("prompts", "samples", "rewards") for part in range(P)}
        self.checkpoint: tuple[int, int, ClosedSet, dict[tuple[str, int], int]] = (0, 0, ClosedSet(), {})
        self.start()

    def start(self) -> None:
        """Begin a lineage from the checkpoint."""
        parent, step, closed, positions = self.checkpoint
        self.lineage = self.ledger.lineages.current + 1
        for partition in range(P):
            self.ledger.add(
                partition,
                LineageStarted(
                    run="r",
                    lineage=self.lineage,
                    parent=parent,
                    branch_step=step,
                    seq=0,
                    holder="h",
                    started_unix_ms=0,
                ),
            )
        assert self.ledger.closed == closed, "the checkpoint and the surviving ledger agree"
        self.step = step
        self.read = {place: positions.get(place, 0) for place in self.topics.logs}
        self.learner: Assembler = assembler(
            clock=self.clock,
            eta=self.eta,
            on_stale=self.mode,
            tree=self.ledger.lineages,
            closed=closed,
            step=step,
        )
        self.published.append(Version(lineage=self.lineage, step=step))
        self.save()  # as after the first publish

    def produce(self) -> None:
        """The fleet: begin a group, or write a record of one that was begun."""
        if len(self.in_flight) < 5 and self.num_prompts < NUM_GROUPS:
            self.topics.append(prompt(self.num_prompts, size=SIZE))
            self.in_flight.append(group_records(self.rng, self.num_prompts, published=self.published))
            self.num_prompts += 1
        elif self.in_flight:
            other = self.rng.randrange(P) if self.rng.random() < 0.05 else None  # a copy may land anywhere
            records = self.rng.choice(self.in_flight)
            if records:
                self.topics.append(records.pop(), partition=other)
            self.in_flight = [each for each in self.in_flight if each]

    def save(self) -> None:
        """A checkpoint."""
        self.checkpoint = (self.lineage, self.step, self.learner.closed, self.learner.positions(self.read))

    def poll(self) -> None:
        """Read some records of one partition."""
        place = self.rng.choice(sorted(self.topics.logs))
        log, at = self.topics.logs[place], self.read[place]
        taken = log[at : at + self.rng.randint(1, 12)]
        self.learner.add_all(taken)
        self.read[place] = at + len(taken)

    def write(self, drafts: list[OutcomeDraft], *, step: int) -> None:
        for draft in drafts:
            outcome = Outcome(
                run="r",
                group=draft.group,
                lineage=self.lineage,
                step=step,
                seq=0,
                result=draft.result,
                reason=draft.reason,
                attempt=draft.attempt,
                members=draft.members,
                closed_unix_ms=0,
            )
            self.outcomes.append(outcome)
            self.ledger.add(draft.group % P, outcome)

    def train(self, num_groups: int, *, allow_smaller: bool = False) -> bool:
        self.learner.evict(self.step)
        batch = self.learner.cut(self.step, num_groups, allow_smaller=allow_smaller)
        if batch is None:
            return False
        if self.rng.random() < 0.05 and not allow_smaller:
            self.start()  # killed between the cut and the transaction
            return False
        assert self.mode == "train" or batch.max_age <= self.eta
        for group in batch.groups:
            assert len({member.sample.attempt for member in group.members}) == 1
            assert len(group.members) == SIZE
            for member in group.members:
                birth = min(run.version.step for run in member.sample.version_runs)
                assert member.age == self.step - birth
                assert member.reward == 1.0
        self.learner.mark_trained(batch)
        self.write(self.learner.take_outcomes(), step=batch.step)
        self.step = batch.step
        self.published.append(Version(lineage=self.lineage, step=self.step))
        if self.rng.random() < 0.5:
            self.save()
        return True

    def pass_time(self, seconds: float) -> None:
        self.learner.tick(engine_ready=True)
        self.clock.advance(seconds)
        self.learner.tick(engine_ready=True)
        self.learner.close_expired()
        if self.rng.random() < 0.7:
            self.write(self.learner.take_outcomes(), step=self.step + 1)

    def check(self) -> None:
        """The books: every group read is open or has one outcome that survives, and no id is trained twice."""
        alive = [o for o in self.outcomes if self.ledger.lineages.survives(o.lineage, o.step)]
        per_group = Counter(outcome.group for outcome in alive)
        assert set(per_group.values()) <= {1}
        assert {n for n in range(NUM_GROUPS) if self.ledger.is_closed(n)} == set(per_group)
        assert self.learner.closed == self.ledger.closed
        for outcome in alive:
            assert [member.member for member in outcome.members] == list(range(SIZE))
        prompts = {
            each.record.group
            for (topic, part), log in self.topics.logs.items()
            if topic == "prompts"
            for each in log[: self.read[topic, part]]
            if isinstance(each.record, PromptGroup)
        }
        open_groups = self.learner.num_unclosed + self.learner.num_unwritten
        known = prompts | set(per_group)
        assert len(known) == open_groups + len(per_group)
        assert self.learner.num_seen == len(known)

    def finish(self) -> None:
        """Read all, train all, let every deadline end."""
        while self.in_flight or (self.published and 0 < self.num_prompts < NUM_GROUPS):
            self.produce()
        for place, log in self.topics.logs.items():
            self.learner.add_all(log[self.read[place] :])
            self.read[place] = len(log)
        while self.train(4, allow_smaller=True):
            pass
        self.learner.tick(engine_ready=True)
        self.clock.advance(101)
        self.learner.tick(engine_ready=True)
        self.learner.close_expired()
        while self.train(4, allow_smaller=True):
            pass
        self.write(self.learner.take_outcomes(), step=self.step + 1)


def run_world(seed: int, *, mode: str) -> World:
    rng = random.Random(seed)
    world = World(topics=Topics(), rng=rng, mode=mode)
    for _ in range(400):
        action = rng.random()
        if action < 0.5:
            world.produce()
        elif action < 0.8:
            world.poll()
        elif action < 0.95:
            world.train(rng.randint(1, 3))
        elif action < 0.99:
            world.pass_time(rng.choice((1.0, 20.0, 60.0)))
        else:
            world.start()
        world.check()
    world.finish()
    world.check()
    return world


@pytest.mark.parametrize("mode", ["drop", "wait", "train"])
@pytest.mark.parametrize("seed", range(40))
def test_every_id_has_one_outcome_in_the_surviving_history(seed: int, mode: str) -> None:
    world = run_world(seed, mode=mode)
    assert world.learner.num_unclosed == 0
    assert world.ledger.num_closed == NUM_GROUPS
    assert world.learner.buffered_bytes == 0
    assert world.learner.positions(world.read) == world.read


def test_the_worlds_are_not_all_alike() -> None:
    """Guards the test above: crashes, void outcomes, trained and dropped groups do occur in it."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        world = run_world(seed, mode="drop")
        seen["lineages"] += world.lineage - 1
        for outcome in world.outcomes:
            alive = world.ledger.lineages.survives(outcome.lineage, outcome.step)
            seen[f"{outcome.result} {'alive' if alive else 'void'}"] += 1
            seen.update(f"member {m.reason}" for m in outcome.members if m.reason is not None)
    reasons = ("stale", "abandoned_branch", "future_version", "never_arrived", "group_dropped", "not_scored")
    results = ("lineages", "trained alive", "trained void", "dropped alive", "dropped void")
    for what in (*results, *(f"member {reason}" for reason in reasons)):
        assert seen[what] > 0, (what, seen)
    assert seen["trained alive"] > 20


def trainable(topics: Topics) -> set[int]:
    """Groups with a whole and valid attempt, worked out from the log alone."""
    parts: dict[tuple[int, str], set[str]] = {}
    for log in topics.logs.values():
        for each in log:
            if isinstance(each.record, Sample | Reward):
                part = f"{type(each.record).__name__} {each.record.member}"
                parts.setdefault((each.record.group, each.record.attempt), set()).add(part)
    whole = {f"{kind} {member}" for kind in ("Sample", "Reward") for member in range(SIZE)}
    return {group for (group, _), found in parts.items() if found == whole}


def partial_log(seed: int) -> Topics:
    """Whole groups, and groups whose attempts all stop short, in random order, with copies."""
    rng, topics = random.Random(seed), Topics()
    records: list[Record] = []
    for number in range(NUM_GROUPS):
        whole = [
            each
            for member in range(SIZE)
            for each in (sample(number, member, attempt="w"), reward(number, member, attempt="w"))
        ]
        short = [sample(number, member, attempt="s") for member in range(rng.randint(0, SIZE - 1))]
        records += [*(whole if rng.random() < 0.7 else whole[: rng.randint(0, 5)]), *short]
    records += rng.sample(records, 20)
    rng.shuffle(records)
    for number in range(NUM_GROUPS):
        topics.append(prompt(number, size=SIZE))
    topics.extend(records)
    return topics


@pytest.mark.parametrize("seed", range(30))
def test_crashes_do_not_change_what_is_trained_in_the_end(seed: int) -> None:
    topics = partial_log(seed)
    expected = trainable(topics)
    for crash_rate in (0.0, 0.1):
        rng = random.Random(seed)
        world = World(topics=topics, rng=rng, mode="train")
        for _ in range(150):
            action = rng.random()
            if action < crash_rate:
                world.start()
            elif action < 0.8:
                world.poll()
            else:
                world.train(2)
            world.check()
        world.finish()
        alive = [o for o in world.outcomes if world.ledger.lineages.survives(o.lineage, o.step)]
        assert {outcome.group for outcome in alive if outcome.result == "trained"} == expected
        trained = Counter(
            (outcome.group, member.member)
            for outcome in alive
            for member in outcome.members
            if member.result == "trained"
        )
        assert set(trained.values()) == {1}
        assert len(trained) == SIZE * len(expected)


def test_born_in_a_lineage_that_was_left_means_dropped_after_the_restart() -> None:
    topics = Topics()
    for member in range(SIZE):
        topics.extend([sample(0, member, born=version(0)), reward(0, member)])
        topics.extend([sample(4, member, born=version(1)), reward(4, member)])
    topics.extend([prompt(0, size=SIZE), prompt(4, size=SIZE)])
    world = World(topics=topics, rng=random.Random(0), mode="drop")
    for log in topics.logs.values():
        world.learner.add_all(log)
    batch = world.learner.cut(0, 1)
    assert batch is not None
    world.learner.mark_trained(batch)
    world.write(world.learner.take_outcomes(), step=1)
    world.start()  # from the checkpoint at step 0: step 1 of lineage 1 never was
    for log in topics.logs.values():
        world.learner.add_all(log)
    batch = world.learner.cut(0, 2, allow_smaller=True)
    assert batch is not None
    assert [group.group for group in batch.groups] == [0], "trained again, as its first training is void"
    (draft,) = world.learner.take_outcomes()
    assert {member.reason for member in draft.members} == {"abandoned_branch"}
