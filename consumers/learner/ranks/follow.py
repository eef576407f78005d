"""The learner's other ranks: they read their own partitions and do what rank 0 says.

    prompts, samples, rewards (own partitions) --> part --> share of a batch --> gradients, summed over all ranks
    commands of rank 0 ----------------------------^
    answers to rank 0 <----- summaries, outcome drafts, positions

Role: stage `learner`, ranks 1 to N - 1. Writes no ledger, no weights, no checkpoint and no offsets.
Start: (1) load the model; (2) meet rank 0, which has fenced its predecessor by then; (3) take over its state.
Invariants: no decision is taken here; a command is done to its end before the next one is heard; when rank 0 ends in
order this rank does, and when it asks to stop it follows until then.
Failure: `RankLost` when a rank is missing; all of them end and begin again together.
"""

from __future__ import annotations

from dataclasses import replace

from consumers.learner.cloning import Demonstrations
from consumers.learner.flow import BatchFlow
from consumers.learner.intake import Intake
from consumers.learner.outcomes import with_gaps
from consumers.learner.ranks.begin import join_team, meet, own_partitions
from consumers.learner.ranks.group import RankGroup
from consumers.learner.ranks.messages import Command, Taken, pack_report
from consumers.learner.ranks.part import Part
from consumers.learner.ranks.state import take_over
from consumers.learner.setup import LearnerSetup, make_assembler, make_trainer
from consumers.learner.trainer import Trainer
from pipeline.stage import StageContext
from schemas.errors import RankLost
from schemas.reasons import Reason
from topics.clock import Deadline


class FollowerStage:
    """See the module. Constructing it does no I/O."""

    def __init__(self, context: StageContext, setup: LearnerSetup, *, rank: int) -> None:
        self._context = context
        self._setup = setup
        self._rank = rank
        self._work: _Work | None = None
        self._is_sound = True  # False inside a turn, and after one that failed

    @property
    def finished(self) -> bool:
        return self._work is not None and self._work.finished

    def start(self, *, deadline: Deadline) -> None:
        """Steps (1) to (3) of the module.

        Raises:
            EngineError: the model directory cannot be loaded.
            RankLost: rank 0 is not there in time.
            SettingsError: settings or model differ from rank 0's.
        """
        context, setup = self._context, self._setup
        context.metrics.gauge("ranks", setup.settings.ranks)
        trainer = make_trainer(context, setup, rank=self._rank)  # (1)
        group = meet(context, setup, rank=self._rank, trainer=trainer, deadline=deadline)  # (2)
        if group is None:
            return
        try:
            start = take_over(group, trainer)  # (3)
        except RankLost:
            if context.stop.requested:  # rank 0 has left for the same reason
                return
            raise
        join_team(trainer, group, setup=setup, step=start.step)
        assembler = make_assembler(
            context,
            setup,
            trainer=trainer,
            lineages=start.lineages(run=context.run.name),
            closed=start.closed(),
            step=start.step,
        )
        own = own_partitions(context, setup, rank=self._rank)
        intake = Intake(
            context,
            assembler,
            settings=setup.settings,
            positions=start.positions(),
            partitions=own,
            has_reference=setup.has_reference,
        )
        part = Part(context, assembler, intake=intake, partitions=own)
        self._work = _Work(context, setup, group=group, trainer=trainer, part=part)

    def turn(self) -> None:
        """Do one command of rank 0.

        Raises:
            RankLost: a rank is missing, or rank 0 ended with an error.
        """
        if self._work is not None:
            self._is_sound = False
            self._work.follow()
            self._is_sound = True

    def stop(self, *, deadline: Deadline) -> None:
        """When asked to stop: follow on until rank 0, which hears of it with the next answer, ends the run in order.

        Raises:
            RankLost: a rank is missing, or rank 0 ended with an error.
        """
        work = self._work
        if work is None:
            return
        try:
            while self._is_sound and not work.finished and not deadline.expired:
                work.follow()
        finally:
            work.close()


class _Work:
    """What a follower does once it has begun."""

    def __init__(
        self, context: StageContext, setup: LearnerSetup, *, group: RankGroup, trainer: Trainer, part: Part
    ) -> None:
        self._context = context
        self._cloning = setup.settings.cloning
        self._group = group
        self._trainer = trainer
        self._part = part
        self._flow = BatchFlow(context)
        self._demonstrations: Demonstrations | None = None
        self._deeds = {
            "read": self._read,
            "train": self._train,
            "take": self._take,
            "close": self._close,
            "clone": self._clone,
            "cloned": self._cloned,
            "greet": self._greet,
            "leave": self._leave,
            "failed": self._fail,
        }
        self.finished = False

    def follow(self) -> None:
        """Hear one command and do it."""
        command = Command.parse(self._group.receive())
        self._deeds[command.do](command)

    def close(self) -> None:
        """Stop reading, and let go of the others."""
        self._group.close()
        self._part.close()

    def _read(self, command: Command) -> None:
        self._context.events.enter("waiting_for_data")
        self._group.gather(self._part.read(command).to_bytes())

    def _train(self, command: Command) -> None:
        batch = self._part.take(command)
        self._flow.cut(batch)
        with self._context.events.phase("forward_backward"):
            stats = self._trainer.step(batch)
        self._flow.trained(batch)
        taken = self._part.close_trained(batch)
        self._answer(replace(taken, drafts=with_gaps(taken.drafts, stats.gaps)))

    def _take(self, _: Command) -> None:
        self._answer(self._part.outcomes())

    def _close(self, command: Command) -> None:
        self._answer(self._part.close_open(Reason(command.text)))

    def _clone(self, command: Command) -> None:
        self._context.events.enter("cloning")
        if self._demonstrations is None:
            seed = self._context.run.seed
            self._demonstrations = Demonstrations.open(self._cloning, trainer=self._trainer, seed=seed)
        self._trainer.clone(self._demonstrations.batch(command.step), command.step)

    def _cloned(self, _: Command) -> None:
        self._trainer.reset_optimizer()

    def _greet(self, _: Command) -> None:
        """Rank 0 is at work."""

    def _leave(self, _: Command) -> None:
        self.finished = True

    def _fail(self, command: Command) -> None:
        raise RankLost(
            f"learner rank 0 ended with an error: {command.text}; this rank ends as well",
            hint="the log of rank 0 says more",
        )

    def _answer(self, taken: Taken) -> None:
        self._group.gather(pack_report(taken))
