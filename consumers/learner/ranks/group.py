"""Collectives between the ranks of a learner: bytes from rank 0, bytes to rank 0, sums over all.

Role: the one place that calls torch.distributed once the ranks have met (`consumers.learner.ranks.meeting`).
Data in and out: bytes (inside uint8 tensors, with a length), numbers, tensors. Never a pickled object.
Invariants: every collective ends within the limit the backends were made with; all ranks call the same ones in the
same order. After a failure nothing here may be used again.
Failure: `RankLost`, which names the rank that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, GatherOptions, Work

from consumers.learner.ranks.backends import Collectives, Store
from schemas.errors import RankLost

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
_SLOT_BYTES = 4096  # what one collective carries; longer messages need a second one
_HEAD_BYTES = 8
_LAST_WORD_S = 2.0  # longest time for telling the others why this rank ends

Lost = Callable[[str, RuntimeError], RankLost]  # what was being done, and what the library said


@dataclass(frozen=True, kw_only=True)
class Backends:
    """The library's own objects."""

    control: Collectives  # gloo, for messages
    gradients: Collectives  # gloo, or NCCL for parameters on a GPU
    store: Store  # where they met; kept, since NCCL connects later


def _nothing(_: int) -> None:
    """Nobody counts."""


class RankGroup:
    """One rank's end of the collectives.

    Args:
        backends: connected to all ranks.
        rank: our own.
        num_ranks: N.
        lost: makes the error of a failed collective; may take some seconds to find out who is missing.
        received: called with the bytes of gradients that came in, as a ring all-reduce moves them: each rank receives
            all but its own share twice (Patarasuk and Yuan, 2009).
    """

    def __init__(
        self,
        backends: Backends,
        *,
        rank: int,
        num_ranks: int,
        lost: Lost,
        received: Callable[[int], None] = _nothing,
    ) -> None:
        self._backends = backends
        self.rank = rank
        self.num_ranks = num_ranks
        self._lost = lost
        self._received = received
        self._why_broken = ""

    def close(self) -> None:
        """Let go of all connections; nothing may be called afterwards."""
        self._why_broken = "it was closed"
        del self._backends

    def send(self, content: bytes) -> None:
        """From rank 0 to all others.

        Raises:
            RankLost: a rank did not take part within the limit.
            ValueError: the message is too long.
        """
        self._send(content, limit=None)

    def send_last(self, content: bytes) -> bool:
        """As `send`, for a last word that nobody may be there to hear; gives whether all did."""
        if self._why_broken:
            return False
        try:
            self._send(content, limit=timedelta(seconds=_LAST_WORD_S))
        except RankLost:
            return False
        return True

    def receive(self) -> bytes:
        """What rank 0 sent.

        Raises:
            RankLost: it sent nothing within the limit.
            ValueError: the message is too long.
        """
        slot = torch.zeros(_SLOT_BYTES, dtype=torch.uint8)
        self._broadcast(slot, doing="waiting for what rank 0 decides", limit=None)
        size = _size_of(slot)
        if size <= _SLOT_BYTES - _HEAD_BYTES:
            return _bytes_of(slot[_HEAD_BYTES : _HEAD_BYTES + size])
        rest = torch.zeros(size, dtype=torch.uint8)
        self._broadcast(rest, doing="waiting for what rank 0 decides", limit=None)
        return _bytes_of(rest)

    def gather(self, content: bytes) -> list[bytes]:
        """From all ranks to rank 0, which gets them by rank; the others get nothing.

        Raises:
            RankLost: a rank did not take part within the limit.
            ValueError: a message is too long.
        """
        doing = "gathering what the ranks have to say"
        slots = self._all_slots(_slot_of(content), doing=doing)
        sizes = [_size_of(slot) for slot in slots]
        longest = max(sizes)
        if longest <= _SLOT_BYTES - _HEAD_BYTES:
            found = [_bytes_of(slot[_HEAD_BYTES : _HEAD_BYTES + size]) for slot, size in zip(slots, sizes, strict=True)]
            return found if self.rank == 0 else []
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = _tensor_of(content)
        taken = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes] if self.rank == 0 else []
        options = GatherOptions()
        options.rootRank = 0
        self._wait(
            lambda: self._backends.control.gather([taken] if taken else [], [padded], options), doing=doing, limit=None
        )
        return [_bytes_of(each[:size]) for each, size in zip(taken, sizes, strict=False)]

    def all_of(self, content: bytes) -> list[bytes]:
        """A short content of every rank, of one length, by rank; all ranks get it.

        Raises:
            RankLost: a rank did not take part within the limit.
        """
        slots = self._all_slots(_slot_of(content), doing="comparing the ranks")
        return [_bytes_of(slot[_HEAD_BYTES : _HEAD_BYTES + len(content)]) for slot in slots]

    def share(self, tensor: Tensor) -> None:
        """Fill a CPU tensor with what rank 0 has in it; shape and dtype are the same on all ranks.

        Raises:
            RankLost: a rank did not take part within the limit.
        """
        if tensor.numel() == 0:
            return
        flat = tensor.reshape(-1).contiguous().view(torch.uint8)
        self._broadcast(flat, doing="handing out the state of the model", limit=None)
        if self.rank != 0:
            tensor.copy_(flat.view(tensor.dtype).reshape(tensor.shape))

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks, in float64.

        Raises:
            RankLost: a rank did not take part within the limit.
        """
        summed = torch.tensor(list(values), dtype=torch.float64)
        self._wait(lambda: self._backends.control.allreduce([summed]), doing="summing over the ranks", limit=None)
        return [float(value) for value in summed.tolist()]

    def sum_tensor(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks; all of them get the same bits.

        Raises:
            RankLost: a rank did not take part within the limit.
        """
        self._wait(lambda: self._backends.gradients.allreduce([tensor]), doing="summing gradients", limit=None)
        self._received(2 * tensor.nbytes * (self.num_ranks - 1) // self.num_ranks)

    def _send(self, content: bytes, *, limit: timedelta | None) -> None:
        doing = "telling the other ranks what to do"
        self._broadcast(_slot_of(content), doing=doing, limit=limit)
        if len(content) > _SLOT_BYTES - _HEAD_BYTES:
            self._broadcast(_tensor_of(content), doing=doing, limit=limit)

    def _broadcast(self, tensor: Tensor, *, doing: str, limit: timedelta | None) -> None:
        options = BroadcastOptions()
        options.rootRank = 0
        self._wait(lambda: self._backends.control.broadcast([tensor], options), doing=doing, limit=limit)

    def _all_slots(self, slot: Tensor, *, doing: str) -> list[Tensor]:
        slots = [torch.zeros_like(slot) for _ in range(self.num_ranks)]
        self._wait(lambda: self._backends.control.allgather([slots], [slot]), doing=doing, limit=None)
        return slots

    def _wait(self, begin: Callable[[], Work], *, doing: str, limit: timedelta | None) -> None:
        if self._why_broken:
            raise RankLost(f"a collective failed before, so there can be no other: {self._why_broken}")
        try:
            work = begin()
            if limit is None:
                work.wait()
            else:
                work.wait(limit)
        except RuntimeError as error:  # all that the library raises is one
            self._why_broken = f"{doing}: {error}"
            if limit is not None:
                raise RankLost(self._why_broken) from error
            raise self._lost(doing, error) from error


def _slot_of(content: bytes) -> Tensor:
    if len(content) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message between ranks of {len(content)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    slot = torch.zeros(_SLOT_BYTES, dtype=torch.uint8)
    head = len(content).to_bytes(_HEAD_BYTES, "little") + content[: _SLOT_BYTES - _HEAD_BYTES]
    slot[: len(head)] = _tensor_of(head)
    return slot


def _size_of(slot: Tensor) -> int:
    size = int.from_bytes(_bytes_of(slot[:_HEAD_BYTES]), "little")
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message between ranks of {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    return size


def _tensor_of(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)


def _bytes_of(tensor: Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())
