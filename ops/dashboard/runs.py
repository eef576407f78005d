"""The runs that somebody looks at: each followed by one thread, the least used one let go.

Data in: how to reach a run. Data out: `OpenRun`s, and the list of runs.
Invariants: at most `MAX_OPEN` runs are followed at a time, and none for `IDLE_S` without a reader;
a run's settings are read once per opening.
Failure: `RunNotFound`, `TooManyRuns`, errors of the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ops.dashboard.advantage_view import OF_ALGORITHM
from ops.dashboard.feed import Feed
from ops.dashboard.finding import Finder
from ops.dashboard.ledger_index import LedgerIndex
from ops.dashboard.pieces import Tokenizer, TokenizerMissing, load_tokenizer
from ops.replay.sources import Source
from ops.run_file import RunFile
from ops.runs import RunSeen
from schemas.errors import RlweaveError

MAX_OPEN = 4
IDLE_S = 300.0


class TooManyRuns(RlweaveError):
    """All places for runs that are looked at are taken."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A run, ready to be read."""

    source: Source
    feed: Callable[[LedgerIndex], Feed]  # not started
    settings: RunFile | None


@dataclass(kw_only=True)
class OpenRun:
    """A run that is followed."""

    name: str
    source: Source
    index: LedgerIndex
    feed: Feed
    finder: Finder
    settings: RunFile | None
    _tokenizer: Tokenizer | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def tokenizer(self) -> Tokenizer:
        """The one of the run's model, read at the first use.

        Raises:
            TokenizerMissing: there is none.
        """
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(None if self.settings is None else self.settings.model.path)
            return self._tokenizer

    def tokenizer_or_why(self) -> tuple[Tokenizer | None, str]:
        """The tokenizer, or why there is none."""
        try:
            return self.tokenizer(), ""
        except TokenizerMissing as error:
            return None, f"{error.message}{'; ' + error.hint if error.hint else ''}"

    @property
    def advantage(self) -> str | None:
        """Name of the advantage the run trains with; None: not known."""
        if self.settings is None:
            return None
        learner = self.settings.learner
        return learner.advantage if learner.advantage is not None else OF_ALGORITHM.get(learner.algorithm)


class Runs:
    """See the module. Safe to use from several threads.

    Args:
        reach: opens a run by name, or says why not.
        seen: lists the runs.
    """

    def __init__(self, reach: Callable[[str], Reached], *, seen: Callable[[], list[RunSeen]]) -> None:
        self._reach = reach
        self._seen = seen
        self._open: dict[str, OpenRun] = {}
        self._lock = threading.Lock()

    def seen(self) -> list[RunSeen]:
        """Every run there is.

        Raises:
            LogError: the broker does not answer.
        """
        return self._seen()

    def open(self, name: str) -> OpenRun:
        """A run, followed from now on.

        Raises:
            RunNotFound: there is none of that name.
            TooManyRuns: others are looked at, and no more can be.
            LogError: the broker does not answer.
        """
        run = self._known(name)
        if run is None:
            reached = self._reach(name)  # a broker that is slow to answer holds up nobody who looks at another run
            run = self._begun(name, reached)
        run.feed.used_s = time.monotonic()
        return run

    def let_go_idle(self) -> None:
        """Stop following what nobody has looked at for a while."""
        now_s = time.monotonic()
        with self._lock:
            unread = [run for run in self._open.values() if not run.feed.has_readers]
            idle = [self._open.pop(run.name) for run in unread if now_s - run.feed.used_s > IDLE_S]
        for run in idle:
            run.feed.stop()

    def close(self) -> None:
        """Stop following all."""
        with self._lock:
            for run in self._open.values():
                run.feed.stop()
            self._open.clear()

    def _known(self, name: str) -> OpenRun | None:
        """One that is followed; None: it may be opened.

        Raises:
            TooManyRuns: it may not.
        """
        with self._lock:
            run = self._open.get(name)
            if run is not None and run.feed.is_over:
                del self._open[name]
                run = None
            if run is None and len(self._open) >= MAX_OPEN:
                self._least_used()
            return run

    def _begun(self, name: str, reached: Reached) -> OpenRun:
        let_go = None
        with self._lock:
            if name not in self._open:  # else another thread was faster
                if len(self._open) >= MAX_OPEN:
                    let_go = self._open.pop(self._least_used().name)
                self._open[name] = _opened(name, reached)
            run = self._open[name]
        if let_go is not None:
            let_go.feed.stop()
        return run

    def _least_used(self) -> OpenRun:
        unread = [run for run in self._open.values() if not run.feed.has_readers]
        if not unread:
            raise TooManyRuns(
                f"{MAX_OPEN} runs are open in other windows, and no more are followed at a time",
                hint="close one of them",
            )
        return min(unread, key=lambda run: run.feed.used_s)


def _opened(name: str, reached: Reached) -> OpenRun:
    index = LedgerIndex(reached.source)
    feed = reached.feed(index)
    feed.start()
    return OpenRun(
        name=name,
        source=reached.source,
        index=index,
        feed=feed,
        finder=Finder(reached.source),
        settings=reached.settings,
    )
