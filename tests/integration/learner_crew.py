"""A learner of several ranks as threads of one process: rank 0 is turned by the test, the others turn by themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from consumers.learner.ranks.follow import FollowerStage
from consumers.learner.stage import LearnerStage
from pipeline.engines.model_dir import load_model
from pipeline.stage import StageContext
from tests.integration.learner_world import World, alive, start, turn_until
from topics.clock import Deadline

_LOADING = threading.Lock()


def _load_alone(path: Path, *, device: str, dtype: str) -> PreTrainedModel:
    """The loader patches torch while it works, and the ranks here are threads."""
    with _LOADING:
        return load_model(path, device=device, dtype=dtype)


@dataclass
class Crew:
    """Rank 0, which the test turns, and the others, which turn by themselves."""

    stage: LearnerStage
    context: StageContext
    followers: list[tuple[FollowerStage, StageContext]]
    futures: list[Future[None]]

    def stop(self) -> None:
        self.stage.stop(deadline=Deadline.after(10))
        for future in self.futures:
            future.result(timeout=60)


def follow(stage: FollowerStage, context: StageContext) -> None:
    """What the run loop does."""
    stage.start(deadline=Deadline.after(60))
    try:
        while not stage.finished and not context.stop.requested:
            stage.turn()
    finally:
        stage.stop(deadline=Deadline.after(10))


@contextmanager
def crew(world: World, ranks: int) -> Iterator[Crew]:
    world.ranks = ranks
    stage, context = world.learner()
    followers = [world.follower(rank) for rank in range(1, ranks)]
    with ThreadPoolExecutor(max(1, ranks - 1)) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr("consumers.learner.trainer.load_model", _load_alone)
        futures = [pool.submit(follow, *follower) for follower in followers]
        start(stage)
        yield Crew(stage, context, followers, futures)


def run_to_end(world: World, ranks: int, *, num_groups: int, lineage: int = 1) -> Crew:
    with crew(world, ranks) as made:
        turn_until(
            made.stage,
            lambda: made.stage.finished,
            what="the end",
            each=alive(world, num_groups=num_groups, lineage=lineage),
        )
        made.stop()
    return made
