"""A run of the benchmark: its folder, its processes under the real supervisor, and what they say.

Role: what a course is played on.
Data in: the servers, overrides of the demo's run file. Data out: events, as they come; the audit at the end.
Invariants: only what was started here is ended, also on an interrupt.
Failure: `SettingsError`; `BenchError` when the run ends by itself, or what is waited for does not come about.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Self

from ops.audit.report import AuditReport
from ops.audit.run import audit_run
from ops.bench.elastic.plan import GROUP_SIZE, GROUPS_PER_STEP, SEQUENCES, STEP_S
from ops.bench.elastic.script import Prompter, write_plugins
from ops.bench.soak import BenchError
from ops.chaos.crew import Crew
from ops.chaos.servers import Servers
from ops.run_checks import check_run
from ops.run_ends import LogEnds
from ops.run_file import RunFile, load_run_file, save_run_file
from ops.supervisor.orders import Orders
from ops.supervisor.processes import Program
from ops.wiring import open_log, pool_of, programs, scale_limits
from pipeline.engines.tiny import make_tiny_model
from pipeline.stage import CONNECT_S, make_context
from pipeline.weights.tokens import load_or_create_token
from schemas.records import StageEvent
from topics.access import STAGES
from topics.catalog import EVENTS
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import Reader, ReaderHooks, ReaderSettings

_POLL_S = 0.05
_GRACE_S = 60.0
_MAX_RECORDS = 5000
_HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
Heard = tuple[float, StageEvent]  # when it was read here


class Site:
    """See the module. A context manager.

    Args:
        folder: of the run; made here.
        overrides: of the run file, over those of every course.
        say: gets each line of the supervisor.
    """

    def __init__(self, folder: Path, *, servers: Servers, overrides: Sequence[str], say: Callable[[str], None]) -> None:
        folder.mkdir()
        self.prompter = Prompter(folder)
        self.heard: list[Heard] = []
        self._run_file = _run_file(folder, servers=servers, overrides=overrides)
        self._log = _prepared(self._run_file)
        self._reader: Reader = self._log.reader(ReaderSettings(topics=(EVENTS,)), hooks=_HOOKS)
        self._leaving = ExitStack()
        settings_file = self._run_file.run.folder / "settings.json"
        save_run_file(self._run_file, settings_file)
        context = make_context(self._log, run=self._run_file.run, stage="supervisor")
        limits = scale_limits(self._run_file, stages=STAGES)
        self._orders = Orders(context, log=self._log, limits=limits)
        self.crew = Crew(
            [_paced(each) for each in programs(self._run_file, settings_file=settings_file)],
            self._run_file.supervisor,
            ends=LogEnds(self._log, run_file=self._run_file),
            say=say,
            slots=pool_of(self._run_file, stages=STAGES),
            each_turn=self._orders.turn,
        )

    def __enter__(self) -> Self:
        self._leaving.callback(self._reader.close)
        self._leaving.enter_context(self._orders)
        self._leaving.callback(self.crew.stop, grace_s=_GRACE_S)
        self.crew.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.close()

    def until(self, condition: Callable[[], bool], *, what: str, limit_s: float) -> float:
        """Look on until it holds; gives the seconds that took.

        Raises:
            BenchError: it does not come about, or the run ended by itself.
        """
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > limit_s:
                raise BenchError(f"waited {limit_s:g} s for {what}; {self.crew.last_words()}")
            self.look()
        return time.monotonic() - began_s

    def look(self) -> None:
        """Take in what was said, waiting for it a moment.

        Raises:
            BenchError: the run ended by itself.
        """
        if self.crew.ended is not None:
            raise BenchError(f"the run ended by itself with code {self.crew.ended}: {self.crew.last_words()}")
        found = self._reader.poll(_MAX_RECORDS, deadline=Deadline.after(_POLL_S))
        now_s = time.monotonic()
        self.heard += [(now_s, each.record) for each in found if isinstance(each.record, StageEvent)]

    def said(self, stage: str, name: str) -> list[Heard]:
        """Events of a stage by name, in their order."""
        return [each for each in self.heard if (each[1].stage, each[1].name) == (stage, name)]

    def step(self) -> int:
        """The learner's last step."""
        steps = self.said("learner", "step")
        return int(steps[-1][1].gauges["step"]) if steps else 0

    def audit(self) -> AuditReport:
        """Stop everything, and count."""
        self.crew.stop(grace_s=_GRACE_S)
        return audit_run(self._log, run_file=self._run_file).report


def _run_file(folder: Path, *, servers: Servers, overrides: Sequence[str]) -> RunFile:
    plugins = write_plugins(folder)
    with as_file(files("ops") / "demo.toml") as path:
        run_file = load_run_file(
            path,
            overrides=[
                f'run.name="{folder.name}"',
                f'run.dir="{folder / "runs"}"',
                "run.max_steps=1000000",
                f"run.groups_per_step={GROUPS_PER_STEP}",
                f"run.group_size={GROUP_SIZE}",
                "run.max_staleness=5",
                "run.heartbeat_s=0.4",
                f'model.path="{folder / "model"}"',
                "rewards.sum.plugin=number_match",
                f'rollout.engine="{plugins}:engine"',
                f"rollout.max_sequences={SEQUENCES}",
                "rollout.session_timeout_s=6.0",
                "learner.cloning.num_steps=0",
                "learner.mismatch_notice=100.0",
                f'learner.oracle_file="{folder / "oracle.jsonl"}"',
                "learner.checkpoint.every_steps=1000000",
                f'scheduler.policy="{plugins}:decide"',
                f'kafka.bootstrap="{servers.bootstrap}"',
                f'redis.url="{servers.redis_url}"',
                "redis.lease_s=2.0",
                *overrides,
            ],
        )
    check_run(run_file)
    return run_file


def _prepared(run_file: RunFile) -> KafkaLog:
    make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=64)
    log = open_log(run_file)
    log.connect(deadline=Deadline.after(CONNECT_S))
    log.admin().ensure_topics()
    run_file.run.folder.mkdir(parents=True)
    load_or_create_token(run_file.run.folder / "peer-token")
    return log


def _paced(program: Program) -> Program:
    """A learner's steps take the benchmark's time."""
    if program.stage != "learner":
        return program
    return replace(program, command=(sys.executable, "-m", "ops.bench.elastic.rank", str(STEP_S)))
