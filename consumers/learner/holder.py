"""Who holds a run: the learner's lease, taken at start and renewed from a thread of its own.

Role: the early, friendly refusal of a second learner. What really fences is the broker (promise 5).
Invariants: a lease whose holder lives (it is being renewed) is refused as soon as that shows; one whose holder died is
taken over when it ends, within its life time. A process that was frozen for longer than that asks again before it
writes anything a broker does not fence: checkpoints and offsets.
Failure: `LeaseHeld` naming the holder; `Fenced` once another process has the lease; without Redis the run goes on with
a notice.
"""

from __future__ import annotations

import logging
import threading

from pipeline.lease import Lease, LeaseState
from pipeline.redis_client import RedisClient
from pipeline.stage import StageContext
from schemas.errors import Fenced, LeaseHeld
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
        self._held_s: float | None = None  # when it was last seen to be ours; None: never taken
        self._lost_to = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def take(self) -> bool:
        """Take the lease; waits at most one life time for that of a dead holder. False: asked to stop meanwhile.

        Raises:
            LeaseHeld: another learner of this run is alive.
        """
        if self._lease is None:
            self._context.events.notice("lease_skipped", details={"why": "no Redis is set; the broker alone fences"})
            return True
        # A dead holder's lease ends within one life time; one that outlasts that is being renewed.
        deadline = Deadline.after(self._lease_s * 1.2, clock=self._context.clock)
        while True:
            try:
                result = self._lease.acquire()
                break
            except LeaseHeld:
                if deadline.expired:
                    raise
                if self._context.stop.wait(_POLL_S):
                    return False
        if result.warning:
            self._context.events.notice("lease_unknown", details={"why": result.warning})
        self._held_s = self._context.clock.monotonic()
        self._thread.start()
        return True

    def check(self) -> None:
        """Make sure that the lease is still ours; asks only when it has not been renewed for its life time.

        Raises:
            Fenced: another process has taken it, so what this one holds is the past.
        """
        if self._held_s is not None and self._context.clock.monotonic() - self._held_s > self._lease_s:
            self._renew_once()
        if self._lost_to:
            raise Fenced(
                f"the run {self._context.run.name} is held by {self._lost_to} by now; this process writes nothing more",
                hint="it was frozen for longer than redis.lease_s; the other learner goes on from the checkpoint",
            )

    def release(self) -> None:
        """Let the next learner begin at once."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._lease_s)
        if self._lease is not None:
            self._lease.release()

    def _renew(self) -> None:
        while self._lease is not None and not self._end.wait(self._lease_s / _RENEWALS_PER_LIFE):
            self._renew_once()

    def _renew_once(self) -> None:
        if self._lease is None:
            return
        result = self._lease.renew()
        if result.state is LeaseState.LOST:  # a flushed one would have been taken again: somebody else has it
            _log.warning("the learner's lease is held by %s", result.holder)
            self._lost_to = result.holder
        else:  # when Redis does not answer, the broker alone fences
            self._held_s = self._context.clock.monotonic()
