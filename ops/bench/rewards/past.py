"""Scoring the past in one command while a run trains.

Order: (1) samples of a run are written; (2) the demo's run trains; trained samples a second alone; (3) the same while
`rlweave run reward --from-beginning` scores the samples; (4) alone again, since a run changes as it learns; (5) with
training stopped, the samples are scored once more under another name.
Data in: `PastSize`. Data out: `PastFound`.
Invariants: both runs share broker and machine; what is trained is counted from the ledger.
Failure: `BenchError` when the run does not train, or the command fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ops.bench.material import make_groups
from ops.bench.rewards.faults import BenchError
from ops.bench.rewards.runs import make_crew, make_run, settings_of
from ops.chaos.crew import Crew
from ops.chaos.servers import Servers
from ops.demo import CONTEXT_TOKENS
from ops.report.reading import read_to_end
from ops.run_file import RunFile
from ops.wiring import open_log
from pipeline.engines.tiny import make_tiny_model
from schemas.reasons import Result
from schemas.records import Outcome, StageEvent
from topics.catalog import EVENTS, LEDGER, SAMPLES
from topics.clock import Deadline
from topics.log import Reader, ReaderHooks, ReaderSettings, WriterSettings

STAGES = ("peer", "learner", "scheduler", "prompts", "rollout", "reward")
_GROUP_SIZE = 8
_NUM_TOKENS = 64
_START_S = 240.0
_RESCORE_S = 900.0
_FLUSH_EVERY = 500  # groups
_POLL_S = 0.25
_HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
_PLUGIN = "ops.bench.rewards.scorers:brevity"


@dataclass(frozen=True, kw_only=True)
class PastSize:
    """How much, how long."""

    num_samples: int = 100_000
    alone_s: float = 40.0  # each time that training is measured alone
    settle_s: float = 15.0  # of training before it is measured

    @classmethod
    def quick(cls) -> PastSize:
        """Enough to see that it works."""
        return cls(num_samples=4_000, alone_s=4.0, settle_s=2.0)


@dataclass(frozen=True, kw_only=True)
class PastFound:
    """What was measured; rates are samples per second."""

    num_samples: int
    rescored: int  # beside training
    rescore_per_s: float  # beside training
    rescore_alone_per_s: float
    trained_before_per_s: float
    trained_beside_per_s: float
    trained_after_per_s: float

    @property
    def trained_share(self) -> float:
        """Training beside the command, against the mean of before and after."""
        alone = (self.trained_before_per_s + self.trained_after_per_s) / 2
        return self.trained_beside_per_s / alone if alone else 0.0


def run_past(size: PastSize, *, folder: Path, servers: Servers, say: Callable[[str], None]) -> PastFound:
    """See the module.

    Raises:
        BenchError: see the module.
    """
    past = make_run("bench-past", folder=folder, servers=servers)
    num_samples = _write(past, num_samples=size.num_samples)  # (1)
    say(f"past: {num_samples} samples are in the log")
    training = make_run("bench-training", folder=folder, servers=servers)
    make_tiny_model(training.model.path, seed=training.run.seed, context_tokens=CONTEXT_TOKENS)
    with ExitStack() as leaving:
        crew = make_crew(training, stages=STAGES, say=lambda _: None)
        leaving.callback(crew.stop, grace_s=60.0)
        crew.start()
        trained = Trained(training, crew=crew)
        leaving.callback(trained.close)
        trained.wait_for_first()
        trained.rate_over(size.settle_s)
        before = trained.rate_over(size.alone_s)  # (2)
        say(f"past: {before:.0f} samples are trained a second, alone")
        command = start_command(past, name="beside")
        leaving.callback(command.kill)
        beside = trained.rate_while(lambda: command.poll() is None, limit_s=_RESCORE_S)  # (3)
        say(f"past: {beside:.0f} beside the command")
        after = trained.rate_over(size.alone_s)  # (4)
    _check(command)
    alone = start_command(past, name="alone")  # (5)
    alone.wait(_RESCORE_S)
    _check(alone)
    found = rescored_of(past)
    return PastFound(
        num_samples=num_samples,
        rescored=round(found["beside"][0]),
        rescore_per_s=_rate(found["beside"]),
        rescore_alone_per_s=_rate(found["alone"]),
        trained_before_per_s=before,
        trained_beside_per_s=beside,
        trained_after_per_s=after,
    )


class Trained:
    """Counts what a run trains, from its ledger."""

    def __init__(self, run_file: RunFile, *, crew: Crew) -> None:
        self._reader: Reader = open_log(run_file).reader(
            ReaderSettings(topics=(LEDGER,), instance="bench"), hooks=_HOOKS
        )
        self._crew = crew
        self._num = 0

    def wait_for_first(self) -> None:
        """Until a step was trained.

        Raises:
            BenchError: there was none in time.
        """
        deadline = Deadline.after(_START_S)
        while self._look() == 0:
            if deadline.expired:
                raise BenchError(f"nothing was trained within {_START_S:g} s: {self._crew.last_words()}")

    def rate_over(self, seconds: float) -> float:
        """Samples trained per second in the next seconds."""
        until_s = time.monotonic() + seconds
        return self.rate_while(lambda: time.monotonic() < until_s, limit_s=2 * seconds + 60.0)

    def rate_while(self, going: Callable[[], bool], *, limit_s: float) -> float:
        """Samples trained per second as long as something goes on.

        Raises:
            BenchError: it went on for longer than the limit, or the run ended.
        """
        began, began_s, deadline = self._look(), time.monotonic(), Deadline.after(limit_s)
        while going():
            self._look()
            if deadline.expired:
                raise BenchError(f"it was not through within {limit_s:g} s")
        return (self._look() - began) / (time.monotonic() - began_s)

    def close(self) -> None:
        """Read no more."""
        self._reader.close()

    def _look(self) -> int:
        if self._crew.ended is not None:
            raise BenchError(f"the run ended with code {self._crew.ended}: {self._crew.last_words()}")
        for envelope in self._reader.poll(1000, deadline=Deadline.after(_POLL_S)):
            if isinstance(envelope.record, Outcome):
                self._num += sum(member.result == Result.TRAINED for member in envelope.record.members)
        return self._num


def start_command(run_file: RunFile, *, name: str) -> subprocess.Popen[bytes]:
    """The one command, as a user gives it."""
    config = str(settings_of(run_file))
    arguments = ["--config", config, "--name", name, "--plugin", _PLUGIN, "--from-beginning"]
    with (run_file.run.folder / f"{name}.log").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "ops.cli", "run", "reward", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )


def rescored_of(run_file: RunFile) -> dict[str, tuple[float, float]]:
    """Samples and seconds of each command, by reward name, as it said itself."""
    return {
        event.details["reward"]: (event.gauges["num_samples"], event.gauges["took_s"])
        for envelope in read_to_end(open_log(run_file), [EVENTS])
        if isinstance(event := envelope.record, StageEvent) and event.kind == "notice" and event.name == "rescored"
    }


def _check(command: subprocess.Popen[bytes]) -> None:
    if command.returncode != 0:
        raise BenchError(f"the command ended with code {command.returncode}")


def _rate(of: tuple[float, float]) -> float:
    return of[0] / of[1] if of[1] > 0 else 0.0


def _write(run_file: RunFile, *, num_samples: int) -> int:
    writer = open_log(run_file).writer(WriterSettings())
    num_groups = -(-num_samples // _GROUP_SIZE)
    groups = make_groups(run_file.run.name, num_groups=num_groups, group_size=_GROUP_SIZE, num_tokens=_NUM_TOKENS)
    for number, group in enumerate(groups, 1):
        for sample in group:
            writer.write(SAMPLES, sample)
        if number % _FLUSH_EVERY == 0:
            writer.flush(deadline=Deadline.after(60.0))
    writer.flush(deadline=Deadline.after(60.0))
    writer.close(deadline=Deadline.after(5.0))
    return num_groups * _GROUP_SIZE
