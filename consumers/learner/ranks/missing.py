"""Which rank is missing, after a collective failed: those whose heartbeats do not arrive on `events` any more.

Role: turns "connection closed" or "timed out" into the name of a process. Every rank asks for itself.
Data in: stage events from now on. Data out: a `RankLost` with the ranks' names.
Invariants: a heartbeat comes from a thread of its own, so a rank that is merely slow is heard, one that was killed or
stands still is not; liveness is arrival time on the local monotonic clock (promise 13). What arrives at first may have
been written before the death, so it proves nothing.
Failure: none; when the broker does not answer, nobody is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.stage import StageContext
from schemas.errors import LogError, RankLost
from schemas.records import StageEvent
from topics.catalog import EVENTS
from topics.clock import Deadline
from topics.log import ReaderSettings

_OLD_BEATS = 1.0  # heartbeats for which an event proves nothing
_NEW_BEATS = 2.5  # heartbeats after these within which a living rank is heard
_POLL_S = 0.1
_MAX_SAID_CHARS = 300  # of the library's message


@dataclass(frozen=True, kw_only=True)
class MissingRanks:
    """Makes the error of a collective that failed."""

    context: StageContext  # of this rank
    instances: Mapping[int, str]  # of all ranks
    limit_s: float  # longest time of a collective

    def __call__(self, doing: str, error: RuntimeError) -> RankLost:
        """Listen for some heartbeats, then say who is missing.

        Args:
            doing: what the collective was for.
            error: what the library said.
        """
        said = str(error).strip().partition("\n")[0][:_MAX_SAID_CHARS]
        return RankLost(
            f"{self._who()} (while {doing}: {said}); this rank ends as well, since one alone cannot go on",
            hint="`rlweave up` starts all ranks again from the newest checkpoint; the log of the missing rank says "
            "more. Ranks that are only slow need a higher learner.collective_limit_s",
        )

    def _who(self) -> str:
        silent = self._silent()
        if silent is None:
            return "a learner rank is missing; which one is not known, as the broker does not answer"
        if silent:
            return "; ".join(f"learner rank {rank} is missing: {self.instances[rank]} is not heard" for rank in silent)
        return f"all learner ranks are heard, but one ended by itself or needed more than {self.limit_s:g} s"

    def _silent(self) -> list[int] | None:
        """Ranks that were not heard for some heartbeats; None when our own heartbeats do not arrive either."""
        context, beat_s = self.context, self.context.run.heartbeat_s
        heard: set[str] = set()
        began_s = context.clock.monotonic()
        deadline = Deadline.after((_OLD_BEATS + _NEW_BEATS) * beat_s, clock=context.clock)
        settings = ReaderSettings(topics=(EVENTS,), start="latest", instance=context.instance)
        reader = context.log.reader(settings, hooks=context.hooks())
        try:
            while not deadline.expired and not heard >= set(self.instances.values()):
                for envelope in reader.poll(1000, deadline=Deadline.after(_POLL_S, clock=context.clock)):
                    is_new = context.clock.monotonic() - began_s > _OLD_BEATS * beat_s
                    if isinstance(envelope.record, StageEvent) and is_new:
                        heard.add(envelope.record.instance)
        except LogError:
            return None
        finally:
            reader.close()
        if context.instance not in heard:
            return None
        return sorted(rank for rank, instance in self.instances.items() if instance not in heard)
