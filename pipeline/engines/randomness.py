"""Counter-based random numbers: one per (seed, token index), without any state.

Role: make a sequence's draws independent of the batch it happens to be in.
Data in: seeds and a token index; data out: float64 in [0, 1).
Invariants: the same pair gives the same number on every machine; rows are computed together.
Failure: none.

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). Each
seed is mixed once first, because the seeds of a group are consecutive.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def stream_starts(seeds: Iterable[int]) -> npt.NDArray[np.uint64]:
    """The start state of each seed's stream; seeds are taken modulo 2**64."""
    return _mix(np.array([int(seed) & _MASK for seed in seeds], dtype=np.uint64))


def uniforms(starts: npt.NDArray[np.uint64], index: int) -> npt.NDArray[np.float64]:
    """Number `index` of each stream.

    Args:
        starts: [rows], from `stream_starts`.
        index: token index, from 0.

    Returns:
        [rows] float64 in [0, 1), multiples of 2**-53.
    """
    step = np.uint64((index + 1) * int(_GAMMA) & _MASK)
    return (_mix(starts + step) >> np.uint64(11)).astype(np.float64) * 2.0**-53
