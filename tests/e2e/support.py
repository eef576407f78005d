"""A small run for tests: its file, its processes, what its topics say, and the books that must balance in the end."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ops.addresses import kafka_access, redis_access
from ops.audit.report import AuditReport
from ops.audit.run import audit_source
from ops.replay.sources import KafkaSource
from ops.services.model import ServicesInfo
from pipeline.credentials import client_config
from pipeline.history import LedgerView
from pipeline.settings import KafkaSettings
from schemas.records import LedgerSealed, LineageStarted, Manifest, Outcome, StageEvent
from tests.e2e.processes import LIMIT_S, ROOT, Process, children_of, signal_pid, spawn
from topics.access import ADMIN, READER
from topics.catalog import EVENTS, LEDGER, WEIGHTS, Topic
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog
from topics.log import Envelope, Reader, ReaderHooks, ReaderSettings

Value: TypeAlias = "str | int | float | bool | list[str]"
HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
PARTITIONS = 4
STEPS = 10


def settings_of(name: str, folder: Path, *, services: ServicesInfo, model: Path) -> dict[str, Value]:
    """The small run, as dotted settings: a tiny model learns sums of two digits."""
    tasks = folder / "tasks.jsonl"
    if not tasks.exists():
        draw = random.Random(name)
        pairs = [(draw.randrange(10), draw.randrange(10)) for _ in range(2000)]
        lines = [json.dumps({"question": f"{a} + {b} =", "answer": str(a + b)}) for a, b in pairs]
        tasks.write_text("\n".join(lines) + "\n")
    return {
        "run.name": name,
        "run.dir": str(folder / "runs"),
        "run.partitions": PARTITIONS,
        "run.groups_per_step": 4,
        "run.group_size": 4,
        "run.max_steps": STEPS,
        "run.max_staleness": 2,
        "run.group_deadline_s": 30.0,
        "run.heartbeat_s": 0.3,
        "run.stop_grace_s": 15.0,
        "kafka.bootstrap": services.kafka_bootstrap,
        "redis.url": services.redis_url,
        **{f"kafka.{key}": str(value) for key, value in kafka_access(services).items()},
        **{f"redis.{key}": str(value) for key, value in redis_access(services).items()},
        "redis.lease_s": 2.0,
        "model.path": str(model),
        "prompts.max_tokens": 3,
        "prompts.source.files": [str(tasks)],
        "rollout.max_sequences": 16,
        "rollout.session_timeout_s": 6.0,
        "rewards.sum.plugin": "number_match",
        "learner.oracle_file": str(folder / "oracle.jsonl"),
        "learner.silent_notice_s": 20.0,
        "learner.silent_end_s": 60.0,
        "learner.optimizer.learning_rate": 5e-4,
        "learner.cloning.num_steps": 10,
        "learner.cloning.source.files": [str(tasks)],
        "learner.checkpoint.every_steps": 3,
        "supervisor.restart_backoff_s": 0.2,
    }


@dataclass
class Run:
    """One run of a test: settings, log, processes."""

    name: str
    folder: Path
    settings: dict[str, Value]
    log: KafkaLog
    services: ServicesInfo
    processes: list[Process] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return str(self.settings["kafka.bootstrap"])

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / self.name

    @property
    def config(self) -> Path:
        """The run file, written anew from the settings."""
        path = self.folder / "run.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in self.settings.items()))
        return path

    def up(self) -> Process:
        """`rlweave up`."""
        return self.start("up", "--quiet")

    def stage(self, stage: str, *more: str) -> Process:
        """`rlweave run STAGE`."""
        return self.start("run", stage, *more)

    def start(self, *arguments: str) -> Process:
        given = (*arguments, "--config", str(self.config))
        log_file = self.folder / f"{len(self.processes)}-{'-'.join(arguments[:2])}.log"
        process = spawn(given, log_file=log_file)
        self.processes.append(process)
        return process

    def end_all(self) -> None:
        """End whatever is left of what was started, and its children."""
        for process in self.processes:
            children = children_of(process.pid) if process.popen.poll() is None else {}
            process.send(signal.SIGCONT)
            process.popen.kill()
            process.popen.wait()
            for pid in children:
                signal_pid(pid, signal.SIGKILL)

    def outputs(self) -> str:
        """Everything any process said, for messages."""
        logs = sorted((self.run_folder / "logs").glob("*.log")) if self.run_folder.exists() else []
        files = [process.log_file for process in self.processes] + logs
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in files)

    def watch(self, *topics: Topic) -> Watch:
        return Watch(self.log, topics=topics)

    def audit(self, *, max_age: int | None = 2) -> AuditReport:
        raw = RawLog(self.bootstrap, config=config_of(self.services, role=READER))
        return audit_source(KafkaSource(raw, run=self.name), max_age=max_age)

    def oracle(self) -> dict[str, object]:
        """The verdict of the script that shares no code with the product."""
        command = [sys.executable, str(ROOT / "ops" / "chaos" / "oracle.py"), "--bootstrap", self.bootstrap]
        command += ["--run", self.name, "--oracle-file", str(self.settings["learner.oracle_file"])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT)
        assert done.returncode in (0, 1), done.stderr
        verdict: dict[str, object] = json.loads(done.stdout)
        assert verdict.pop("trained_ids") != 0, "nothing was trained"
        return verdict


def config_of(services: ServicesInfo, *, role: str) -> dict[str, str]:
    """What a client of these services needs, as one of the roles; nothing unless they are secure."""
    return client_config(KafkaSettings.model_validate(kafka_access(services)), role=role)


@contextmanager
def small_run(
    folder: Path, name: str, *, services: ServicesInfo, model: Path, changes: Mapping[str, Value] | None = None
) -> Iterator[Run]:
    """A run with topics of its own; whatever is left of it is ended afterwards."""
    settings = settings_of(name, folder, services=services, model=model) | dict(changes or {})
    config = config_of(services, role=ADMIN)
    log = KafkaLog(services.kafka_bootstrap, run=name, data_partitions=PARTITIONS, config=config)
    log.connect(deadline=Deadline.after(60))
    log.admin().ensure_topics()
    run = Run(name=name, folder=folder, settings=settings, log=log, services=services)
    try:
        yield run
    finally:
        run.end_all()
        log.admin().delete_topics()


class Watch:
    """Follows topics of a run from their beginnings and keeps all it read."""

    def __init__(self, log: KafkaLog, *, topics: Sequence[Topic]) -> None:
        self.envelopes: list[Envelope] = []
        self._partitions = log.data_partitions
        self._reader: Reader = log.reader(ReaderSettings(topics=tuple(topics)), hooks=HOOKS)

    def poll(self, *, wait_s: float = 0.1) -> None:
        self.envelopes += self._reader.poll(5000, deadline=Deadline.after(wait_s))

    def until(self, condition: Callable[[], object], *, what: str, limit_s: float = LIMIT_S) -> None:
        """Read on until the condition holds."""
        deadline = Deadline.after(limit_s)
        while not condition():
            deadline.check(what)
            self.poll()

    def until_step(self, step: int, *, by: Process | None = None) -> None:
        """Until a learner (this one) has done a step."""
        self.until(lambda: self.step_of(by) >= step, what=f"step {step}")

    def until_phase(self, stage: str, phase: str) -> None:
        """Until an instance of a stage has been in a phase; it may have left it since."""
        self.until(lambda: self.events(stage, kind="phase_began", name=phase), what=f"{stage} {phase}")

    def step_of(self, learner: Process | None = None) -> float:
        """Highest step that a learner (this one) said it has done."""
        part = "" if learner is None else f"-{learner.pid}-"
        steps = [each.gauges["step"] for each in self.events("learner", name="step") if part in each.instance]
        return max(steps, default=0)

    def to_end(self) -> None:
        """Read all that is there now."""
        ends = self._reader.end_positions()
        self.until(
            lambda: all(self._reader.positions().get(place, 0) >= end for place, end in ends.items()),
            what=f"the ends {ends}",
        )

    def close(self) -> None:
        self._reader.close()

    @property
    def ledger(self) -> LedgerView:
        view = LedgerView(self._partitions)
        for each in self.envelopes:
            if isinstance(each.record, Outcome | LineageStarted | LedgerSealed):
                view.add(each.partition, each.record)
        return view

    @property
    def outcomes(self) -> list[Outcome]:
        return [each.record for each in self.envelopes if isinstance(each.record, Outcome)]

    @property
    def manifests(self) -> list[Manifest]:
        """Every one ever written, in order; none of it was compacted as long as the run is young."""
        return [each.record for each in self.envelopes if isinstance(each.record, Manifest)]

    def events(self, stage: str, *, name: str = "", kind: str = "") -> list[StageEvent]:
        records = [each.record for each in self.envelopes if isinstance(each.record, StageEvent)]
        return [
            event for event in records if event.stage == stage and name in ("", event.name) and kind in ("", event.kind)
        ]


def read_all(run: Run, *topics: Topic) -> Watch:
    """All records of topics as they are now."""
    watch = run.watch(*topics)
    watch.to_end()
    watch.close()
    return watch


def check_books(run: Run, *, max_age: int | None = 2, sealed: bool = True) -> Watch:
    """Audit, oracle and the ledger itself agree: nothing lost, nothing twice, every version one content."""
    report = run.audit(max_age=max_age)
    assert report.balanced, "\n".join(map(str, report.findings))
    verdict = run.oracle()
    assert not any(verdict.values()), verdict
    seen = read_all(run, LEDGER, WEIGHTS, EVENTS)
    view = seen.ledger
    assert (view.sealed is not None) == sealed
    alive = [each for each in seen.outcomes if view.lineages.survives(each.lineage, each.step)]
    groups = [each.group for each in alive]
    assert len(groups) == len(set(groups)), "a group has two surviving outcomes"
    contents: dict[object, str] = {}
    for manifest in seen.manifests:
        known = contents.setdefault(manifest.version, manifest.state_digest)
        assert known == manifest.state_digest, f"version {manifest.version} named two contents"
    return seen
