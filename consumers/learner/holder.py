"""Who holds a run: the learner's lease, taken at start and renewed from a thread of its own.

Role: the early, friendly refusal of a second learner. What really fences is the broker (promise 5).
Invariants: a lease whose holder lives (it is being renewed) is refused as soon as that shows; one whose holder died is
taken over when it ends, within its life time.
Failure: `LeaseHeld` naming the holder; without Redis the run goes on with a notice.
"""

from __future__ import annotations

import logging
import threading

from pipeline.lease import Lease, LeaseState
from pipeline.redis_client import RedisClient
from pipeline.stage import StageContext
from schemas.errors import LeaseHeld
from topics.clock import Deadline

_log = logging.getLogger(__name__)
_RENEWALS_PER_LIFE = 3
_POLL_S = 0.1


class RunHolder:
    """Holds the lease of one run's learner role."""

    def __init__(self, context: StageContext, client: RedisClient | None, *, lease_s: float) -> None:
        self._context = context
        self._lease_s = lease_s
        self._lease: Lease | None = None
        if client is not None:
            key = f"rlweave:{context.run.name}:lease:learner"
            self._lease = Lease(client, key=key, owner=context.instance, ttl_s=lease_s)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def take(self) -> None:
        """Take the lease; waits at most one life time for that of a dead holder.

        Raises:
            LeaseHeld: another learner of this run is alive.
        """
        if self._lease is None:
            self._context.events.notice("lease_skipped", details={"why": "no Redis is set; the broker alone fences"})
            return
        # A dead holder's lease ends within one life time; one that outlasts that is being renewed.
        deadline = Deadline.after(self._lease_s * 1.2, clock=self._context.clock)
        while True:
            try:
                result = self._lease.acquire()
                break
            except LeaseHeld:
                if deadline.expired or self._context.stop.requested:
                    raise
                self._context.stop.wait(_POLL_S)
        if result.warning:
            self._context.events.notice("lease_unknown", details={"why": result.warning})
        self._thread.start()

    def release(self) -> None:
        """Let the next learner begin at once."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._lease_s)
        if self._lease is not None:
            self._lease.release()

    def _renew(self) -> None:
        lease = self._lease
        while lease is not None and not self._end.wait(self._lease_s / _RENEWALS_PER_LIFE):
            result = lease.renew()
            if result.state is LeaseState.LOST:
                # Not a reason to stop: Redis may have been flushed. A second learner fences us at the broker.
                _log.warning("the learner's lease is held by %s", result.holder or "nobody")
