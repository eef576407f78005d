"""Sleep that libfaketime leaves alone.

Why: the library (0.9.10) reckons sleeps up to a time of the monotonic clock, which is how Python sleeps, as if that
were the wall clock: they end at once, or fail. Sleeping for a length of time is not touched by it. Whatever a process
with a stepped clock starts inherits the library, and sleeps like this, too.
"""

from __future__ import annotations

import operator
import select
from typing import SupportsIndex


def sleep_for(seconds: SupportsIndex | float) -> None:
    """As `time.sleep`.

    Raises:
        ValueError: a negative length.
    """
    select.select([], [], [], seconds if isinstance(seconds, float) else operator.index(seconds))
