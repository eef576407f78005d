"""What travels: random bytes as a version, in the source's store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.weights.arrays import Array
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.manifest import build_manifest
from pipeline.weights.state import encode_state
from schemas.codec import encode
from schemas.records import Version

_NUM_TENSORS = 4


@dataclass(frozen=True, kw_only=True)
class Material:
    """A version.

    Attributes:
        root: the chunk store that has it.
        manifest_file: its manifest, as it travels on the topic.
    """

    root: Path
    manifest_file: Path
    size_bytes: int


def make_material(root: Path, *, size_bytes: int, chunk_bytes: int, seed: str, step: int) -> Material:
    """Write a version into the store at `root`: a full anchor of a few tensors of random bytes.

    Args:
        seed: URL of the source's peer server.
        step: of the version; another one has other bytes.
    """
    rng = np.random.default_rng(step)
    tensor_bytes = size_bytes // _NUM_TENSORS
    tensors: Mapping[str, Array] = {
        f"layers.{number}.weight": np.frombuffer(rng.bytes(tensor_bytes), np.uint8) for number in range(_NUM_TENSORS)
    }
    store = ChunkStore(root, max_bytes=2 * size_bytes)
    state = encode_state(tensors, ties={}, wire_dtype=None, chunk_bytes=chunk_bytes, store=store)
    manifest = build_manifest(
        state,
        run="bench",
        version=Version(lineage=1, step=step),
        seeds=[seed],
        created_unix_ms=time.time_ns() // 1_000_000,
    )
    manifest_file = root.parent / f"version-{step}"
    manifest_file.write_bytes(encode(manifest))
    return Material(root=root, manifest_file=manifest_file, size_bytes=state.num_bytes)
