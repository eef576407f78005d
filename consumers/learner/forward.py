"""One pass of the model over rows: log-probabilities of completion tokens, and the policy's entropy at each.

Role: the only place that calls the model in training; packing and lower precision live here and nowhere else.
Data in: `Rows`. Data out: `Scores`, completion tokens in row order, float32.
Invariants: padded or packed, a row sees its own tokens only, so the results differ in rounding alone. With `bfloat16`
the weights stay float32 and so do logits' softmax, gradients and optimizer: master weights (arXiv 1710.03740).
Failure: errors of the model go through.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from consumers.learner.tensors import Rows
from schemas.errors import SettingsError

_ENTROPY_TOKENS = 1024  # at once: it needs two more copies of their logits


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What a pass gives, completion tokens in row order; every tensor has shape [tokens], float32."""

    logprobs: Tensor  # natural logarithms, with gradient
    entropy: Tensor  # of the distribution each token was drawn from, nats; without gradient


class Forward:
    """Calls a model.

    Args:
        packing: lay short rows behind one another, see `pack`.
        bfloat16: compute in bfloat16 where that is safe (`torch.autocast`).
    """

    def __init__(self, model: PreTrainedModel, *, packing: bool = False, bfloat16: bool = False) -> None:
        self._model = model
        self._packing = packing
        self._bfloat16 = bfloat16

    def logprobs(self, rows: Rows) -> Tensor:
        """Log-probabilities of the completion tokens, [tokens] in row order, float32.

        Logits are divided by the sampling temperature, as the sampler did. Truncation by top-p or top-k is not
        repeated: its renormalisation shows up as an importance weight below its cap (see `losses`).
        """
        scaled, targets = self._predictions(rows)
        return torch.log_softmax(scaled, dim=-1).gather(1, targets[:, None]).squeeze(1)

    def scores(self, rows: Rows) -> Scores:
        """Log-probabilities and entropies."""
        scaled, targets = self._predictions(rows)
        every = torch.log_softmax(scaled, dim=-1)
        with torch.no_grad():
            parts = [-(part.exp() * part).sum(dim=1) for part in torch.split(every, _ENTROPY_TOKENS)]
        return Scores(logprobs=every.gather(1, targets[:, None]).squeeze(1), entropy=torch.cat(parts))

    def _predictions(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Logits that predict the completion tokens, over the temperature, [tokens, vocabulary], and those tokens."""
        # The logits at column c predict column c + 1.
        chosen = rows.completion[:, 1:]
        targets = rows.input_ids[:, 1:][chosen]
        temperature = rows.temperature.expand(-1, chosen.shape[1])[chosen]
        predicted = self._packed(rows, chosen) if self._packing else self._padded(rows, chosen)
        return predicted.float() / temperature[:, None], targets

    def _padded(self, rows: Rows, chosen: Tensor) -> Tensor:
        with self._precision(rows):
            logits = self._model(input_ids=rows.input_ids, attention_mask=rows.attention, use_cache=False).logits
        found: Tensor = logits[:, :-1][chosen]
        return found

    def _packed(self, rows: Rows, chosen: Tensor) -> Tensor:
        packed = pack(rows)
        with self._precision(rows):
            mask = _visible(packed.segments, dtype=self._mask_dtype())
            logits = self._model(
                input_ids=packed.input_ids, position_ids=packed.positions, attention_mask=mask, use_cache=False
            ).logits
        row, column = torch.nonzero(chosen, as_tuple=True)
        found: Tensor = logits[packed.bins[row], packed.begins[row] + column]
        return found

    def _mask_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._bfloat16 else self._model.dtype

    def _precision(self, rows: Rows) -> AbstractContextManager[None]:
        if not self._bfloat16:
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(rows.input_ids.device.type, dtype=torch.bfloat16)
        return context


def check_packing(model: PreTrainedModel) -> None:
    """Refuse to pack for a model that sees more than its own row, or less, when rows lie behind one another.

    Raises:
        SettingsError: it has layers other than full attention, or gives other log-probabilities packed than padded.
    """
    kinds = sorted(set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        raise _unpackable(f"it has layers of type {', '.join(kinds)}")
    rows = _probe(model)
    with torch.no_grad():
        padded, packed = (Forward(model, packing=packing).logprobs(rows) for packing in (False, True))
    apart = float((padded - packed).abs().max().item())
    if not apart <= (1e-3 if model.dtype == torch.float32 else 0.1):
        raise _unpackable(f"packed and padded are {apart:.2g} nats apart")


def _unpackable(why: str) -> SettingsError:
    return SettingsError(
        f"learner.packing is on, and rows of this model cannot be laid behind one another: {why}",
        hint="set learner.packing = false: rows are padded to the longest",
    )


def _probe(model: PreTrainedModel) -> Rows:
    """Rows of 2, 6 and 3 tokens, of which two share a bin."""
    lengths, columns = (2, 6, 3), 6
    ids = torch.arange(len(lengths) * columns).reshape(len(lengths), columns) % int(model.config.vocab_size)
    attention = torch.tensor([[1] * length + [0] * (columns - length) for length in lengths])
    completion = attention.bool()
    completion[:, 0] = False
    rows = Rows(
        input_ids=ids * attention,
        attention=attention,
        completion=completion,
        loss_mask=completion.float(),
        behaviour_logprobs=torch.zeros(len(lengths), columns),
        temperature=torch.ones(len(lengths), 1),
    )
    return rows.to(model.device)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Rows laid into bins of one width, each behind the one before it."""

    input_ids: Tensor  # int64, [bins, columns]
    positions: Tensor  # int64, [bins, columns]: from 0 in every row
    segments: Tensor  # int64, [bins, columns]: which row, from 1; 0 is padding
    bins: Tensor  # int64, [rows]: where a row lies
    begins: Tensor  # int64, [rows]: its first column there


def pack(rows: Rows) -> Packed:
    """Lay rows into bins as wide as the longest row: the longest first, each into the first bin with room for it
    (first-fit decreasing), so the cost of attention, which grows with the square of the width, is not raised.
    """
    lengths = rows.attention.sum(dim=1).tolist()
    places = first_fit(lengths)
    shape = (1 + max(place[0] for place in places), max(lengths))
    ids = torch.zeros(shape, dtype=torch.int64)
    positions, segments = torch.zeros_like(ids), torch.zeros_like(ids)
    tokens = rows.input_ids.cpu()
    for row, ((where, begin), length) in enumerate(zip(places, lengths, strict=True)):
        span = slice(begin, begin + length)
        ids[where, span] = tokens[row, :length]
        positions[where, span] = torch.arange(length)
        segments[where, span] = row + 1
    device = rows.input_ids.device
    return Packed(
        input_ids=ids.to(device),
        positions=positions.to(device),
        segments=segments.to(device),
        bins=torch.tensor([place[0] for place in places], device=device),
        begins=torch.tensor([place[1] for place in places], device=device),
    )


def first_fit(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(bin, first column) of each row, for bins as wide as the longest."""
    width = max(lengths)
    used: list[int] = []
    places = [(0, 0)] * len(lengths)
    for row in sorted(range(len(lengths)), key=lambda each: (-lengths[each], each)):
        where = next((number for number, taken in enumerate(used) if taken + lengths[row] <= width), len(used))
        if where == len(used):
            used.append(0)
        places[row] = (where, used[where])
        used[where] += lengths[row]
    return places


def _visible(segments: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Additive attention mask [bins, 1, columns, columns]: tokens see their own row up to themselves; padding sees
    padding, so that no softmax is empty."""
    columns = segments.shape[1]
    same = segments[:, :, None] == segments[:, None, :]
    causal = torch.ones(columns, columns, dtype=torch.bool, device=segments.device).tril()
    hidden = torch.zeros(len(segments), 1, columns, columns, dtype=dtype, device=segments.device)
    return hidden.masked_fill(~(same & causal)[:, None], torch.finfo(dtype).min)
