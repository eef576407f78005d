"""The demo's work on servers of its own, every stage in a process: what the observing benchmarks look at.

Data in: what differs from the demo's settings. Data out: a `Running` whose processes are there while its block is.
Invariants: only what was started here is ended, on an interrupt, too.
Failure: `BenchError` when a run does not begin to train, or ends by itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from ops.bench.soak import BenchError
from ops.chaos.crew import Crew
from ops.chaos.servers import Servers
from ops.demo import CONTEXT_TOKENS
from ops.live.crew import at_work
from ops.live.facts import facts_of
from ops.live.follower import Follower, FollowSettings
from ops.run_ends import LogEnds
from ops.run_file import RunFile, load_run_file, save_run_file
from ops.wiring import open_log, programs
from pipeline.engines.tiny import make_tiny_model
from pipeline.stage import CONNECT_S
from pipeline.weights.tokens import load_or_create_token
from topics.clock import Deadline
from topics.log import Log

_START_S = 240.0
_GRACE_S = 60.0
_STEPS = 100_000


@dataclass(frozen=True, kw_only=True)
class Running:
    """A run whose learner is at work."""

    log: Log
    crew: Crew
    follower: Follower

    def check(self) -> None:
        """Whether it goes on.

        Raises:
            BenchError: it ended by itself.
        """
        if self.crew.ended is not None:
            raise BenchError(f"the run ended by itself with code {self.crew.ended}: {self.crew.last_words()}")


@contextmanager
def served() -> Iterator[tuple[Path, Servers]]:
    """A folder and servers in it, for the block.

    Raises:
        ServicesError: they do not start.
    """
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="rlweave-bench-")))
        servers = Servers(folder / "services", brokers=1)
        leaving.callback(servers.close)
        servers.start()
        yield folder, servers


@contextmanager
def running(run_file: RunFile) -> Iterator[Running]:
    """The run, from the learner's first work to the end of the block.

    Raises:
        BenchError: the learner does not begin.
    """
    log = open_log(run_file)
    said: list[str] = []
    crew = Crew(
        programs(run_file, settings_file=run_file.run.folder / "settings.json"),
        run_file.supervisor,
        ends=LogEnds(log, run_file=run_file),
        say=said.append,
    )
    settings = FollowSettings(heartbeat_s=run_file.run.heartbeat_s, facts=facts_of(run_file))
    with ExitStack() as leaving:
        leaving.callback(crew.stop)
        found = Running(log=log, crew=crew, follower=leaving.enter_context(Follower(log, settings=settings)))
        crew.start()
        _await_work(found)
        yield found
        crew.stop(grace_s=_GRACE_S)


def set_up(name: str, folder: Path, *, servers: Servers, overrides: Sequence[str]) -> RunFile:
    """Model, topics, token and settings of a run that goes on until it is stopped."""
    with as_file(files("ops") / "demo.toml") as path:
        run_file = load_run_file(
            path,
            overrides=[
                f'run.name="{name}"',
                f'run.dir="{folder}"',
                f"run.max_steps={_STEPS}",
                f'model.path="{folder / "model"}"',
                f'learner.oracle_file="{folder / "oracle.jsonl"}"',
                f'kafka.bootstrap="{servers.bootstrap}"',
                f'redis.url="{servers.redis_url}"',
                *overrides,
            ],
        )
    if not run_file.model.path.exists():
        make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=CONTEXT_TOKENS)
    log = open_log(run_file)
    log.connect(deadline=Deadline.after(CONNECT_S))
    log.admin().ensure_topics()
    load_or_create_token(run_file.run.folder / "peer-token")
    save_run_file(run_file, run_file.run.folder / "settings.json")
    return run_file


def _await_work(run: Running) -> None:
    deadline = Deadline.after(_START_S)
    while True:
        run.follower.turn(limit_s=0.5)
        picture = run.follower.picture(spans_s=1.0)
        if any(each.phase == "forward_backward" for each in at_work(picture.processes, "learner")) or picture.last_step:
            return
        run.check()
        if deadline.expired:
            raise BenchError(f"the learner did not begin within {_START_S:g} s: {run.crew.last_words()}")
        time.sleep(0.1)
