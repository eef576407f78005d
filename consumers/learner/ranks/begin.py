"""How a set of ranks begins: the seat of each, and what rank 0 does to lead the others.

Role: puts the parts of this package together; nothing of it is imported by a learner of one rank.
Data in: settings, and on rank 0 what was restored. Data out: a connected group; rank 0's `DataSide`.
Failure: `RankLost` when a rank does not come; `SettingsError` when settings differ, or parameters are sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from consumers.learner.data import DataSide
from consumers.learner.intake import Intake
from consumers.learner.ranks.gradients import GroupTeam, check_replicated
from consumers.learner.ranks.group import RankGroup
from consumers.learner.ranks.lead import RankedData
from consumers.learner.ranks.meeting import Seat, digest_of, host, join
from consumers.learner.ranks.part import Part, partitions_of
from consumers.learner.ranks.state import hand_out
from consumers.learner.recovery import Recovered
from consumers.learner.setup import LearnerSetup, make_assembler
from consumers.learner.trainer import Trainer
from pipeline.history import Lineages
from pipeline.stage import StageContext
from pipeline.traffic.classes import GRADIENT_SYNC
from topics.clock import Deadline


def meet(
    context: StageContext, setup: LearnerSetup, *, rank: int, trainer: Trainer, deadline: Deadline
) -> RankGroup | None:
    """The ranks, connected. None: the stage was asked to stop meanwhile.

    Raises:
        RankLost: not all ranks came in time.
        SettingsError: settings differ, or the model's parameters are sharded.
        LeaseHeld: another process took part as this rank.
    """
    check_replicated(list(trainer.model.parameters()))
    seat = _seat(context, setup, rank=rank)
    with context.events.phase("waiting_for_ranks"):
        meeting = host if rank == 0 else join
        return meeting(context, seat, deadline=deadline)


def lead(
    context: StageContext,
    setup: LearnerSetup,
    *,
    group: RankGroup,
    trainer: Trainer,
    recovered: Recovered,
    lineages: Lineages,
) -> DataSide:
    """Rank 0: hand out the state, and see the groups of all ranks from here on.

    Raises:
        RankLost: a rank did not take it within the limit.
    """
    hand_out(group, trainer, recovered=recovered, lineages=lineages)
    join_team(trainer, group, setup=setup, step=recovered.step, syncing=lambda: context.events.within(GRADIENT_SYNC))
    assembler = make_assembler(
        context, setup, trainer=trainer, lineages=lineages, closed=recovered.closed, step=recovered.step
    )
    own = own_partitions(context, setup, rank=0)
    intake = Intake(
        context,
        assembler,
        settings=setup.settings,
        positions=recovered.positions,
        partitions=own,
        has_reference=setup.has_reference,
    )
    return RankedData(
        context,
        group,
        part=Part(context, assembler, intake=intake, partitions=own),
        intake=intake,
        positions=recovered.positions,
        closed=recovered.closed,
    )


def join_team(
    trainer: Trainer,
    group: RankGroup,
    *,
    setup: LearnerSetup,
    step: int,
    syncing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Let a trainer train with the others from `step` on; `syncing` is entered while gradients are under way."""
    every = setup.settings.compare_every_steps
    trainer.team = GroupTeam(group, compare_every=every, step=step, syncing=syncing)


def own_partitions(context: StageContext, setup: LearnerSetup, *, rank: int) -> tuple[int, ...]:
    """The partitions this rank reads."""
    return partitions_of(rank, num_ranks=setup.settings.ranks, num_partitions=context.run.partitions)


def _seat(context: StageContext, setup: LearnerSetup, *, rank: int) -> Seat:
    digest = digest_of(  # without what may differ between hosts
        context.run.model_dump(mode="json", exclude={"dir", "metrics_port", "metrics_host"}),
        setup.settings.model_dump(mode="json", exclude={"oracle_file"}),
        setup.model.model_dump(mode="json", exclude={"path"}),
        setup.rewards,
        {"has_reference": setup.has_reference},
    )
    return Seat(rank=rank, settings=setup.settings, digest=digest, on_gpu=setup.model.device.startswith("cuda"))
