"""Prompts to samples on a real broker, each producer in its own process, killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from pipeline.exit_codes import ExitCode
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.tokens import load_or_create_token
from schemas.packed import unpack_i32
from schemas.records import PromptGroup, Sample
from tests.conftest import DATA_PARTITIONS
from tests.unit.producers.world import World, events_of, records_of
from topics.catalog import PROMPTS, SAMPLES
from topics.clock import SystemClock
from topics.kafka import KafkaLog

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
NUM_GROUPS = 60
RUN = {
    "partitions": DATA_PARTITIONS,
    "groups_per_step": 4,
    "group_size": 2,
    "max_staleness": 2,
    "max_steps": NUM_GROUPS,
    "heartbeat_s": 0.2,
}


@dataclass
class Processes:
    """Producers of one run in processes of their own, and what the rest of the run does."""

    world: World
    bootstrap: str
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)

    def start(self, stage: str, **settings: object) -> subprocess.Popen[str]:
        module = "tests.integration.producer_process"
        run = self.world.run.model_dump_json()
        command = [sys.executable, "-m", module, stage, self.bootstrap, run, json.dumps(settings)]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.running.append(process)
        return process

    def prompts(self) -> subprocess.Popen[str]:
        path = self.world.folder / "prompts.jsonl"
        path.write_text(
            "".join(json.dumps({"question": f"q{row}", "answer": str(row)}) + "\n" for row in range(NUM_GROUPS))
        )
        source = {"files": [str(path)], "epochs": 1, "shuffle": False}
        return self.start("prompts", source=source, max_tokens=40, batch_groups=3)

    def rollout(self, slot: int) -> subprocess.Popen[str]:
        return self.start(
            "rollout",
            engine="tests.integration.producer_process:slow_backend",
            max_sequences=8,
            session_timeout_s=6.0,
            slot=slot,
        )

    def samples(self) -> list[Sample]:
        return [record for record in records_of(self.world.log, SAMPLES) if isinstance(record, Sample)]

    def complete(self) -> set[int]:
        """Groups with an attempt whose members are all there."""
        attempts = Counter((sample.group, sample.attempt) for sample in self.samples())
        return {group for (group, _), count in attempts.items() if count == 2}

    def learn(self) -> int:
        """Close what is complete, as a learner does; gives how many groups are closed."""
        new = sorted(self.complete() - self.closed)
        if new:
            self.world.close(*new)
            self.closed.update(new)
        return len(self.closed)

    def lag(self) -> int | None:
        lags = self.world.log.admin().lag(f"rlweave.{self.world.log.run}.rollout", [PROMPTS])
        return None if any(each.lag_records is None for each in lags) else sum(each.lag_records or 0 for each in lags)


@pytest.fixture
def processes(kafka_log: KafkaLog, services: ServicesInfo, tmp_path: Path) -> Iterator[Processes]:
    world = World(log=kafka_log, folder=tmp_path, clock=SystemClock(), fields=RUN)
    token = load_or_create_token(world.run.folder / "peer-token")
    peer = PeerServer(PeerSettings(stores=[world.store], token=token))
    world.seeds = (peer.start(),)
    made = Processes(world, services.kafka_bootstrap)
    yield made
    for process in made.running:
        process.kill()
        process.communicate(timeout=20)
    peer.stop()


def wait_until(done: Callable[[], bool], *, what: str, limit_s: float = 90.0) -> None:
    """Wait for a condition; it is asked again at once, and asking takes time itself."""
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(0.05)


@pytest.mark.slow
def test_kill_9_of_both_producers_loses_nothing(processes: Processes) -> None:
    world = processes.world
    world.lineage(1)
    world.publish(1, 7, command=True)
    first_prompts, first = processes.prompts(), processes.rollout(0)
    wait_until(lambda: processes.learn() >= 12, what="the first groups")
    first_prompts.kill()
    first.kill()
    first.wait(timeout=60)
    first_prompts.wait(timeout=60)
    at_kill = len(processes.complete())
    assert at_kill < NUM_GROUPS, "killed too late to show anything"
    prompts, second = processes.prompts(), processes.rollout(1)
    wait_until(lambda: processes.learn() == NUM_GROUPS, what="all groups")

    written = [record for record in records_of(world.log, PROMPTS) if isinstance(record, PromptGroup)]
    assert sorted(record.group for record in written) == list(range(NUM_GROUPS))
    assert sorted(record.source_index for record in written) == list(range(NUM_GROUPS))
    wait_until(lambda: processes.lag() == 0, what="every prompt acknowledged")
    for sample in processes.samples():
        assert set(unpack_i32(sample.completion_tokens).tolist()) == {7}
        assert [run.version.step for run in sample.version_runs] == [7]

    wait_until(lambda: prompts_are_finished(world), what="the end of the source")
    for process in (prompts, second):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == ExitCode.OK


def prompts_are_finished(world: World) -> bool:
    return "finished" in {details.get("phase") for details in events_of(world.log, "heartbeat")}


@pytest.mark.slow
def test_two_rollout_producers_share_the_work_and_sigterm_gives_back(processes: Processes) -> None:
    world = processes.world
    world.lineage(1)
    world.publish(1, 0, command=True)
    processes.prompts()
    first, second = processes.rollout(0), processes.rollout(1)

    def both_work() -> bool:
        processes.learn()
        return len({sample.producer for sample in processes.samples()}) == 2

    wait_until(both_work, what="samples of both")
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=60) == ExitCode.OK
    wait_until(lambda: processes.learn() == NUM_GROUPS, what="all groups")
    attempts = Counter(sample.attempt for sample in processes.samples())
    assert set(attempts.values()) == {2}, "an orderly stop leaves no half-written group"
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=60) == ExitCode.OK


def test_a_missing_prompt_file_ends_with_the_reason(processes: Processes) -> None:
    process = processes.start("prompts", source={"files": ["/nowhere/prompts.jsonl"]})
    _, said = process.communicate(timeout=60)
    assert process.returncode == ExitCode.USAGE
    assert "error: prompt file /nowhere/prompts.jsonl cannot be read" in said
    assert "Traceback" not in said
