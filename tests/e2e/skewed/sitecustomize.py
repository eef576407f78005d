"""Puts the wall clock of a Python process off by `RLWEAVE_TEST_SKEW_S` seconds, where this folder is on its path.

The monotonic clock stays true, as it does when a real clock is wrong. What C libraries read is not touched.
"""

from __future__ import annotations

import os
import time

_SKEW_S = int(os.environ.get("RLWEAVE_TEST_SKEW_S", "0"))
_time, _time_ns = time.time, time.time_ns


def _skewed() -> float:
    return _time() + _SKEW_S


def _skewed_ns() -> int:
    return _time_ns() + _SKEW_S * 1_000_000_000


time.time, time.time_ns = _skewed, _skewed_ns
