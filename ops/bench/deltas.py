"""`rlweave bench deltas`: how short a delta of weights is, and how fast it is made and applied on one core.

Elements of a bf16 state change at random, which is the hardest case for the positions. Speeds are full bytes of the
state per processor second of one thread, at 1 % changed, medians of repeats in turns. "plain torch" compares and
applies with torch's own operations and codes nothing: `nonzero` of the comparison, and an indexed assignment.
`measure_shares` and `measure_speeds` can be used on their own.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ops.bench import result
from pipeline.weights.delta_state import apply_bytes, delta_spans
from pipeline.weights.wire_state import WireState
from schemas.records import TensorEntry

SHARES = (("0p1", 0.001), ("1", 0.01), ("5", 0.05))  # key, share of elements that change
SPEED_SHARE = 0.01
LIMITS_PCT = {"0p1": 0.20, "1": 1.65, "5": 7.6}
_BASE = "00" * 32
_NUM_TENSORS = 4


@dataclass(frozen=True, kw_only=True)
class DeltaSize:
    """How much is measured."""

    num_elements: int = 64 * 2**20  # 128 MiB of bf16
    num_repeats: int = 5

    @classmethod
    def quick(cls) -> DeltaSize:
        """Some seconds."""
        return cls(num_elements=8 * 2**20, num_repeats=2)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A state before and after a step."""

    old: WireState
    new: WireState
    changed_share: float  # as it came out


def make_pair(num_elements: int, *, share: float, seed: int = 0) -> Pair:
    """Random bf16 bits, of which a share changes to other bits at independent places."""
    rng = np.random.default_rng(seed)
    size = num_elements // _NUM_TENSORS
    names = [f"layers.{number}.weight" for number in range(_NUM_TENSORS)]
    entries = tuple(TensorEntry(name=name, dtype="BF16", shape=(size,), num_bytes=2 * size) for name in names)
    old, new, num_changed = WireState.empty(entries), WireState.empty(entries), 0
    for before, after in zip(old.buffers, new.buffers, strict=True):
        before.data[:] = rng.integers(0, 256, 2 * size, np.uint8)
        after.data[:] = before.data
        chosen = np.flatnonzero(rng.random(size, np.float32) < share)
        after.data.view(np.uint16)[chosen] ^= rng.integers(1, 2**16, chosen.size, np.uint16)
        num_changed += chosen.size
    return Pair(old=old, new=new, changed_share=num_changed / (size * _NUM_TENSORS))


def delta_bytes(pair: Pair, *, digests: bool = True) -> bytearray:
    """The delta as it travels."""
    data = bytearray()
    for span in delta_spans(pair.old, pair.new, base_digest=_BASE, digests=digests):
        for piece in span.pieces:
            data += piece
    return data


def measure_shares(num_elements: int) -> dict[str, float]:
    """`delta_share_<x>_pct` and `delta_floor_<x>_pct` (the entropy of positions and values), percent of full bytes."""
    values: dict[str, float] = {}
    for key, share in SHARES:
        pair = make_pair(num_elements, share=share)
        values[f"delta_share_{key}_pct"] = 100 * len(delta_bytes(pair)) / pair.new.num_bytes
        values[f"delta_floor_{key}_pct"] = 100 * _floor(pair.changed_share)
    return values


def measure_speeds(size: DeltaSize) -> dict[str, float]:
    """GB of full bytes per processor second of one thread."""
    pair = make_pair(size.num_elements, share=SPEED_SHARE)
    works = _works(pair)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rounds = [{key: _seconds(work) for key, work in works.items()} for _ in range(size.num_repeats)]
    finally:
        torch.set_num_threads(threads)
    gigabytes = pair.new.num_bytes / 1e9
    return {key: gigabytes / statistics.median(each[key] for each in rounds) for key in works}


def bench_deltas(*, quick: bool) -> result.BenchResult:
    """Shares and speeds."""
    noise = result.Noise()
    size = DeltaSize.quick() if quick else DeltaSize()
    shares, speeds = measure_shares(size.num_elements), measure_speeds(size)
    return result.BenchResult(
        name="deltas",
        table=_table(shares, speeds),
        values={**shares, **speeds, "delta_elements": size.num_elements},
        notes=(
            f"{size.num_elements:,} bf16 elements; speeds at {SPEED_SHARE:.0%} changed, in GB of full bytes per "
            "processor second of one thread.",
            "With digest: a blake3 of every changed span and of the whole state, as publisher and engine do it.",
        ),
        noise=noise.values(num_repeats=size.num_repeats),
    )


def _works(pair: Pair) -> dict[str, Callable[[], object]]:
    held = WireState.empty(pair.old.entries)
    for buffer, old in zip(held.buffers, pair.old.buffers, strict=True):
        buffer.data[:] = old.data
    data = delta_bytes(pair)
    plain = _PlainTorch(pair)
    target = np.empty_like(pair.new.buffers[0].data)

    def encode_with_digest() -> None:
        delta_bytes(pair)
        pair.new.digest()

    def apply_with_digest() -> None:
        apply_bytes(data, state=held, state_digest=_BASE)
        held.digest()

    def copy() -> None:
        for buffer in pair.new.buffers:
            target[:] = buffer.data

    return {
        "encode_gb_s": lambda: delta_bytes(pair, digests=False),
        "encode_with_digest_gb_s": encode_with_digest,
        "apply_gb_s": lambda: apply_bytes(data, state=held, state_digest=_BASE, digests=False),
        "apply_with_digest_gb_s": apply_with_digest,
        "torch_find_gb_s": plain.find,
        "torch_apply_gb_s": plain.apply,
        "memory_copy_gb_s": copy,
        "digest_gb_s": pair.new.digest,
    }


class _PlainTorch:
    """The same with torch's own operations, without coding."""

    def __init__(self, pair: Pair) -> None:
        self._old = [torch.from_numpy(buffer.data).view(torch.int16) for buffer in pair.old.buffers]
        self._new = [torch.from_numpy(buffer.data).view(torch.int16) for buffer in pair.new.buffers]
        self._target = [tensor.clone() for tensor in self._old]
        self._changes = self.find()

    def find(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        places = [(old != new).nonzero().squeeze(1) for old, new in zip(self._old, self._new, strict=True)]
        return [(place, new[place]) for place, new in zip(places, self._new, strict=True)]

    def apply(self) -> None:
        for target, (place, values) in zip(self._target, self._changes, strict=True):
            target[place] = values


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return max(1e-9, time.thread_time() - began_s)


def _floor(share: float) -> float:
    """Entropy of which of the 16-bit elements change and to what, over their bits."""
    bits = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    return (bits + 16 * share) / 16


def _table(shares: Mapping[str, float], speeds: Mapping[str, float]) -> result.Table:
    rows = [
        (f"{100 * share:g} % of elements changed", f"{shares[f'delta_share_{key}_pct']:.3f} % of full", limit, floor)
        for key, share in SHARES
        for limit, floor in [(f"at most {LIMITS_PCT[key]:g}", f"{shares[f'delta_floor_{key}_pct']:.3f}")]
    ]
    rows += [
        (name.removesuffix("_gb_s").replace("_", " "), f"{value:.2f} GB/s", "", "") for name, value in speeds.items()
    ]
    return result.Table(title="Deltas of weights", headers=("what", "measured", "wanted", "entropy"), rows=tuple(rows))
