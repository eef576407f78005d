"""Opens the source that the settings describe."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pipeline.sources.base import EpochSource, Rows, SkippedLine, Source
from pipeline.sources.jsonl import JsonlRows
from pipeline.sources.mixing import MixSource
from pipeline.sources.plugin_rows import PluginRows
from pipeline.sources.reasoning_tasks import TaskRows
from pipeline.sources.settings import PlainSource, SourceSettings
from pipeline.sources.shaping import Shaper

_log = logging.getLogger(__name__)


def _log_skipped(skipped: SkippedLine) -> None:
    _log.warning("%s:%d skipped: %s", skipped.file, skipped.line, skipped.why)


def open_source(
    settings: SourceSettings, *, seed: int, on_skipped: Callable[[SkippedLine], None] = _log_skipped
) -> Source:
    """Open a prompt source.

    Args:
        settings: what to open.
        seed: of the run; `settings.seed` goes before it.
        on_skipped: told of each line of a file that holds no prompt.

    Raises:
        SettingsError: a file, task or config is at fault.
        PluginError: the plug-in is.
    """
    chosen = seed if settings.seed is None else settings.seed
    if settings.kind == "mix":
        parts = {name: _plain(part, seed=chosen, on_skipped=on_skipped) for name, part in settings.parts.items()}
        return MixSource(parts, stages=settings.stages, seed=chosen)
    return _plain(settings, seed=chosen, on_skipped=on_skipped)


def _plain(settings: PlainSource, *, seed: int, on_skipped: Callable[[SkippedLine], None]) -> Source:
    """One source that is no mix."""
    chosen = seed if settings.seed is None else settings.seed
    return EpochSource(
        _rows(settings, seed=chosen, on_skipped=on_skipped),
        shape=Shaper(settings),
        seed=chosen,
        shuffle=settings.shuffle,
        epochs=settings.epochs,
    )


def _rows(settings: PlainSource, *, seed: int, on_skipped: Callable[[SkippedLine], None]) -> Rows:
    if settings.kind == "jsonl":
        return JsonlRows(settings.files, on_skipped=on_skipped)
    if settings.kind == "reasoning_gym":
        return TaskRows(settings.task, config=settings.config, size=settings.size, seed=seed)
    return PluginRows(settings.plugin, config=settings.config, seed=seed)
