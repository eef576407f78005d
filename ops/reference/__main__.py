"""`python -m ops.reference [--check] FOLDER`: write the reference pages, or say which of them are out of date."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ops.reference.pages import render, stale, write


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 when a page is out of date, 2 for a call without a folder."""
    check = "--check" in arguments
    places = [each for each in arguments if each != "--check"]
    if len(places) != 1:
        print("usage: python -m ops.reference [--check] FOLDER", file=sys.stderr)
        return 2
    folder = Path(places[0])
    pages = render()
    names = stale(pages, folder=folder)
    if check:
        for name in names:
            print(f"{folder / name} differs from the code: run `make docs`", file=sys.stderr)
        return 1 if names else 0
    write(pages, folder=folder)
    for name in names:
        print(f"{folder / name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
