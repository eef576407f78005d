"""Which reference pages there are, and whether the files still say what the code does.

Data in: the code. Data out: Markdown files in one folder.
Invariants: a page depends on the code alone, not on the machine or the time, so two writings are the same bytes.
Failure: `OSError` when the folder cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ops.reference.commands import commands_page
from ops.reference.errors import errors_page
from ops.reference.metrics import metrics_page
from ops.reference.notices import notices_page
from ops.reference.settings import settings_page
from ops.reference.topics import topics_page

PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "cli.md": commands_page,
    "topics-and-schemas.md": topics_page,
    "metrics.md": metrics_page,
    "errors.md": errors_page,
    "notices.md": notices_page,
}


def render() -> dict[str, str]:
    """Every page by file name."""
    return {name: make() for name, make in PAGES.items()}


def stale(pages: Mapping[str, str], *, folder: Path) -> list[str]:
    """Names of the pages that are absent from the folder, or differ."""
    return [name for name, text in pages.items() if _read(folder / name) != text]


def write(pages: Mapping[str, str], *, folder: Path) -> None:
    """Write the pages.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
