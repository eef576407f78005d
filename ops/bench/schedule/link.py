"""The learner host's link out, as a fluid: what is under way shares its rate.

Role: how long a publish takes while a checkpoint is being uploaded, and while it is not.
Data in: flows of a class and a size, the present time. Data out: the time at which the next one is through.
Invariants: all flows together never exceed the rate; managed, weights go first and other classes get what they leave;
unmanaged, all get the same.
Failure: none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

WEIGHTS, CHECKPOINTS = "weights", "checkpoints"
_ENOUGH = 1.0  # byte: less is rounding


@dataclass(eq=False)
class Flow:
    """A transfer under way."""

    kind: str
    left_bytes: float
    began_s: float
    done: Callable[[float], None]  # called with the seconds that it took


class Link:
    """See the module.

    Args:
        bytes_s: its rate.
        managed: whether traffic classes hold.
    """

    def __init__(self, *, bytes_s: float, managed: bool) -> None:
        self._bytes_s = bytes_s
        self._managed = managed
        self._flows: list[Flow] = []
        self._at_s = 0.0

    def send(self, kind: str, num_bytes: float, *, now_s: float, done: Callable[[float], None]) -> Flow:
        """Begin a transfer."""
        self.advance(now_s)
        flow = Flow(kind=kind, left_bytes=num_bytes, began_s=now_s, done=done)
        self._flows.append(flow)
        return flow

    def busy(self, kind: str) -> bool:
        """Whether a transfer of this class is under way."""
        return any(flow.kind == kind for flow in self._flows)

    def advance(self, now_s: float) -> None:
        """Let time pass; calls `done` of what is through."""
        while self._flows and (next_s := self.next_s()) <= now_s:
            self._pass(next_s)
            through = [flow for flow in self._flows if flow.left_bytes <= _ENOUGH]
            self._flows = [flow for flow in self._flows if flow.left_bytes > _ENOUGH]
            for flow in through:
                flow.done(self._at_s - flow.began_s)
        self._pass(now_s)

    def next_s(self) -> float:
        """When the next transfer is through, as things stand; infinite: none is under way."""
        shares = self._shares()
        return min(
            (self._at_s + max(0.0, flow.left_bytes - _ENOUGH / 2) / share for flow, share in shares if share > 0),
            default=math.inf,
        )

    def _pass(self, now_s: float) -> None:
        for flow, share in self._shares():
            flow.left_bytes -= share * max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)

    def _shares(self) -> list[tuple[Flow, float]]:
        first = [flow for flow in self._flows if flow.kind == WEIGHTS]
        served = first if self._managed and first else self._flows
        return [(flow, self._bytes_s / len(served) if flow in served else 0.0) for flow in self._flows]
