"""One call into a causal language model with a cache, whatever its architecture.

Role: the adapter over a transformers model's `forward`; its loose types end here.
Data in: token ids and positions as int64 tensors [rows, length], and a mask.
Data out: logits of the last position [rows, vocabulary] and a cache that grew by `length`.
Invariants: only the last position's logits are computed where the model can do so.
Failure: torch's errors pass through; the engine translates them.
"""

from __future__ import annotations

import inspect

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class CausalForward:
    """The decoding side of one model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        accepted = inspect.signature(model.forward).parameters
        self._keep_last = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._takes_positions = "position_ids" in accepted

    def new_cache(self) -> DynamicCache:
        """An empty cache with the layer kinds of the model."""
        return DynamicCache(config=self.model.config)

    def last_logits(self, tokens: Tensor, *, mask: Tensor | None, positions: Tensor, cache: DynamicCache) -> Tensor:
        """Run the model over new tokens.

        Args:
            tokens: int64 [rows, length].
            mask: bool [rows, cached + length], False for padding on the left; None when nothing is padded.
            positions: int64 [rows, length], counted without padding.
            cache: grows in place.
        """
        extra = {"position_ids": positions} if self._takes_positions else {}
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **extra,
            **self._keep_last,
        )
        logits: Tensor = output.logits[:, -1]
        return logits
