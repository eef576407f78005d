"""Two learners of one run: one works, the other is refused kindly; one that was frozen writes nothing afterwards."""

from __future__ import annotations

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from consumers.learner.holder import RunHolder
from consumers.learner.ledger import Ledger
from ops.services.model import ServicesInfo
from pipeline.exit_codes import ExitCode
from pipeline.redis_client import RedisClient
from pipeline.settings import RunSettings
from pipeline.stage import make_context
from schemas.errors import Fenced, LeaseHeld
from schemas.records import LineageStarted
from tests.e2e.processes import Process, children_of, wait_gone
from tests.e2e.support import Run, Watch, check_books, read_all, small_run
from topics.catalog import EVENTS, LEDGER, WEIGHTS
from topics.clock import Clock, Deadline, SystemClock
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog
from topics.log import WriterSettings

pytestmark = pytest.mark.integration
ROUNDS = 20
PROCESS_ROUNDS = 1  # a learner takes some 5 s to come up on two cores; what both write is the same in 20 rounds
LEASE_S = 0.4  # of a holder whose renewals stand still
HELD_S = 6.0  # of one that lives: a starved thread renews it in time


class Hasty(SystemClock):
    """Ten times as fast: who waits by it for a lease to end gives up long before the lease can."""

    def monotonic(self) -> float:
        return 10 * super().monotonic()


class Contender:
    """What a learner does to own a run, without a model: lease, fence, lineage."""

    def __init__(self, log: KafkaLog, redis: RedisClient, *, name: str, lease_s: float, clock: Clock) -> None:
        self.name = name
        run = RunSettings(name=log.run, partitions=log.data_partitions)
        self._log = log
        self._context = make_context(log, run=run, stage="learner", instance=name)
        self.holder = RunHolder(replace(self._context, clock=clock), redis, lease_s=lease_s)
        writer = log.writer(WriterSettings(transactional_id=f"rlweave.{log.run}.learner", linger_ms=0.0))
        self.ledger = Ledger(writer, run=log.run, data_partitions=log.data_partitions, clock=SystemClock())

    def contend(self, together: threading.Barrier) -> int | str:
        """The lineage it began, or who was named as the holder."""
        together.wait(timeout=20)
        try:
            self.holder.take()
        except LeaseHeld as error:
            return error.message
        self.ledger.recover(self._log, hooks=self._context.hooks(), deadline=Deadline.after(20))
        return self.ledger.begin_lineage(parent=0, branch_step=0, holder=self.name)

    def leave(self) -> None:
        self.holder.release()
        self.ledger.close(deadline=Deadline.after(10))


@pytest.mark.slow
def test_of_two_that_start_together_exactly_one_works_20_times(services: ServicesInfo, kafka_log: KafkaLog) -> None:
    """Case 30."""
    redis = RedisClient(services.redis_url)
    winners = []
    for number in range(ROUNDS):
        pair = [
            Contender(kafka_log, redis, name=f"learner-{number}-{side}", lease_s=HELD_S, clock=Hasty()) for side in "ab"
        ]
        together = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(Contender.contend, pair, [together, together]))
        won = [each.name for each, result in zip(pair, results, strict=True) if isinstance(result, int)]
        assert len(won) == 1, results
        assert any(isinstance(result, str) and won[0] in result for result in results), results
        assert [result for result in results if isinstance(result, int)] == [number + 1]
        winners += won
        for each in pair:
            each.leave()
    run = RunSettings(name=kafka_log.run, partitions=kafka_log.data_partitions)
    seen = Watch(kafka_log, topics=(LEDGER,))
    seen.to_end()
    seen.close()
    started = [each.record for each in seen.envelopes if isinstance(each.record, LineageStarted)]
    assert [each.holder for each in started if each.lineage > 0] == [each.holder for each in started]
    assert {(each.lineage, each.holder) for each in started} == {(n + 1, name) for n, name in enumerate(winners)}
    assert len(started) == ROUNDS * run.partitions


def test_a_holder_that_slept_past_its_lease_finds_out_before_it_writes(
    services: ServicesInfo, kafka_log: KafkaLog
) -> None:
    """Case 30."""
    redis = RedisClient(services.redis_url)
    alone = threading.Barrier(1)
    first = Contender(kafka_log, redis, name="learner-first", lease_s=LEASE_S, clock=SystemClock())
    assert first.contend(alone) == 1
    first.holder._end.set()  # its renewals stand still, as in a frozen process
    first.holder._thread.join()
    second = Contender(kafka_log, redis, name="learner-second", lease_s=LEASE_S, clock=SystemClock())
    assert second.contend(alone) == 2
    with pytest.raises(Fenced, match="learner-second"):
        first.holder.check()
    with pytest.raises(Fenced):
        first.ledger.begin_lineage(parent=1, branch_step=0, holder="learner-first")
    second.holder.check()
    second.leave()
    first.leave()


@pytest.mark.slow
def test_of_two_processes_one_exits_naming_the_other_and_has_written_nothing(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """Case 30."""
    with small_run(tmp_path, run_name, services=services, model=model) as run:
        peer = run.stage("peer")
        for number in range(PROCESS_ROUNDS):
            pair = [run.stage("learner"), run.stage("learner")]
            watch = run.watch(EVENTS)
            watch.until(partial(_any_ended, pair), what="one to be refused")
            loser, winner = sorted(pair, key=lambda each: each.popen.poll() is None)
            assert loser.wait() == ExitCode.REFUSED, loser.output()
            assert f"-{winner.pid}-" in loser.output(), "the holder is named"
            _until_open(watch, winner, lineage=number + 1)
            watch.close()
            winner.send(signal.SIGTERM)
            assert winner.wait() == 0, winner.output()
            seen = read_all(run, LEDGER, WEIGHTS)
            holders = {each.record.holder for each in seen.envelopes if isinstance(each.record, LineageStarted)}
            assert len(holders) == number + 1
            assert not any(f"-{loser.pid}-" in holder for holder in holders)
            assert [each.version.lineage for each in seen.manifests] == list(range(1, number + 2))
        peer.send(signal.SIGTERM)
        assert peer.wait() == 0


@pytest.mark.slow
def test_a_learner_frozen_past_its_lease_writes_nothing_when_it_wakes(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """Case 30."""
    changes = {"run.max_steps": 12, "learner.checkpoint.every_steps": 2}
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        others = [run.stage(stage) for stage in ("peer", "scheduler", "prompts", "rollout", "reward")]
        watch = run.watch(EVENTS, LEDGER, WEIGHTS)
        first = run.stage("learner")
        watch.until_step(3, by=first)
        first.send(signal.SIGSTOP)
        second = run.stage("learner")
        watch.until_step(4, by=second)
        saved = set(_checkpoints(run))
        committed = _committed(run)
        first.send(signal.SIGCONT)
        assert first.wait() == ExitCode.FENCED, first.output()
        assert {each for each in _checkpoints(run) if each.startswith("1.")} <= saved
        moved = _committed(run)
        assert all(moved[place] >= at for place, at in committed.items()), "offsets went back"
        assert second.wait() == 0, run.outputs()
        for each in others:
            each.send(signal.SIGTERM)
        assert [each.wait() for each in others] == [0] * len(others), run.outputs()
        watch.close()
        _check_nothing_after(check_books(run))


@pytest.mark.slow
def test_of_two_runs_started_in_the_same_moment_one_works_with_its_own_settings(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    """Case 30: the other one exits naming the holder, and its settings are nowhere."""
    with small_run(tmp_path, run_name, services=services, model=model) as run:
        seeds = (1, 2)
        pair = [run.start("up", "--quiet", "--set", f"run.seed={seed}") for seed in seeds]
        watch = run.watch(EVENTS)
        watch.until(partial(_any_ended, pair), what="one to be refused")
        loser, winner = sorted(pair, key=lambda each: each.popen.poll() is None)
        assert loser.wait() == ExitCode.REFUSED, loser.output()
        assert f"process {winner.pid}" in loser.output(), "the holder is named"
        watch.until_step(1)
        watch.close()
        saved = json.loads((run.run_folder / "settings.json").read_text())
        assert saved["run"]["seed"] == seeds[pair.index(winner)]
        stages = list(children_of(winner.pid))
        winner.send(signal.SIGINT)
        assert winner.wait(60) == 0, run.outputs()
        wait_gone(stages, limit_s=60)
        assert read_all(run, LEDGER).ledger.lineages.current == 1


def _any_ended(pair: list[Process]) -> bool:
    return any(each.popen.poll() is not None for each in pair)


def _until_open(watch: Watch, learner: Process, *, lineage: int) -> None:
    def is_open() -> bool:
        events = watch.events("learner", kind="phase_began", name="checkpointing")
        return any(f"-{learner.pid}-" in each.instance for each in events)

    watch.until(is_open, what=f"lineage {lineage} to be published")


def _checkpoints(run: Run) -> list[str]:
    return [path.name for path in (run.run_folder / "checkpoints").iterdir()]


def _committed(run: Run) -> dict[tuple[str, int], int]:
    return RawLog(run.bootstrap).committed(f"rlweave.{run.name}.learner")


def _check_nothing_after(seen: Watch) -> None:
    """Behind the second lineage's beginning there is no record of the first, on any partition."""
    began: set[int] = set()
    for each in seen.envelopes:
        if isinstance(each.record, LineageStarted) and each.record.lineage > 1:
            began.add(each.partition)
        elif each.topic == LEDGER.name and each.partition in began:
            assert getattr(each.record, "lineage", 0) > 1
    versions = [manifest.version for manifest in seen.manifests]
    assert versions == sorted(versions)
