"""Copies the learner's checkpoints away, in the background: the newest one that is whole, one at a time.

Role: a thread of the process that sends for the learner's host (`pipeline.weights.peer_stage`).
Data in: the folder `checkpoints` of the run, looked at every `LOOK_S`; data out: uploads, notices, metrics.
Turns: (1) note what has arrived; (2) hold the checkpoint to upload: one that a former process had begun, else the
newest, if it is newer than all that are there; (3) send it; (4) let it go, and remove old ones at the target.
Invariants: training waits for nothing of this. While one is sent only the newest waits: those between are counted as
superseded. A failure is told and tried again, each time later, until it goes through or a newer checkpoint takes its
place; what was sent is not sent again. At the end what is in hand or waits is finished if the time is enough.
Another process that uploads for this folder has the first turn, as long as it lives.
Failure: none that ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from pipeline.metrics import Metrics
from pipeline.traffic.sender import HostSender
from pipeline.uploads.cadence import Behind, Cadence
from pipeline.uploads.held import Turn, held_versions, hold, let_go
from pipeline.uploads.layout import Marker, whole_versions
from pipeline.uploads.pruning import prune_uploads, uploaded_versions
from pipeline.uploads.queue import UploadQueue
from pipeline.uploads.sending import Progress, UploadCut, UploadJob, send_checkpoint
from pipeline.uploads.settings import UploadSettings
from pipeline.uploads.target import open_target, safe_url
from schemas.errors import RlweaveError
from schemas.records import Version
from topics.clock import Clock, Deadline

LOOK_S = 0.25
_LAST_LOOK_S = 0.05  # while leaving
_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 60.0
_LEAVE_S = 4.0  # of the time there is at the end, to cut an upload off and for what the process does after it


class Notices(Protocol):
    """`pipeline.events.Events`, or something like it."""

    def notice(self, name: str, *, details: Mapping[str, str] | None = None, **gauges: float) -> None:
        """Say it."""
        ...


class _Upload:
    """One that is under way, on a thread of its own."""

    def __init__(self, version: Version, *, began_s: float, run: Callable[[Progress], Marker]) -> None:
        self.version = version
        self.began_s = began_s
        self.progress = Progress()
        pool = ThreadPoolExecutor(1, thread_name_prefix="upload-one")
        self.result: Future[Marker] = pool.submit(run, self.progress)
        pool.shutdown(wait=False)

    def left_s(self, now_s: float) -> float:
        """What it still takes, as it goes; 0 while nobody can say."""
        progress = self.progress
        return 0.0 if progress.sent_bytes == 0 else progress.left_bytes * (now_s - self.began_s) / progress.sent_bytes


class Uploader:
    """See the module. Constructing it does no I/O.

    Args:
        settings: with a URL.
        run: its name; part of the names at the target.
        folder: of the run.
        sender: of this host.
    """

    def __init__(
        self,
        settings: UploadSettings,
        *,
        run: str,
        folder: Path,
        sender: HostSender,
        clock: Clock,
        events: Notices,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._url = settings.upload if settings.upload is not None else ""
        self._run = run
        self._checkpoints = folder / "checkpoints"
        self._held = folder / "uploads"
        self._turn = Turn(self._held)
        self._sender = sender
        self._clock = clock
        self._events = events
        self._metrics = metrics
        self._cadence = Cadence()
        self._queue = UploadQueue()
        self._is_known = False  # what is at the target
        self._upload: _Upload | None = None
        self._num_failures = 0  # in a row
        self._retry_s = float("-inf")
        self._end: Deadline | None = None  # set: nothing new is begun that cannot be finished by then
        self._cut = threading.Event()  # end what is under way
        self._thread = threading.Thread(target=self._go, name="uploader", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def stop(self, *, deadline: Deadline) -> None:
        """Finish what is under way or waits if the time is enough for it; else it is gone on with the next time."""
        self._end = Deadline.after(max(0.0, deadline.remaining_s() - _LEAVE_S), clock=self._clock)
        self._thread.join(deadline.remaining_s())
        self._cut.set()
        left = self._queue.next
        if left is not None and (self._is_known or self._num_failures > 0):
            details = {"version": str(left), "url": safe_url(self._url)}
            self._events.notice("checkpoint_not_uploaded", details=details)
        if not self._thread.is_alive():
            self._turn.give_back()

    def _go(self) -> None:
        while not (self._cut.is_set() and self._upload is None):
            self.turn()
            self._cut_when_leaving()
            self._clock.wait(LOOK_S if self._end is None else _LAST_LOOK_S)

    def _cut_when_leaving(self) -> None:
        if self._end is None:
            return
        upload = self._upload
        if upload is None:
            is_over = self._num_failures > 0 or self._queue.next is None
        else:
            is_over = upload.left_s(self._clock.monotonic()) > self._end.remaining_s()
        if is_over or self._end.expired:
            self._cut.set()

    def turn(self) -> None:
        """Look once; see the module."""
        now_s = self._clock.monotonic()
        for version in self._queue.look(whole_versions(self._checkpoints)):  # (1)
            self._cadence.arrived(version, at_s=now_s)
        if self._upload is not None:
            self._follow(self._upload, now_s=now_s)
        if self._upload is None and now_s >= self._retry_s and not self._cut.is_set():
            try:
                self._begin()
            except RlweaveError as error:
                self._failed(error)
        self._metrics.gauge("checkpoint_uploads_waiting", 0 if self._queue.waiting is None else 1)

    def _begin(self) -> None:  # (2), (3)
        if not self._is_known:
            self._learn()
        version = self._queue.next if self._is_known else None
        if version is None:
            return
        former = self._queue.in_hand
        place = hold(self._checkpoints / str(version), folder=self._held)
        num_superseded = self._queue.begin(version)
        if former is not None and former != version:
            let_go(former, folder=self._held)
        if num_superseded:
            self._metrics.count("checkpoint_uploads_superseded", num_superseded)
        self._upload = _Upload(version, began_s=self._clock.monotonic(), run=self._work(version, place=place))

    def _learn(self) -> None:
        """What is at the target, and what a former process had in hand; nothing is asked while there is nothing."""
        held = held_versions(self._held)
        if (not held and self._queue.next is None) or not self._turn.take():
            return
        done = max(uploaded_versions(open_target(self._url), run=self._run), default=None)
        usable = [version for version in held if done is None or version > done]
        for version in held:
            if version not in usable[:1]:
                let_go(version, folder=self._held)
        self._queue.done, self._queue.in_hand = done, next(iter(usable), None)
        self._is_known = True
        ours = max(whole_versions(self._checkpoints), default=None)
        if done is not None and ours is not None and ours < done:
            details = {"version": str(ours), "at_target": str(done), "url": safe_url(self._url)}
            self._events.notice("upload_target_is_ahead", details=details)

    def _work(self, version: Version, *, place: Path) -> Callable[[Progress], Marker]:
        settings = self._settings
        job = UploadJob(
            folder=place,
            url=self._url,
            name=f"{self._run}/{version}",
            part_bytes=settings.upload_part_bytes,
            parallel=settings.upload_parallel,
        )
        return lambda progress: send_checkpoint(job, sender=self._sender, stop=self._cut, progress=progress)

    def _follow(self, upload: _Upload, *, now_s: float) -> None:
        seconds, progress = now_s - upload.began_s, upload.progress
        if not upload.result.done():
            if progress.total_bytes > 0:
                sent, total = progress.sent_bytes, progress.total_bytes
                self._tell_behind(self._cadence.going_on(seconds=seconds, sent_bytes=sent, total_bytes=total))
            return
        self._upload = None
        try:
            upload.result.result()
        except UploadCut:
            return
        except RlweaveError as error:
            self._failed(error)
        else:
            self._succeeded(upload, seconds=seconds)

    def _succeeded(self, upload: _Upload, *, seconds: float) -> None:  # (4)
        self._queue.succeeded()
        self._num_failures, self._retry_s = 0, float("-inf")
        self._metrics.observe("checkpoint_upload_s", seconds)
        self._events.notice(
            "checkpoint_uploaded",
            details={"version": str(upload.version), "url": safe_url(self._url)},
            seconds=seconds,
            sent_bytes=upload.progress.sent_bytes,
            present_bytes=upload.progress.present_bytes,
        )
        let_go(upload.version, folder=self._held)
        self._tell_behind(self._cadence.ended(seconds=seconds))
        try:
            target, known = open_target(self._url), self._queue.known
            prune_uploads(target, run=self._run, keep=self._settings.upload_keep, known=known)
        except RlweaveError as error:
            self._tell_failure(error, what="old ones are still there")

    def _failed(self, error: RlweaveError) -> None:
        self._queue.failed()
        self._num_failures += 1
        pause_s = min(_MAX_BACKOFF_S, _BACKOFF_S * 2.0 ** min(self._num_failures - 1, 30))
        self._retry_s = self._clock.monotonic() + pause_s
        self._tell_failure(error, what=f"tried again in {pause_s:g} s")

    def _tell_failure(self, error: RlweaveError, *, what: str) -> None:
        self._metrics.count("checkpoint_uploads_failed")
        why = f"{error.message}; {what}" + (f" ({error.hint})" if error.hint else "")
        details = {"why": why, "url": safe_url(self._url)}
        self._events.notice("checkpoint_upload_failed", details=details, in_a_row=self._num_failures)

    def _tell_behind(self, behind: Behind | None) -> None:
        if behind is None:
            return
        why = (
            f"one checkpoint takes {behind.upload_s:.1f} s to upload, they come every {behind.gap_s:.1f} s "
            f"({behind.gap_steps} steps): newer ones take the place of those that wait. Set "
            f"learner.checkpoint.every_steps to {behind.enough_steps} or more, or give checkpoints more of the link "
            "([traffic], learner.checkpoint.upload_parallel)"
        )
        self._events.notice(
            "checkpoint_upload_behind",
            details={"why": why},
            upload_s=behind.upload_s,
            allowed_s=behind.gap_s,
            every_steps=behind.gap_steps,
            enough_steps=behind.enough_steps,
        )
