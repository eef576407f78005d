"""Sequences that a rollout producer keeps in its engine: all there is room for, or what the engine's pressure allows.

Role: between the stage, its generator and `pressure`, the controller.
Data in: what the engine says of itself. Data out: the generator's limit; gauges.
Invariants: with `admission = "fixed"`, and with an engine that says nothing of itself, the limit is `max_sequences`;
the latter is told once. What an engine cannot say has no gauge.
Failure: none.
"""

from __future__ import annotations

from pipeline.engines.base import Engine
from pipeline.engines.pressure import EnginePressure, pressure_of
from pipeline.stage import StageContext
from producers.rollout.generator import Generator
from producers.rollout.pressure import PressureControl
from producers.rollout.settings import RolloutSettings
from producers.rollout.tickets import Ticket

_PATIENCE_S = 10.0  # with a full engine, for its first word


class Admission:
    """Call `look` once a turn."""

    def __init__(
        self, engine: Engine, *, generator: Generator[Ticket], context: StageContext, settings: RolloutSettings
    ) -> None:
        self._engine = engine
        self._generator = generator
        self._context = context
        self._most = settings.max_sequences
        self._control: PressureControl | None = None
        if settings.admission == "pressure":
            self._control = PressureControl(
                settings.pressure, group_size=context.run.group_size, most=settings.max_sequences
            )
            generator.max_sequences = self._control.limit
        self._busy_since_s: float | None = None
        self._heard = False

    def look(self) -> None:
        """Follow the engine's pressure, and tell it."""
        seen, metrics = pressure_of(self._engine), self._context.metrics
        self._heard = self._heard or seen is not None
        if self._control is not None:
            self._follow(self._control, seen)
        limit = self._generator.max_sequences
        metrics.gauge("admitted_sequences", self._most if limit is None else limit)
        metrics.gauge("free_slots", self._generator.num_open_slots)
        if seen is not None:
            self._tell(seen)

    def _follow(self, control: PressureControl, seen: EnginePressure | None) -> None:
        now_s, held = self._context.clock.monotonic(), self._engine.num_running
        if not self._heard:
            self._wait_for_word(held, now_s=now_s)
        elif self._generator.max_sequences is not None:
            self._generator.max_sequences = control.look(seen, held=held, now_s=now_s)

    def _wait_for_word(self, held: int, *, now_s: float) -> None:
        """An engine that generates for a while without a word of its load has none to say."""
        if held == 0:
            self._busy_since_s = None
        elif self._busy_since_s is None:
            self._busy_since_s = now_s
        elif now_s - self._busy_since_s >= _PATIENCE_S and self._generator.max_sequences is not None:
            self._generator.max_sequences = None
            self._context.events.notice("pressure_unknown", max_sequences=self._most)

    def _tell(self, seen: EnginePressure) -> None:
        values = {
            "kv_use_share": seen.kv_use_share,
            "queued_sequences": seen.queued,
            "preemptions": seen.preemptions,
        }
        for name, value in values.items():
            if value is not None:
                self._context.metrics.gauge(name, value)
