"""When a sequence ends, and its text.

Role: end-of-sequence tokens, stop strings and decoding, for many rows at once.
Data in: sampled token ids; data out: flags and text.
Invariants: an end token ends a sequence and stays in its tokens; text never holds special tokens, nor a stop string or
what follows it. Rows without stop strings are decoded once, when they end.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.engines.base import TokenArray

# A stop string of n bytes is made of at most n tokens; the rest covers a character cut in half before it.
TAIL_SLACK_TOKENS = 4


class Endings:
    """The end rules of one model and tokenizer."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._eos = np.array(sorted(eos_token_ids(model, tokenizer)), dtype=np.int64)

    def is_eos(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Flags [rows] of the tokens [rows] that end a sequence."""
        return np.isin(tokens, self._eos)

    def texts(self, rows: Sequence[TokenArray]) -> list[str]:
        """Decode rows of token ids, without special tokens."""
        if not rows:
            return []
        return list(self._tokenizer.batch_decode([row.tolist() for row in rows], skip_special_tokens=True))

    def has_stop(self, tokens: TokenArray, stop: tuple[str, ...]) -> bool:
        """Whether the text of a completion, whose earlier tokens held no stop string, holds one now.

        Only the tail is decoded; a hit is confirmed on the whole, as a tail can decode differently at its start.
        """
        tail_tokens = max(len(string.encode()) for string in stop) + TAIL_SLACK_TOKENS
        if find_stop(self.texts([tokens[-tail_tokens:]])[0], stop) is None:
            return False
        return find_stop(self.texts([tokens])[0], stop) is not None


def num_until_stop(endings: Endings, *, made: TokenArray, tokens: TokenArray, stop: tuple[str, ...]) -> int:
    """How many new tokens a completion keeps, that brought `made` along: up to the first of its stop strings.

    For servers that look for a stop string among the new tokens only: one that began in the old ones is found here.
    """
    if not len(made) or not stop:
        return len(tokens)
    reach = max(len(string.encode()) for string in stop)  # of a stop string, in tokens, beyond the first one
    for num in range(1, min(reach, len(tokens)) + 1):
        if endings.has_stop(np.concatenate([made, tokens[:num]]), stop):
            return num
    return len(tokens)


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """All ids that end a sequence: of the generation config, the model config and the tokenizer."""
    text_config = model.config.get_text_config()
    found: set[int] = set()
    for holder in (model.generation_config, text_config, tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        if ids is not None:
            found.update(ids if isinstance(ids, list | tuple) else [ids])
    return found


def find_stop(text: str, stop: tuple[str, ...]) -> int | None:
    """Where the first stop string of a text begins, or None."""
    hits = [at for at in (text.find(string) for string in stop) if at >= 0]
    return min(hits) if hits else None
