"""From samples taken to verdicts: waiting, running, retrying, and the breaker in front of it all.

Role: the state of one reward consumer's unfinished samples, owned by the polling thread.
Data in and out: `Taken` samples in; `Scored` ones out, in any order.
Invariants: every sample taken comes out exactly once, with a verdict or abandoned with its partition; failure is per
sample: a batch that raises is scored again one by one, after some tries as a batch where the error may pass; a sample
waiting for its next try holds up no other; while the breaker is open nothing begins, and a probe that meets a transient
error waits on instead of failing.
Failure: none of its own.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from consumers.rewards import verdict
from consumers.rewards.breaker import Breaker, BreakerState
from consumers.rewards.pool import Finished, Held, Job, Pool, Taken
from consumers.rewards.settings import RewardSettings
from consumers.rewards.verdict import Trouble, Verdict
from topics.clock import Clock
from topics.log import TopicPartition

_TOGETHER = 3  # tries of a batch after a transient error before its samples are tried one by one


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A sample with its verdict."""

    taken: Taken
    verdict: Verdict
    duration_ms: float  # of the plug-in's call; in a batch, an equal share of it


class Scoring:
    """Give samples with `take`, turn with `step`.

    Args:
        pool: runs the plug-in; closed with this.
        batches: the plug-in takes more than one sample at a time.
    """

    def __init__(self, pool: Pool, settings: RewardSettings, *, batches: bool, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._batch = settings.batch_size if batches else 1
        self._pool = pool
        self.breaker = Breaker(settings)
        self._waiting: deque[Taken] = deque()
        self._retries: list[tuple[float, int, Taken]] = []  # heap: due, tie-break, sample
        self._order = itertools.count()
        self._running: dict[Job, None] = {}

    @property
    def num_unfinished(self) -> int:
        """Samples taken that have no verdict yet."""
        return len(self._waiting) + len(self._retries) + self.num_running

    @property
    def num_running(self) -> int:
        """Samples the plug-in has."""
        return sum(len(job.items) for job in self._running)

    def held(self) -> Held:
        """Processes that a long call holds, now."""
        return self._pool.held()

    def has_work_to_finish(self) -> bool:
        """Whether there are samples that an orderly stop waits for: not those stuck, held or between two tries."""
        if any(not item.reported_stuck and not item.abandoned for job in self._running for item in job.items):
            return True
        return bool(self._waiting) and self.state() is BreakerState.CLOSED and self._pool.room() > 0

    def state(self) -> BreakerState:
        """The breaker's state now."""
        return self.breaker.state(self._clock.monotonic())

    def take(self, samples: Iterable[Taken]) -> None:
        """Samples to score."""
        self._waiting.extend(samples)

    def step(self, *, begin_more: bool = True, wait_s: float = 0.0) -> list[Scored]:
        """Collect what ended, waiting at most `wait_s` for some; begin what may begin."""
        scored = [one for ended in self._pool.finished(wait_s=wait_s) for one in self._judge(ended)]
        if self.state() is BreakerState.OPEN:
            self._take_back()
        if begin_more:
            self._wake_retries()
            self._begin()
        return scored

    def next_retry_s(self) -> float | None:
        """Seconds until the next try is due; None when none is planned."""
        return max(0.0, self._retries[0][0] - self._clock.monotonic()) if self._retries else None

    def abandon(self, places: Iterable[TopicPartition]) -> list[Taken]:
        """These partitions went to another member, which will score their samples.

        Returns what is dropped at once; what the plug-in has comes out of `step`, marked as abandoned.
        """
        gone = set(places)
        idle = [*self._waiting, *(entry[2] for entry in self._retries)]
        for taken in itertools.chain(idle, (item for job in self._running for item in job.items)):
            taken.abandoned = taken.abandoned or taken.place in gone
        self._waiting = deque(taken for taken in self._waiting if not taken.abandoned)
        self._retries = [entry for entry in self._retries if not entry[2].abandoned]
        heapq.heapify(self._retries)
        return [taken for taken in idle if taken.abandoned]

    def stuck(self) -> list[Taken]:
        """Samples whose scoring began longer ago than the limit, each once."""
        latest_s = self._clock.monotonic() - self._settings.stuck_after_s
        begun = itertools.chain(
            (item for job in self._running for item in job.items), (one[2] for one in self._retries)
        )
        found = [
            taken
            for taken in begun
            if taken.started_s is not None
            and taken.started_s <= latest_s
            and not (taken.reported_stuck or taken.abandoned)
        ]
        for taken in found:
            taken.reported_stuck = True
        return found

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.close()

    def _take_back(self) -> None:
        jobs = self._pool.take_back()
        for job in jobs:
            del self._running[job]
        self._waiting.extendleft(item for job in reversed(jobs) for item in reversed(job.items))

    def _wake_retries(self) -> None:
        now_s = self._clock.monotonic()
        while self._retries and self._retries[0][0] <= now_s:
            self._waiting.append(heapq.heappop(self._retries)[2])

    def _begin(self) -> None:
        now_s = self._clock.monotonic()
        for _ in range(self._pool.room()):
            may = self.breaker.may_take(min(self._batch, len(self._waiting)), now_s=now_s)
            if may == 0:
                return
            is_probe = self.state() is BreakerState.HALF_OPEN
            job = Job(items=self._next_items(may), is_probe=is_probe)
            for item in job.items:
                item.started_s = now_s if item.started_s is None else item.started_s
            self.breaker.taken()
            self._running[job] = None
            self._pool.submit(job)

    def _next_items(self, limit: int) -> tuple[Taken, ...]:
        items = [self._waiting.popleft()]
        while len(items) < limit and not items[0].alone and self._waiting and not self._waiting[0].alone:
            items.append(self._waiting.popleft())
        return tuple(items)

    def _judge(self, ended: Finished) -> list[Scored]:
        self._running.pop(ended.job)
        items, answer = ended.job.items, ended.answer
        if answer.trouble is not None and len(items) > 1 and not self._stays_together(items, answer.trouble):
            for item in items:
                item.alone = True
            self._waiting.extendleft(reversed([item for item in items if not item.abandoned]))
            lost = verdict.of_trouble(answer.trouble, num_retries=0)
            return [Scored(taken=item, verdict=lost, duration_ms=0.0) for item in items if item.abandoned]
        parts: Sequence[Verdict | Trouble] = answer.verdicts
        if answer.trouble is not None:
            parts = [answer.trouble] * len(items)
        share_ms = answer.duration_ms / len(items)
        judged = (
            self._judge_one(item, part, job=ended.job, duration_ms=share_ms)
            for item, part in zip(items, parts, strict=True)
        )
        return [one for one in judged if one is not None]

    def _stays_together(self, items: Sequence[Taken], trouble: Trouble) -> bool:
        """A batch that met a transient error is tried again as batches at first: a service that is away should not find
        each sample of it as a call of its own. Should one sample be the reason, it shows when they are taken apart."""
        limit = min(_TOGETHER, self._settings.retries)
        return trouble.kind == "transient" and all(item.num_retries < limit for item in items)

    def _judge_one(self, taken: Taken, part: Verdict | Trouble, *, job: Job, duration_ms: float) -> Scored | None:
        if taken.abandoned:
            if job.is_probe:
                self.breaker.probe_given_back()
            return Scored(taken=taken, verdict=Verdict(failure="abandoned"), duration_ms=duration_ms)
        if isinstance(part, Verdict):
            return self._scored(taken, part, job=job, duration_ms=duration_ms)
        if self._goes_on(taken, part, job=job):
            return None
        found = verdict.of_trouble(part, num_retries=taken.num_retries)
        return self._scored(taken, found, job=job, duration_ms=duration_ms)

    def _scored(self, taken: Taken, found: Verdict, *, job: Job, duration_ms: float) -> Scored:
        now_s = self._clock.monotonic()
        self.breaker.add(failed=found.value is None, now_s=now_s, is_probe=job.is_probe)
        return Scored(taken=taken, verdict=found, duration_ms=duration_ms)

    def _goes_on(self, taken: Taken, trouble: Trouble, *, job: Job) -> bool:
        """Wait for a next try, unless none would help or there were enough."""
        if trouble.kind == "error":
            return False
        if trouble.kind == "lost":
            if taken.num_lost >= self._settings.timeout_retries:
                return False
            taken.num_lost += 1
        now_s = self._clock.monotonic()
        if job.is_probe:
            self.breaker.add(failed=True, now_s=now_s)
            self._waiting.appendleft(taken)
            return True
        if trouble.kind == "transient" and taken.num_retries >= self._settings.retries:
            return False
        wait_s = min(self._settings.retry_backoff_max_s, self._settings.retry_backoff_s * 2.0**taken.num_retries)
        taken.num_retries += 1
        heapq.heappush(self._retries, (now_s + wait_s, next(self._order), taken))
        return True
