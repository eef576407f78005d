"""Markdown: cells, tables, pages.

Invariants: what stands in a cell cannot end it, and `<` is never taken for a tag outside code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NOTE = "*Written from the code by `make docs`: change the code, not this page.*"
_CODE = re.compile(r"(`+[^`]*`+)")


def page(title: str, *parts: str) -> str:
    """A whole page."""
    return "\n\n".join((f"# {title}", _NOTE, *(part.strip("\n") for part in parts if part))) + "\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the cells are Markdown."""
    lines = [_row(headers), _row(["---"] * len(headers)), *(_row([cell(one) for one in row]) for row in rows)]
    return "\n".join(lines)


def cell(text: str) -> str:
    """Markdown in one line that stays inside its cell."""
    joined = " ".join(text.split())
    parts = _CODE.split(joined.replace("|", "\\|"))
    return "".join(part if part.startswith("`") else plain(part) for part in parts)


def plain(text: str) -> str:
    """Text in which nothing is a tag."""
    return text.replace("<", "&lt;")


def code(text: str) -> str:
    """Code in a line."""
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def first_line(docstring: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((docstring or "").strip().split("\n\n")[0].split())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
