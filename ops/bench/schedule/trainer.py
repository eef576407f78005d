"""A trainer that takes the workload's time and moves the weights a little: the learner around it is real.

Role: what the learner of `bench schedule` trains with.
Data in: batches. Data out: steps; the part of a step that ranks divide is spent in `step`, the other one when the
weights are taken to be staged.
Invariants: the number of ranks is read once per step.
Failure: none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from consumers.learner.batch import Batch
from consumers.learner.settings import LearnerSettings
from consumers.learner.step_stats import StepStats
from consumers.learner.trainer import Meanwhile, Trainer
from ops.bench.schedule.board import Board
from ops.bench.schedule.workload import Workload
from pipeline.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_POLL_S = 0.02  # real: between two looks at other work


class TimedTrainer(Trainer):
    """See the module.

    Args:
        board: says how many ranks there are, and is told of steps.
        extra_s: of each step, in model seconds, whatever the ranks.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        model: ModelSettings,
        *,
        board: Board,
        workload: Workload,
        scale: float,
        extra_s: float,
    ) -> None:
        self._board = board
        self._workload = workload
        self._scale = scale
        self._fixed_s = (workload.fixed_s + extra_s) * scale
        self._owed_s = 0.0
        self._step = 0
        super().__init__(settings, model, seed=0)

    @property
    def model(self) -> PreTrainedModel:
        """The model; after a step, once what is left of the step's time is over."""
        owed_s, self._owed_s = self._owed_s, 0.0
        if owed_s:
            time.sleep(owed_s)
            self._board.stepped(self._step, at_s=time.monotonic())
            self._board.working = False
        return self._model

    @model.setter
    def model(self, model: PreTrainedModel) -> None:
        """Set once, by `Trainer`."""
        self._model = model

    def step(self, batch: Batch, *, meanwhile: Meanwhile | None = None) -> StepStats:
        """See `Trainer.step`."""
        began_s = time.monotonic()
        self._board.working, self._step = True, batch.step
        num_tokens = sum(len(member.sample.completion_tokens) // 4 for member in batch.members)
        work_s = self._workload.training_s(num_tokens, ranks=self._board.ranks) * self._scale
        while (left_s := began_s + work_s - time.monotonic()) > 0:
            if meanwhile is not None:
                meanwhile(False)
            time.sleep(min(left_s, _POLL_S))
        if meanwhile is not None:
            meanwhile(True)
        with torch.no_grad():
            next(self._model.parameters()).add_(1e-4)
        self._owed_s = self._fixed_s
        return StepStats(
            loss=0.0,
            grad_norm=0.0,
            reward_mean=0.0,
            num_tokens=num_tokens,
            clipped_share=0.0,
            capped_share=0.0,
            mismatch_mean=0.0,
        )
