"""From a reward's settings to a plug-in that is loaded and a pool that runs it.

Role: decides where a plug-in runs: what rlweave ships in threads of this process, everything else in processes of its
own, unless the settings say otherwise.
Data in and out: settings in; `Opened` out.
Invariants: code that is not ours is not even imported here when it runs in processes of its own.
Failure: `PluginError`, `SettingsError` as of `consumers.rewards.plugin`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from consumers.rewards.builtin import APART, BUILTINS
from consumers.rewards.plugin import load_scorer
from consumers.rewards.pool import Job, LoopPool, Pool, ThreadPool
from consumers.rewards.process_pool import ProcessPool
from consumers.rewards.settings import RewardSettings


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A plug-in, ready to score."""

    version: str
    batches: bool  # takes more than one sample at a time
    pool: Pool


def open_plugin(
    settings: RewardSettings,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
    on_lost: Callable[[str, list[Job]], None] = lambda _why, _jobs: None,
) -> Opened | None:
    """Load a reward's plug-in where it is to run; None when told to stop meanwhile.

    Args:
        on_lost: told of a process that was killed or died: why, and the jobs it had begun.

    Raises:
        PluginError: it does not exist, cannot be imported or made, or has none of the forms.
        SettingsError: options it does not know, or lacks.
    """
    if runs_here(settings):
        return _open_here(settings)
    pool = ProcessPool(settings, on_lost=on_lost)
    try:
        pool.start(is_stopped=is_stopped)
    finally:
        if pool.ready is None:
            pool.close()
    if pool.ready is None:
        return None
    return Opened(version=pool.ready.version, batches=pool.ready.batches, pool=pool)


def runs_here(settings: RewardSettings) -> bool:
    """Whether the plug-in runs in this process."""
    return settings.isolation == "thread" or (
        settings.isolation == "auto" and settings.plugin in BUILTINS and settings.plugin not in APART
    )


def _open_here(settings: RewardSettings) -> Opened:
    scorer = load_scorer(settings)
    pool: Pool
    if scorer.async_call is not None:
        pool = LoopPool(
            scorer.async_call, limit=settings.max_in_flight, limit_s=settings.timeout_s, aclose=scorer.aclose
        )
    elif scorer.call is not None:
        pool = ThreadPool(scorer.call, num_threads=scorer.at_most(settings.num_workers))
    else:
        raise ValueError("a scorer has a call, sync or async")
    return Opened(version=scorer.version, batches=scorer.batches, pool=pool)
