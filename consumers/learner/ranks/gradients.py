"""Data-parallel training: gradients summed over the ranks, and the check that they stay the same.

Role: what `consumers.learner.trainer` asks of a team, over a `RankGroup`.
Data in and out: gradients in place; digests.
Invariants: sums are taken in float32, in buckets of bounded size, over parameters in their own order; every rank ends
with the same bits, as each element is summed in one place and handed out. A rank without samples adds zeros.
Failure: `RankLost`; `RanksDiverged` naming the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from consumers.learner.ranks.group import RankGroup
from schemas.errors import RanksDiverged, SettingsError

BUCKET_ELEMENTS = 16 * 1024 * 1024  # of one collective, 64 MiB; a larger parameter stands alone


class GroupTeam:
    """A `Team` (consumers.learner.team) over a group.

    Args:
        group: connected.
        compare_every: steps between comparisons.
        step: of the learner now.
        syncing: entered while gradients are under way, so that others on this host stay out of their way.
    """

    def __init__(
        self,
        group: RankGroup,
        *,
        compare_every: int,
        step: int,
        syncing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._group = group
        self._syncing = syncing
        self._compare_every = compare_every
        self._equal_at = step  # the last step at which all ranks were found equal

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def num_ranks(self) -> int:
        return self._group.num_ranks

    def sum(self, values: Sequence[float]) -> list[float]:
        return self._group.sum(values)

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        with self._syncing():
            for bucket in _buckets(parameters):
                flat = _flatten(bucket)
                self._group.sum_tensor(flat)
                _put_back(bucket, flat)

    def is_compared(self, step: int) -> bool:
        return step % self._compare_every == 0

    def compare(self, digest: bytes, *, step: int) -> None:
        digests = self._group.all_of(digest)
        differing = [str(rank) for rank, other in enumerate(digests) if other != digests[0]]
        if differing:
            raise RanksDiverged(
                f"after step {step} learner rank(s) {', '.join(differing)} hold other weights than rank 0; they were "
                f"equal after step {self._equal_at}, and what was trained since is not to be trusted",
                hint="a bad processor or memory, or different versions of torch: check the hosts; then remove the "
                f"checkpoints of later steps than {self._equal_at} and start again",
            )
        self._equal_at = step


def check_replicated(parameters: Sequence[nn.Parameter]) -> None:
    """Refuse parameters that are spread over ranks: every rank must hold all of each.

    Raises:
        SettingsError: one is sharded.
    """
    sharded = [number for number, parameter in enumerate(parameters) if isinstance(parameter, DTensor)]
    if sharded:
        raise SettingsError(
            f"{len(sharded)} of {len(parameters)} parameters are sharded (DTensor); learner.ranks trains models that "
            "every rank holds as a whole",
            hint="load the model unsharded, or set learner.ranks = 1",
        )


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and size + parameter.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


def _flatten(bucket: Sequence[nn.Parameter]) -> Tensor:
    """All gradients one after the other, then one element per parameter that says whether it has one."""
    size = sum(parameter.numel() for parameter in bucket)
    flat = torch.zeros(size + len(bucket), dtype=torch.float32, device=bucket[0].device)
    begin = 0
    for number, parameter in enumerate(bucket):
        end = begin + parameter.numel()
        if parameter.grad is not None:
            flat[begin:end] = parameter.grad.reshape(-1)
            flat[size + number] = 1.0
        begin = end
    return flat


def _put_back(bucket: Sequence[nn.Parameter], flat: Tensor) -> None:
    size = sum(parameter.numel() for parameter in bucket)
    has_one = flat[size:].tolist()
    begin = 0
    for number, parameter in enumerate(bucket):
        end = begin + parameter.numel()
        summed = flat[begin:end].view_as(parameter).to(parameter.dtype)
        parameter.grad = summed if has_one[number] > 0 else None
        begin = end
