"""The driver's side of all nodes: starts them, tells them what to do, hears what they say.

Invariants: it sleeps until a node says something or a limit is over, so that it takes nothing from what is measured.
Failure: a node that cannot carry out an order, or ends when it should not, is `BenchError`; one that stays silent is
`DeadlineExceeded`.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TypeVar

from ops.bench.weights import words
from topics.clock import Deadline

_PACKAGES = Path(__file__).parents[3]
_READ_BYTES = 65536
_END_LIMIT_S = 5.0


class Spawn(Protocol):
    """`Lab.start`, or something like it."""

    def __call__(self, host: str, argv: Sequence[str], *, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start it."""
        ...


_Answer = TypeVar("_Answer", bound=words.Answer)


@dataclass(frozen=True, kw_only=True)
class Gone:
    """A node's process has ended."""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a node said, or that it is gone."""

    node: str
    answer: words.Answer | Gone


@dataclass(kw_only=True)
class _Process:
    popen: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: int
    rest: bytes = b""  # of a line that has not ended


class Crew:
    """Nodes by name. A node runs on a host; two nodes may share one.

    Args:
        spawn: starts a process on a host, with pipes to its input and output, and ends it at the latest when all ends.
    """

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._selector = selectors.DefaultSelector()
        self._processes: dict[str, _Process] = {}

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes whose processes are not known to have ended."""
        return frozenset(self._processes)

    def start(self, node: str, *, host: str) -> None:
        """Start a node; it says `Hello` when it can be told something."""
        path = os.pathsep.join(part for part in (str(_PACKAGES), os.environ.get("PYTHONPATH")) if part)
        argv = [sys.executable, "-m", "ops.bench.weights.node"]
        popen = self._spawn(host, argv, env=os.environ | {"PYTHONPATH": path})
        if popen.stdin is None or popen.stdout is None:
            raise words.BenchError(f"node {node} was started without pipes")
        process = _Process(popen=popen, stdin=popen.stdin, stdout=popen.stdout.fileno())
        self._processes[node] = process
        self._selector.register(process.stdout, selectors.EVENT_READ, node)

    def rename(self, node: str, *, to: str) -> None:
        """Give a node the name of one that is gone."""
        self._processes[to] = self._processes.pop(node)
        self._selector.modify(self._processes[to].stdout, selectors.EVENT_READ, to)

    def tell(self, node: str, order: words.Order) -> None:
        """Give an order.

        Raises:
            BenchError: the node is gone.
        """
        if node not in self._processes:
            raise words.BenchError(f"node {node} has ended; it cannot be told {type(order).__name__}")
        try:
            self._processes[node].stdin.write(words.encode(order))
            self._processes[node].stdin.flush()
        except BrokenPipeError as error:
            raise words.BenchError(f"node {node} ended when it was told {type(order).__name__}") from error

    def kill(self, node: str) -> None:
        """SIGKILL. `Gone` follows."""
        self._processes[node].popen.kill()

    def hear(self, *, limit_s: float) -> Iterator[Heard]:
        """What was said since the last time; waits for at most `limit_s` for something."""
        for key, _ in self._selector.select(max(0.0, limit_s)):
            yield from self._read(key.data)

    def ask(self, orders: dict[str, words.Order], kind: type[_Answer], *, limit_s: float = 30.0) -> dict[str, _Answer]:
        """Give orders, and wait for an answer of one kind from each node that got one.

        Raises:
            BenchError: an order failed, or a node ended.
            DeadlineExceeded: an answer is missing.
        """
        for node, order in orders.items():
            self.tell(node, order)
        return self.wait(orders.keys(), kind, limit_s=limit_s)

    def wait(self, nodes: Collection[str], kind: type[_Answer], *, limit_s: float = 30.0) -> dict[str, _Answer]:
        """Wait for an answer of one kind from each of `nodes`; others are dropped.

        Raises:
            BenchError: an order failed, or a node ended.
            DeadlineExceeded: an answer is missing.
        """
        deadline = Deadline.after(limit_s)
        found: dict[str, _Answer] = {}
        while missing := set(nodes) - found.keys():
            deadline.check(f"{kind.__name__} of nodes {', '.join(sorted(missing))}")
            for heard in self.hear(limit_s=deadline.remaining_s()):
                if isinstance(heard.answer, kind):
                    found[heard.node] = heard.answer
                elif heard.node in missing:
                    refuse(heard)
        return found

    def _read(self, node: str) -> Iterator[Heard]:
        process = self._processes[node]
        data = os.read(process.stdout, _READ_BYTES)
        if not data:
            self._selector.unregister(process.stdout)
            process.popen.wait(_END_LIMIT_S)
            del self._processes[node]
            yield Heard(node=node, answer=Gone())
            return
        *lines, process.rest = (process.rest + data).split(b"\n")
        for line in lines:
            yield Heard(node=node, answer=words.decode_answer(line))


def refuse(heard: Heard) -> None:
    """Nothing, unless a node failed or ended.

    Raises:
        BenchError: it did.
    """
    if isinstance(heard.answer, words.Failed):
        raise words.BenchError(f"node {heard.node}: {heard.answer.message}")
    if isinstance(heard.answer, Gone):
        raise words.BenchError(f"node {heard.node} ended by itself; its words are above")
