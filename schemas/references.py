"""What the frozen reference model says of a sample; part of `schemas.records`."""

from __future__ import annotations

from dataclasses import dataclass

HAS_REFERENCE = "has_reference"  # fact of a lineage whose samples are trained only with a score; absent: they are not


@dataclass(frozen=True, kw_only=True)
class ReferenceScore:
    """Log-probabilities of one sample's completion by the reference model, or the reason why there are none; exactly
    one of the two."""

    run: str
    group: int
    member: int
    attempt: str
    model_digest: str  # of the reference's weights, as a manifest has it
    logprobs: bytes | None = None  # packed float32, one per completion token, at the sample's own temperature
    failure: str | None = None
    sample_offset: int  # offset of the scored sample; its partition is the record's own
    scored_unix_ms: int
    producer: str
