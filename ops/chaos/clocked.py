"""Runs the command line in a process whose wall clock is libfaketime's.

Why: the library (0.9.10) reckons sleeps up to a time of the monotonic clock, which is how Python sleeps, as if that
were the wall clock: they end at once, or fail. Sleeping for a length of time is not touched by it.
"""

from __future__ import annotations

import operator
import select
import time
from typing import SupportsIndex

from ops.cli.main import main


def sleep_for(seconds: SupportsIndex | float) -> None:
    """As `time.sleep`.

    Raises:
        ValueError: a negative length.
    """
    select.select([], [], [], seconds if isinstance(seconds, float) else operator.index(seconds))


if __name__ == "__main__":
    time.sleep = sleep_for
    main()
