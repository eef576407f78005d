"""Decides what may leave a host now.

Role: the one place where a permission becomes a wait; asked before each piece by whoever sends it.
Data in: the permission in force, the weights' flow, the phase of this host's learner, pieces. Data out: seconds to wait
(0: booked, send it); seconds that classes were held up.
The rule: weights are held to their own rate at most, and never wait for others. Background classes share what is left:
all of the link less what is set aside while no weights leave; `HEADROOM` of it less the weights' measured rate while
they do, and nothing while that is unknown; in a closed phase nothing. The floor is theirs in any case. Of two of them
the more urgent one goes first, while it asks.
Invariants: pieces are small (a sender's business), so a publish that begins waits for those under way only. No
remote word is needed. Background never has more than its share * t + one burst (or one piece) in t seconds.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isinf

from pipeline.traffic.bucket import Bucket
from pipeline.traffic.classes import BACKGROUND, TrafficClass
from pipeline.traffic.flow import STALE_S, Flow
from pipeline.traffic.permit import Permit
from topics.clock import Clock

HEADROOM = 0.9  # of the link while weights leave: headers, acknowledgements and what was not measured
BURST_S = 0.02
ASK_AGAIN_S = 0.01  # what is closed may open at any moment
_ASKED_S = 0.05  # who asked within this still wants to send
_LONGEST_WAIT_S = 0.8 * STALE_S  # so that the flow is looked at often enough


class Gate:
    """See the module. Not for several threads at once.

    Args:
        permit: in force; another one may be set.
        flow: of the weights now.
        phase: of this host's learner now; empty: unknown, or none here.
    """

    def __init__(
        self, permit: Permit, *, clock: Clock, flow: Callable[[], Flow], phase: Callable[[], str] = lambda: ""
    ) -> None:
        self.permit = permit
        self._clock = clock
        self._flow = flow
        self._phase = phase
        self._left = Bucket(rate=0.0, burst_s=BURST_S, clock=clock)  # what background may have together
        self._own = {traffic: Bucket(rate=None, burst_s=BURST_S, clock=clock) for traffic in TrafficClass}
        self._refused_s: dict[TrafficClass, float] = {}  # when a class was last told to wait, until it is let go
        self._held_up_s = dict.fromkeys(BACKGROUND, 0.0)

    @property
    def held_up_s(self) -> Mapping[TrafficClass, float]:
        """Time in which a class wanted to send and had to stand back for weights, gradients or a more urgent class."""
        return self._held_up_s

    def ask(self, traffic: TrafficClass, num_bytes: int) -> float:
        """Seconds after which to ask again; 0: the piece is booked and may be sent."""
        if traffic in BACKGROUND:
            wait_s = self._background_wait_s(traffic, num_bytes=num_bytes)
        else:
            self._own[traffic].set_rate(self.permit.rate(traffic, phase=self._phase()))
            wait_s = self._own[traffic].wait_s(num_bytes)
        if wait_s > 0:
            return ASK_AGAIN_S if isinf(wait_s) else min(wait_s, _LONGEST_WAIT_S)
        self._own[traffic].book(num_bytes)
        if traffic in BACKGROUND:
            self._left.book(num_bytes)
        return 0.0

    def _background_wait_s(self, traffic: TrafficClass, *, num_bytes: int) -> float:
        now_s, floor, own = self._clock.monotonic(), self.permit.floor_bytes_s, self._own[traffic]
        phase = self._phase()
        share, rate = self._share(self._flow(), phase=phase), self.permit.rate(traffic, phase=phase)
        if rate == 0:  # closed, for this phase or for good
            share = 0.0
        is_behind = self._is_behind(traffic, now_s=now_s)
        stands_back = is_behind or (share is not None and share <= floor)
        own.set_rate(None if rate is None else max(rate, floor))
        self._left.set_rate(None if share is None else max(share, floor))
        wait_s = max(own.wait_s(num_bytes), self._left.wait_s(num_bytes), ASK_AGAIN_S if is_behind else 0.0)
        self._note(traffic, now_s=now_s, waits=wait_s > 0, stands_back=stands_back)
        return min(wait_s, ASK_AGAIN_S) if stands_back else wait_s

    def _share(self, flow: Flow, *, phase: str) -> float | None:
        """What background may have of the link; None: no limit is known."""
        link, set_aside = self.permit.link_bytes_s, self.permit.set_aside(phase=phase)
        if not flow.is_active:
            return None if link is None else max(0.0, link - set_aside)
        if link is None or flow.bytes_s is None:
            return 0.0
        return max(0.0, HEADROOM * link - set_aside - flow.bytes_s)

    def _is_behind(self, traffic: TrafficClass, *, now_s: float) -> bool:
        """Whether a more urgent background class waits."""
        before = BACKGROUND[: BACKGROUND.index(traffic)]
        return any(now_s - self._refused_s.get(other, -_ASKED_S) < _ASKED_S for other in before)

    def _note(self, traffic: TrafficClass, *, now_s: float, waits: bool, stands_back: bool) -> None:
        since_s = self._refused_s.pop(traffic, None)
        if since_s is not None and stands_back:
            self._held_up_s[traffic] += min(now_s - since_s, _LONGEST_WAIT_S)
        if waits:
            self._refused_s[traffic] = now_s
