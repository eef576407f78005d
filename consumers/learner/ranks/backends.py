"""The objects of torch.distributed that ranks need: the store they meet at, and the backends they talk through.

Role: the adapter around the library's constructors; nothing here knows what a rank is for.
Data in: addresses, numbers. Data out: stores and backends.
Invariants: no global process group; only the given address is listened on; nothing of it unpickles anything.
Failure: the library raises `RuntimeError`, sockets raise `OSError`; callers give them their meaning.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeAlias, cast

from torch import Tensor
from torch.distributed import BroadcastOptions, GatherOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore, Work  # type: ignore[attr-defined]  # exported, not in its list

__all__ = ["Collectives", "Store", "gloo", "nccl", "own_address", "reach_store", "serve_store"]

Gather: TypeAlias = Callable[[list[list[Tensor]], list[Tensor], GatherOptions], Work]
_STORE_ANSWER = timedelta(seconds=2)  # longest wait for one answer of the store


class Collectives(Protocol):
    """What is used of a backend. Every call begins a collective, which ends within the backend's limit."""

    def broadcast(self, tensors: list[Tensor], opts: BroadcastOptions) -> Work:
        """Fill the tensor with that of the root."""
        ...

    def allreduce(self, tensors: list[Tensor]) -> Work:
        """Replace the tensor by the sum over all ranks."""
        ...

    def allgather(self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor]) -> Work:
        """Every rank's tensor to every rank."""
        ...

    gather: Gather  # every rank's tensor to the root


def own_address(towards: str) -> str:
    """The address of this host from which another one is reached; nothing is sent.

    Raises:
        OSError: the name cannot be resolved, or there is no way to it.
    """
    family, kind, _, _, address = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def serve_store(host: str, port: int) -> TCPStore:
    """A store at this address only; port 0 takes a free one (`.port` tells).

    Raises:
        OSError: the address is not ours, or the port is taken.
        RuntimeError: of the library.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family, backlog=128)
    taken = listener.getsockname()[1]
    return TCPStore(
        host,
        taken,
        is_master=True,
        timeout=_STORE_ANSWER,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # left to itself it would listen on all addresses
    )


def reach_store(host: str, port: int) -> TCPStore:
    """The store at this address.

    Raises:
        OSError: nobody listens there.
        RuntimeError: who listens there does not answer within seconds, or is no store.
    """
    with socket.create_connection((host, port), timeout=_STORE_ANSWER.total_seconds()):
        pass  # the library tries for long, and writes pages about it
    return TCPStore(host, port, is_master=False, timeout=_STORE_ANSWER, wait_for_workers=False)


def gloo(store: Store, *, rank: int, num_ranks: int, address: str, limit_s: float) -> Collectives:
    """Connect to all ranks over TCP, for tensors on the CPU.

    Args:
        store: shared by the ranks.
        address: of this host, towards the others.
        limit_s: longest time of one collective, and of this call.

    Raises:
        RuntimeError: a rank is not there.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stub has its other name only
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=limit_s)
    made = ProcessGroupGloo(PrefixStore("gloo", store), rank, num_ranks, options)
    return cast("Collectives", made)


def nccl(store: Store, *, rank: int, num_ranks: int, limit_s: float) -> Collectives:
    """Connect to all ranks through NCCL, for tensors on the current GPU; it connects with the first collective.

    Args:
        store: shared by the ranks.
        limit_s: longest time of one collective.
    """
    from torch.distributed import ProcessGroupNCCL  # noqa: PLC0415 - not part of every build

    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # a collective over its limit raises where it is waited for
    made = ProcessGroupNCCL(PrefixStore("nccl", store), rank, num_ranks, timeout=timedelta(seconds=limit_s))  # type: ignore[call-arg]
    return cast("Collectives", made)
