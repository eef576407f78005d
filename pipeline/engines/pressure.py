"""What an engine says of its own load, where it can.

Role: the values by which a rollout producer sets how many sequences it keeps in its engine.
Invariants: what an engine cannot say is None, never 0; times are of this process's monotonic clock.
Failure: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class EnginePressure:
    """One look at an engine."""

    measured_s: float  # when, on the monotonic clock of this process
    kv_use_share: float | None = None  # part of the KV cache in use, 0 to 1
    queued: int | None = None  # requests that wait although the engine has them
    running: int | None = None  # requests in its batch
    preemptions: int | None = None  # requests thrown out of the batch, since the engine began
    tokens: int | None = None  # completion tokens made, since the engine began


@runtime_checkable
class ReportsPressure(Protocol):
    """An engine, or a connection to one, that can say."""

    @property
    def pressure(self) -> EnginePressure | None:
        """The last look; None: there was none, or the engine does not say."""
        ...


def pressure_of(source: object) -> EnginePressure | None:
    """The last look at an engine; None where it cannot say."""
    return source.pressure if isinstance(source, ReportsPressure) else None
