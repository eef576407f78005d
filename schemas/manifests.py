"""What the weights of a version are: tensors, chunks, digests.

Role: the record of the `weights` topic; told again by `schemas.records`.
Data in and out: plain values; digests are hex.
Invariants: immutable; no weights in it, only where they are and what they hash to.
Failure: a type does not check itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.versions import Version


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor of a model state, in canonical order (by name)."""

    name: str
    dtype: str  # safetensors name: "F32", "BF16", ...
    shape: tuple[int, ...]
    num_bytes: int
    tied_to: str | None = None  # another tensor's name; this one then has no bytes of its own (num_bytes = 0)


@dataclass(frozen=True, kw_only=True)
class ChunkRef:
    """A content-addressed piece of the canonical byte stream (all tensors, in order, unpadded), or of a delta."""

    digest: str  # blake3, 64 hex digits
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class AdapterOf:
    """What low-rank adapters are merged into, and what comes out (`pipeline.weights.adapters`)."""

    base_digest: str  # blake3 over the canonical byte stream of the base model, in the dtypes that engines hold
    merged_digest: str  # the same of the model with the adapters merged
    rank: int
    alpha: float  # products of B and A are scaled by alpha / rank


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the weights of a version are and where to begin looking for them."""

    run: str
    version: Version
    base: Version | None = None  # what the delta is applied to; None: there is none
    base_digest: str | None = None  # state digest of the base
    encoding: str = "full"  # what `chunks` are: "full": the canonical byte stream; "delta": see pipeline.weights.delta
    tensors: tuple[TensorEntry, ...]
    chunks: tuple[ChunkRef, ...]
    state_digest: str  # blake3 over the canonical byte stream of the resulting state
    num_bytes: int  # of the canonical byte stream
    seeds: tuple[str, ...]  # base URLs of peers that have every chunk
    created_unix_ms: int  # when the weights were copied from the trainer
    delta_chunks: tuple[ChunkRef, ...] = ()  # of a full anchor that can be reached from `base` as well
    listing: tuple[ChunkRef, ...] = ()  # chunks of the whole manifest, too large for a record: the other ones are empty
    delta_bytes: int = 0  # with a listing: what the listed delta's chunks add up to; 0: none is listed
    adapter: AdapterOf | None = None  # the state is adapters to a base model; None: it is a whole model
