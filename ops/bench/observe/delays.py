"""Delays that are planted at known samples of a run: prompts that say where, and the plug-ins that hear it.

Data in: a folder. Data out: settings, and the files they name.
Invariants: only settings and plug-ins that anybody may use; nothing in a stage knows of it. Of a planted group member
`MEMBER` is delayed, and each delay is noted with the time that it really took. Each plant comes `repeats` times with a
delay and as often without, with ordinary groups between them.
Failure: none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import orjson

DELAY_S = 0.5
MEMBER = 1
_WARM_UP = 32  # ordinary groups before the first planted one
_BETWEEN = 3  # and after each
_BATCH, _SIZE = 8, 4

Fate = Literal["trained", "dropped", "failed"]
At = Literal["generation", "reward"]

_PLUGINS = '''"""A reward and an environment that are slow where the prompt says so."""

import asyncio
import json
import os
import time
from pathlib import Path

from pipeline.environments.base import Observation


def planted(metadata, *, at, member):
    """Seconds of delay, and whether to fail after them."""
    if metadata.get("at") != at or member != {member}:
        return 0.0, False
    return float(metadata["delay_s"]), metadata["fate"] == "failed"


def note(folder, *, group, took_s):
    with (Path(folder) / f"delays-{{os.getpid()}}.jsonl").open("a") as file:
        file.write(json.dumps({{"group": group, "took_s": took_s}}) + "\\n")


class Planned:
    """By the parity of the member; of a group that is to be dropped the same for all."""

    def __init__(self, *, folder):
        self.folder = folder

    def score(self, sample):
        delay_s, fails = planted(sample.metadata, at="reward", member=sample.member)
        if delay_s:
            began_s = time.monotonic()
            time.sleep(delay_s)
            note(self.folder, group=sample.group, took_s=time.monotonic() - began_s)
        if fails:
            raise ValueError("planted")
        return 1.0 if sample.metadata.get("fate") == "dropped" else float(sample.member % 2)


class OneTurn:
    """Ends after the first turn."""

    def __init__(self, *, folder):
        self.folder = folder
        self.task = None

    async def reset(self, task):
        self.task = task
        return Observation()

    async def step(self, action):
        delay_s, fails = planted(self.task.metadata, at="generation", member=self.task.member)
        if delay_s:
            began_s = time.monotonic()
            await asyncio.sleep(delay_s)
            note(self.folder, group=self.task.group, took_s=time.monotonic() - began_s)
        if fails:
            raise ValueError("planted")
        return Observation(done=True)

    async def close(self):
        """Nothing is held."""
'''


@dataclass(frozen=True, kw_only=True)
class Plant:
    """What becomes of a sample, and where it is delayed."""

    fate: Fate
    at: At

    @property
    def name(self) -> str:
        """For keys and rows."""
        return f"{self.fate}_{self.at}"

    @property
    def hop(self) -> str:
        """Where a trace is to find it."""
        if self.at == "reward":
            return "is scored by sum"
        return "is generated, and fails" if self.fate == "failed" else "turn 1 is judged"


PLANTS = tuple(Plant(fate=fate, at=at) for fate in ("trained", "dropped", "failed") for at in ("generation", "reward"))


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A plant, with a delay or without."""

    plant: Plant
    delay_s: float

    @property
    def metadata(self) -> Mapping[str, str]:
        """What its prompt says."""
        return {"fate": self.plant.fate, "at": self.plant.at, "delay_s": str(self.delay_s)}

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Planted | None:
        """From what a prompt says; None: it is an ordinary one."""
        for plant in PLANTS:
            if (metadata.get("fate"), metadata.get("at")) == (plant.fate, plant.at):
                return cls(plant=plant, delay_s=float(metadata["delay_s"]))
        return None


def rows(repeats: int) -> Iterator[Mapping[str, str]]:
    """Prompts in the order in which they are admitted."""
    spaced: list[Mapping[str, str]] = [{}] * _WARM_UP
    for repeat in range(repeats):
        for plant in PLANTS:  # the two of a pair beside each other, in turns: what drifts is in both
            for delay_s in ((DELAY_S, 0.0), (0.0, DELAY_S))[repeat % 2]:
                spaced += [Planted(plant=plant, delay_s=delay_s).metadata, *[{}] * _BETWEEN]
    for number, metadata in enumerate(spaced):
        yield {"question": f"{number % 10}+{number // 10 % 10}=", "answer": "0", **metadata}


def overrides(folder: Path, *, repeats: int) -> tuple[str, ...]:
    """Write prompts and plug-ins, and give the settings that use them."""
    folder.mkdir()
    prompts, plugins = folder / "prompts.jsonl", folder / "delayed.py"
    prompts.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows(repeats)))
    plugins.write_text(_PLUGINS.format(member=MEMBER))
    return (
        f"run.groups_per_step={_BATCH}",
        f"run.group_size={_SIZE}",
        "run.min_group_members=1",
        'run.on_stale="train"',  # so that what is late is not dropped for that
        f'prompts.source={{kind="jsonl", files=["{prompts}"], shuffle=false}}',
        f'environment={{plugin="{plugins}:OneTurn", options={{folder="{folder}"}}, max_turns=1, max_retries=0}}',
        f'rewards.sum={{plugin="{plugins}:Planned", options={{folder="{folder}"}}}}',
        "rollout.replicas=1",
        'learner.no_signal="drop"',
        "learner.cloning.num_steps=0",
        "learner.checkpoint.every_steps=100000",
    )


def took_s(folder: Path) -> dict[int, float]:
    """Group -> seconds that its delay took; of several the median."""
    found: dict[int, list[float]] = defaultdict(list)
    for path in sorted(folder.glob("delays-*.jsonl")):
        for line in path.read_bytes().splitlines():
            said = orjson.loads(line)
            found[int(said["group"])].append(float(said["took_s"]))
    return {group: median(times) for group, times in found.items()}
