"""The tokens of a completion that the policy wrote, without those of an environment.

Data in: a sample. Data out: token ids, int32.
Invariants: an absent mask means that all tokens are the policy's.
Failure: `ValueError` for packed bytes that are no tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from consumers.rewards.api import Sample
from schemas.packed import unpack_i32, unpack_u8


def own_tokens(sample: Sample) -> NDArray[np.int32]:
    """Completion tokens whose loss mask is 1, in order; int32, shape (n,).

    Raises:
        ValueError: the mask is of another length.
    """
    tokens = unpack_i32(sample.completion_tokens)
    if not sample.loss_mask:
        return tokens
    mask = unpack_u8(sample.loss_mask)
    if len(mask) != len(tokens):
        raise ValueError(f"{len(tokens)} completion tokens have a loss mask of {len(mask)}")
    own: NDArray[np.int32] = tokens[mask == 1]
    return own
