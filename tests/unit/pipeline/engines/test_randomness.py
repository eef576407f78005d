"""Counter-based random numbers against the published generator."""

from __future__ import annotations

import numpy as np

from pipeline.engines.randomness import stream_starts, uniforms

# First outputs of the reference SplitMix64 with state 0 (mixing seed 0 leaves it 0).
REFERENCE = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_seed_zero_gives_the_reference_stream() -> None:
    starts = stream_starts([0])
    assert [uniforms(starts, index)[0] for index in range(3)] == [(x >> 11) * 2.0**-53 for x in REFERENCE]


def test_a_row_does_not_depend_on_the_others() -> None:
    seeds = [3, -1, 2**64 + 3, 2**63, 17]
    together = uniforms(stream_starts(seeds), 5)
    assert [uniforms(stream_starts([seed]), 5)[0] for seed in seeds] == together.tolist()
    assert together[0] == together[2]  # seeds count modulo 2**64
    assert uniforms(stream_starts(np.array([3], dtype=np.int64)), 5)[0] == together[0]


def test_consecutive_seeds_are_uniform_and_uncorrelated() -> None:
    starts = stream_starts(range(4096))
    first, second = uniforms(starts, 0), uniforms(starts, 1)
    assert first.min() >= 0
    assert first.max() < 1
    counts = np.histogram(first, bins=16, range=(0, 1))[0]
    assert np.abs(counts - 256).max() < 80  # five standard deviations
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.08
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.08
