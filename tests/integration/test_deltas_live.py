"""A live loop of learner and engines on deltas: bf16 on the wire, a learning rate of RL, fifty versions.

A real learner, real torch engines, each on a thread of its own, and a real peer; prompts and rewards are written by
hand. One engine is there all the time, one is killed at version 20 and comes back at 25, one joins at version 30.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import torch
from blake3 import blake3
from click.testing import CliRunner

from consumers.learner.settings import LearnerSettings, OptimizerSettings
from consumers.learner.setup import LearnerSetup
from consumers.learner.stage import LearnerStage
from ops.cli.main import cli
from ops.export import export_version
from ops.run_file import RunFile, save_run_file
from ops.services.model import ServicesInfo
from pipeline.engines.backends import Backend, BackendSettings, torch_backend
from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.tiny import make_tiny_model
from pipeline.engines.torch_engine import TorchEngine
from pipeline.model_folder import WEIGHTS_FILE
from pipeline.settings import ModelSettings, RunSettings, WeightsSettings
from pipeline.stage import make_context
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.tokens import load_or_create_token
from producers.rollout.settings import RolloutSettings
from producers.rollout.stage import RolloutSetup, RolloutStage
from schemas.errors import WeightsError
from schemas.records import Manifest, PromptGroup, Reward, Sample, SamplingParams, StageEvent, Version
from topics.catalog import EVENTS, PROMPTS, REWARDS, SAMPLES, WEIGHTS, Topic
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import Log, Reader, ReaderHooks, ReaderSettings, WriterSettings
from topics.memory import MemoryLog

NUM_STEPS = 50
KILLED, BACK, LATE = 20, 25, 30
GROUP_SIZE = 4
HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
DTYPE: Literal["bfloat16"] = "bfloat16"


class Turning:
    """A rollout producer on its thread: members of one consumer group must not wait for each other."""

    def __init__(self, stage: RolloutStage, backend: Backend, *, joined_step: int) -> None:
        self.backend = backend
        self._joined_step = joined_step  # the newest there was
        self._stage = stage
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._done = self._pool.submit(self._turn)

    @property
    def step(self) -> int:
        """Of the version it serves, or looks for since it began."""
        version = self.backend.engine.version
        return self._joined_step if version is None else version.step

    def check(self) -> None:
        """Raises what the stage raised."""
        if self._done.done():
            self._done.result()

    def stop(self) -> None:
        """It writes and acknowledges nothing more."""
        self._stop.set()
        self._pool.shutdown(wait=True)
        self._stage.stop(deadline=Deadline.after(10))

    def _turn(self) -> None:
        self._stage.start(deadline=Deadline.after(30))
        while not self._stop.is_set():
            self._stage.turn()


@dataclass
class Loop:
    """All stages of a run."""

    log: Log
    folder: Path
    model: Path
    engines: list[Turning] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run = RunSettings(
            name=self.log.run,
            dir=self.folder,
            partitions=self.log.data_partitions,
            groups_per_step=1,
            group_size=GROUP_SIZE,
            max_steps=NUM_STEPS,
            max_staleness=100,
            heartbeat_s=60.0,
        )
        self.weights = WeightsSettings(wire_dtype=DTYPE, chunk_bytes=65_536, keep_versions=8)
        store = ChunkStore(self.run.folder / "weights" / "learner", max_bytes=2**30)
        self.peer = PeerServer(PeerSettings(stores=[store], token=load_or_create_token(self.run.folder / "peer-token")))
        url = self.peer.start()
        store.root.mkdir(parents=True, exist_ok=True)
        (store.root.parent / "peer.json").write_text(json.dumps({"url": url, "pid": 1}))
        self.writer = self.log.writer(WriterSettings(linger_ms=0.0))
        self.samples = self.reader(SAMPLES)
        self.manifests_reader = self.reader(WEIGHTS)
        self.manifests: dict[Version, Manifest] = {}
        self.num_prompts = 0
        setup = LearnerSetup(
            settings=LearnerSettings(optimizer=OptimizerSettings(learning_rate=1e-5)),
            model=ModelSettings(path=self.model),
            weights=self.weights,
            rewards={"odd": 1.0},
            lease_s=30.0,
        )
        self.learner = LearnerStage(make_context(self.log, run=self.run, stage="learner"), setup)
        self.learner.start(deadline=Deadline.after(30))

    def reader(self, topic: Topic) -> Reader:
        return self.log.reader(ReaderSettings(topics=(topic,)), hooks=HOOKS)

    def join(self, slot: int) -> Turning:
        """An engine from nothing but what its slot's folder has."""
        settings = BackendSettings(model=ModelSettings(path=self.model, dtype=DTYPE), max_sequences=16, num_threads=1)
        backend = torch_backend(settings)
        setup = RolloutSetup(
            rollout=RolloutSettings(scheduler_silence_s=0.01, stagger_s=0.001, fetch_retry_s=0.05),
            model=ModelSettings(path=self.model),
            weights=self.weights,
            slot=slot,
            backend=backend,
        )
        stage = RolloutStage(make_context(self.log, run=self.run, stage="rollout", instance=f"engine-{slot}"), setup)
        self.engines.append(Turning(stage, backend, joined_step=self.step))
        return self.engines[-1]

    def kill(self, engine: Turning) -> None:
        """A group member that vanishes without leaving would cost the test a session."""
        self.engines.remove(engine)
        engine.stop()

    def turn(self) -> None:
        """Everything once; one more prompt than steps is open, unless what an engine fetches would soon be pruned."""
        behind = max((self.step - engine.step for engine in self.engines), default=0)
        may_go_on = behind < self.weights.keep_versions - 3
        while may_go_on and self.num_prompts <= self.step + 1 and self.num_prompts < NUM_STEPS + 5:
            self.writer.write(PROMPTS, self.prompt(self.num_prompts))
            self.num_prompts += 1
        if not self.learner.finished:
            self.learner.turn()
        for engine in self.engines:
            engine.check()
        for envelope in self.samples.poll(100, deadline=Deadline.after(0.01)):
            if isinstance(envelope.record, Sample):
                self.writer.write(REWARDS, self.reward(envelope.record, offset=envelope.offset))
        self.writer.flush(deadline=Deadline.after(10))
        for envelope in self.manifests_reader.poll(100, deadline=Deadline.after(0.0)):
            if isinstance(envelope.record, Manifest):
                self.manifests[envelope.record.version] = envelope.record

    @property
    def step(self) -> int:
        """Of the newest version; -1: there is none."""
        return max((version.step for version in self.manifests), default=-1)

    def until_step(self, step: int) -> None:
        deadline = Deadline.after(120)
        while Version(lineage=1, step=step) not in self.manifests:
            deadline.check(f"version 1.{step}")
            self.turn()

    def until_all_serve(self, version: Version) -> None:
        deadline = Deadline.after(60)
        while any(engine.backend.engine.version != version for engine in self.engines):
            deadline.check(f"every engine to serve {version}")
            self.turn()

    def prompt(self, number: int) -> PromptGroup:
        return PromptGroup(
            run=self.log.run,
            group=number,
            group_size=GROUP_SIZE,
            text=f"{number % 10} + 1 =",
            sampling=SamplingParams(max_tokens=6),
            seed=number,
            source="hand",
            source_index=number,
            epoch=0,
            created_unix_ms=0,
        )

    def reward(self, sample: Sample, *, offset: int) -> Reward:
        return Reward(
            run=self.log.run,
            group=sample.group,
            member=sample.member,
            attempt=sample.attempt,
            name="odd",
            plugin_version="1",
            weight=1.0,
            value=float(sample.member % 2),
            sample_offset=offset,
            scored_unix_ms=0,
            duration_ms=0.0,
            producer="hand",
        )

    def notices(self, name: str) -> list[StageEvent]:
        reader = self.reader(EVENTS)
        found: list[StageEvent] = []
        ends = reader.end_positions()
        deadline = Deadline.after(20)
        while any(reader.positions().get(place, 0) < end for place, end in ends.items()):
            deadline.check("the events")
            records = (each.record for each in reader.poll(1000, deadline=Deadline.after(0.2)))
            found += [each for each in records if isinstance(each, StageEvent) and each.name == name]
        reader.close()
        return found

    def close(self) -> None:
        for engine in self.engines:
            engine.stop()
        self.learner.stop(deadline=Deadline.after(10))
        self.peer.stop()


def digest_served(backend: Backend) -> str:
    """blake3 of what the engine's model really holds, in canonical order."""
    engine = backend.engine
    assert isinstance(engine, TorchEngine)
    own = engine._weights._own
    return blake3(
        b"".join(own[name].contiguous().view(torch.uint8).numpy().tobytes() for name in sorted(own))
    ).hexdigest()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32)
    return path


@pytest.fixture(params=["memory", pytest.param("kafka", marks=[pytest.mark.integration, pytest.mark.slow])])
def loop(request: pytest.FixtureRequest, tmp_path: Path, model: Path) -> Iterator[Loop]:
    log: MemoryLog | KafkaLog = request.getfixturevalue(f"{request.param}_log")
    threads = torch.get_num_threads()
    made = Loop(log, tmp_path, model)
    yield made
    made.close()
    torch.set_num_threads(threads)


@pytest.mark.integration
@pytest.mark.slow
def test_the_command_exports_a_version(
    kafka_log: KafkaLog, services: ServicesInfo, tmp_path: Path, model: Path
) -> None:
    loop = Loop(kafka_log, tmp_path / "runs", model)
    try:
        loop.join(0)
        loop.until_step(3)
    finally:
        loop.close()
    values = {"run": {"name": kafka_log.run}, "model": {"path": str(model)}, "rewards": {"odd": {"plugin": "x"}}}
    source = {"kind": "jsonl", "files": ["none.jsonl"]}
    run_file = RunFile.model_validate({**values, "prompts": {"source": source}})
    save_run_file(run_file, loop.run.folder / "settings.json")
    places = ["--run", kafka_log.run, "--dir", str(tmp_path / "runs"), "--kafka", services.kafka_bootstrap]
    call = CliRunner().invoke(
        cli,
        ["export", "--version", "1.2", str(tmp_path / "out"), *places],
        catch_exceptions=False,
        standalone_mode=False,
    )
    assert "version 1.2" in call.output
    own, _ = named_state(load_model(tmp_path / "out", device="cpu", dtype=DTYPE))
    raw = b"".join(own[name].contiguous().view(torch.uint8).numpy().tobytes() for name in sorted(own))
    assert blake3(raw).hexdigest() == loop.manifests[Version(lineage=1, step=2)].state_digest
    with pytest.raises(WeightsError, match=r"version 9\.9 is not published"):
        CliRunner().invoke(
            cli,
            ["export", "--version", "9.9", str(tmp_path / "other"), *places],
            catch_exceptions=False,
            standalone_mode=False,
        )


def test_fifty_versions(loop: Loop) -> None:
    loop.join(0)
    killed = loop.join(1)
    loop.until_step(KILLED)
    loop.kill(killed)
    loop.until_step(BACK)
    loop.join(1)
    loop.until_step(LATE)
    loop.join(2)
    loop.until_step(NUM_STEPS)
    last = loop.manifests[Version(lineage=1, step=NUM_STEPS)]
    loop.until_all_serve(last.version)
    assert [digest_served(engine.backend) for engine in loop.engines] == [last.state_digest] * 3

    staged = loop.notices("staged")
    assert len(staged) == NUM_STEPS + 1
    deltas = [event for event in staged if event.details["encoding"] == "delta"]
    assert len(deltas) >= 0.9 * len(staged)
    assert all(0 < event.gauges["delta_bytes"] < 0.1 * event.gauges["state_bytes"] for event in deltas)
    assert not loop.notices("delta_refused")
    assert not loop.notices("fetch_failed")
    assert sum(event.gauges["num_deltas"] for event in loop.notices("swapped")) > NUM_STEPS / 2

    target = loop.folder / "exported"
    listed = {each.version: each for each in loop.manifests.values()}
    export_version(listed, last.version, target=target, model=loop.model, folder=loop.run.folder)
    assert (target / WEIGHTS_FILE).stat().st_size > last.num_bytes
    shares = [event.gauges["changed_share"] for event in deltas]
    print("changed share", min(shares), sum(shares) / len(shares), max(shares))
    print("bytes per publish", sum(event.gauges["new_bytes"] for event in staged) / len(staged), last.num_bytes)
