"""How the ranks begin with the same state: rank 0 restores a checkpoint and hands it out.

Role: model, optimizer and generator, lineage and closed groups, from rank 0 to all others.
Data in: on rank 0 a trainer and `Recovered`; elsewhere a fresh trainer. Data out: equal trainers, and a `Start`.
Invariants: only rank 0 needs the checkpoint folder; tensors travel as tensors, everything else as JSON.
Failure: `SettingsError` when a rank has loaded another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from consumers.learner import checkpoint
from consumers.learner.lora import trained_state
from consumers.learner.ranks.group import RankGroup
from consumers.learner.ranks.messages import Message
from consumers.learner.recovery import GENERATOR, Recovered
from consumers.learner.trainer import Trainer
from pipeline.history import ClosedSet, Lineages
from schemas.errors import SettingsError
from schemas.records import LineageStarted
from topics.log import TopicPartition

_DTYPES = {
    str(dtype).partition(".")[2]: dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
}
_MOST_GENERATOR_ELEMENTS = 64 * 1024  # of torch's own state
_Count = Annotated[int, Field(ge=0)]


class _Tensor(Message):
    """One tensor that follows."""

    name: str
    dtype: str
    shape: tuple[_Count, ...]


class Start(Message):
    """Where all ranks begin."""

    step: _Count
    origins: tuple[tuple[_Count, _Count, _Count], ...]  # lineage, parent, branch step
    places: tuple[tuple[str, _Count, _Count], ...]  # topic, partition, offset to read from
    watermark: _Count  # of the closed set
    above: tuple[_Count, ...]
    model: tuple[_Tensor, ...]
    optimizer: tuple[_Tensor, ...]  # and the generator

    def lineages(self, *, run: str) -> Lineages:
        """Which versions survive."""
        lineages = Lineages()
        for lineage, parent, branch_step in self.origins:
            lineages.add(
                LineageStarted(
                    run=run,
                    lineage=lineage,
                    parent=parent,
                    branch_step=branch_step,
                    seq=0,
                    holder="",
                    started_unix_ms=0,
                )
            )
        return lineages

    def closed(self) -> ClosedSet:
        """Groups that are closed."""
        return ClosedSet.from_json({"watermark": self.watermark, "above": list(self.above)})

    def positions(self) -> dict[TopicPartition, int]:
        """Where to read from."""
        return {(topic, partition): offset for topic, partition, offset in self.places}


def hand_out(group: RankGroup, trainer: Trainer, *, recovered: Recovered, lineages: Lineages) -> None:
    """Rank 0: give the others its state.

    Raises:
        RankLost: one did not take it within the limit.
    """
    model, optimizer = _state_of(trainer)
    closed = recovered.closed
    start = Start(
        step=recovered.step,
        origins=tuple((lineage, *origin) for lineage, origin in sorted(lineages.origins.items())),
        places=tuple((topic, partition, offset) for (topic, partition), offset in recovered.positions.items()),
        watermark=closed.watermark,
        above=tuple(closed.above),
        model=_described(model) + _base_of(trainer),
        optimizer=_described(optimizer),
    )
    group.send(start.to_bytes())
    for tensor in (*model.values(), *optimizer.values()):
        group.share(tensor.detach().cpu())


def take_over(group: RankGroup, trainer: Trainer) -> Start:
    """Another rank: get rank 0's state into `trainer`.

    Raises:
        SettingsError: it has another model.
        RankLost: rank 0 gave nothing within the limit.
    """
    start = Start.parse(group.receive())
    model, _ = _state_of(trainer)
    if _described(model) + _base_of(trainer) != start.model:
        raise SettingsError(
            f"learner rank {group.rank} has loaded another model than rank 0: names, shapes or dtypes differ",
            hint="give every rank the same model.path and the same files in it",
        )
    for tensor in model.values():
        received = torch.empty(tensor.shape, dtype=tensor.dtype)
        group.share(received)
        tensor.copy_(received)
    optimizer: dict[str, Tensor] = {}
    largest = max(_MOST_GENERATOR_ELEMENTS, *(tensor.numel() for tensor in model.values()))
    for described in start.optimizer:
        if described.dtype not in _DTYPES or prod(described.shape) > largest:
            raise SettingsError(
                f"rank 0 has an optimizer state {described.name!r} of {described.dtype} {list(described.shape)}, which "
                "belongs to no parameter here",
                hint="give every rank the same version of the program",
            )
        received = torch.empty(described.shape, dtype=_DTYPES[described.dtype])
        group.share(received)
        optimizer[described.name] = received
    checkpoint.restore_generator(trainer.generator, optimizer.pop(GENERATOR, None))
    checkpoint.restore_optimizer(trainer.optimizer, optimizer)
    return start


def _state_of(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    own, _ = trained_state(trainer.model)
    optimizer = checkpoint.optimizer_tensors(trainer.optimizer)
    return own, {**optimizer, GENERATOR: trainer.generator.get_state()}


def _base_of(trainer: Trainer) -> tuple[_Tensor, ...]:
    """The frozen base of adapters, named by its digest: every rank has loaded its own, so nothing follows."""
    return (_Tensor(name=trainer.base_digest, dtype="", shape=()),) if trainer.base_digest else ()


def _described(tensors: Mapping[str, Tensor]) -> tuple[_Tensor, ...]:
    return tuple(
        _Tensor(name=name, dtype=str(tensor.dtype).partition(".")[2], shape=tuple(tensor.shape))
        for name, tensor in tensors.items()
    )
