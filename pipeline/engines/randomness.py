"""Counter-based random numbers: one per (seed, token index), without any state.

Role: make a sequence's draws independent of the batch it happens to be in.
Data in: seeds and a token index; data out: float64 in [0, 1).
Invariants: the same pair gives the same number on every machine; rows are computed together.
Failure: none.

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). Each
seed is mixed once first, because the seeds of a group are consecutive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pipeline.engines.base import GenerationRequest

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


def seeds_of(requests: Sequence[GenerationRequest]) -> npt.NDArray[np.uint64]:
    """Seeds, [requests], for generators that cannot be set to a position: a sequence that goes on from tokens made
    before gets one of its own, as it would draw their numbers again otherwise."""
    starts = stream_starts(request.seed for request in requests)
    num_made = np.array([request.num_made for request in requests], dtype=np.uint64)
    return np.where(num_made > 0, _mix(starts + _GAMMA * num_made), starts)


def uniforms(starts: npt.NDArray[np.uint64], index: int | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Number `index` of each stream.

    Args:
        starts: [rows], from `stream_starts`.
        index: token index, from 0; one for all, or [rows].

    Returns:
        [rows] float64 in [0, 1), multiples of 2**-53.
    """
    step = (np.atleast_1d(np.asarray(index, dtype=np.uint64)) + np.uint64(1)) * _GAMMA  # an array wraps in silence
    return (_mix(starts + step) >> np.uint64(11)).astype(np.float64) * 2.0**-53
