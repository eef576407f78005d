"""A batch of sequences that started together and share one cache.

Role: prefill, decode, sample, notice the ends. An engine holds several cohorts: that is its continuous batching.
Data in: checked requests; data out: finished generations.
Invariants: every cohort row makes its token number t in the same step, so the versions of the tokens are one list for
all; a row's tokens depend on its own request and the weights only. Rows of ended sequences stay in the cache until a
quarter is dead, since dropping them copies it.
Failure: torch's errors pass through; the engine translates them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.engines.base import (
    FINISH_ABORT,
    FINISH_LENGTH,
    FINISH_STOP,
    Generation,
    GenerationRequest,
    TokenArray,
    kind_of_logprobs,
    made_tokens,
    version_runs,
)
from pipeline.engines.endings import Endings, find_stop
from pipeline.engines.forward import CausalForward
from pipeline.engines.randomness import stream_starts, uniforms
from pipeline.engines.sampling import SamplingRows, draw
from schemas.records import Version

DEAD_SHARE_TO_COMPACT = 0.25


class Cohort:
    """Sequences of one prefill. Arrays named `..._of_all` have a row per request, the others a row per cache row."""

    def __init__(
        self, requests: Sequence[GenerationRequest], *, forward: CausalForward, endings: Endings, context_tokens: int
    ) -> None:
        self._requests = list(requests)
        self._forward = forward
        self._endings = endings
        self._context_tokens = context_tokens
        self._device = forward.model.device
        lengths = np.array([len(request.prompt_tokens) for request in requests])
        self._made_of_all = np.array([request.num_made for request in requests])
        wanted = np.array([request.sampling.max_tokens for request in requests]) - self._made_of_all
        self._limit_of_all = np.minimum(wanted, context_tokens - lengths)
        self._seed_of_all = stream_starts(request.seed for request in requests)
        self._stop_of_all = np.array([bool(request.sampling.stop) for request in requests])
        self._live_of_all = np.ones(len(requests), dtype=np.bool_)
        # Only pages that are written take memory, so the longest limit may be generous.
        self._tokens_of_all = np.empty((self._limit_of_all.max(), len(requests)), dtype=np.int32)
        self._logprobs_of_all = np.empty(self._tokens_of_all.shape, dtype=np.float32)
        self._versions: list[Version] = []
        self._rows = np.arange(len(requests))
        self._sampling = SamplingRows.of([request.sampling for request in requests], device=self._device)
        self._cache = forward.new_cache()
        self._lengths = torch.from_numpy(lengths).to(self._device)
        self._mask: Tensor | None = None
        self._last: Tensor | None = None

    @property
    def num_live(self) -> int:
        """Sequences that have not ended."""
        return int(self._live_of_all.sum())

    def advance(self, version: Version) -> list[Generation]:
        """Make one token per row with the weights of `version`, and return the sequences that ended with it."""
        self._compact()
        index = len(self._versions)
        logits = self._prefill() if self._last is None else self._decode(self._last, index=index)
        draws = uniforms(self._seed_of_all[self._rows], self._made_of_all[self._rows] + index)
        uniform = torch.from_numpy(draws).to(self._device)
        tokens, logprobs = draw(logits, self._sampling, uniform=uniform)
        self._last = tokens
        drawn = tokens.cpu().numpy()
        self._tokens_of_all[index, self._rows] = drawn
        self._logprobs_of_all[index, self._rows] = logprobs.cpu().numpy()
        self._versions.append(version)
        return self._collect_ended(drawn)

    def abort(self, request_ids: set[str]) -> list[Generation]:
        """End the named sequences that are still live and return them."""
        hit = np.array([request.request_id in request_ids for request in self._requests]) & self._live_of_all
        return self._end(np.flatnonzero(hit), {int(row): FINISH_ABORT for row in np.flatnonzero(hit)})

    def _prefill(self) -> Tensor:
        prompts = [np.asarray(request.prompt_tokens, dtype=np.int32) for request in self._requests]
        # The members of a group share a prompt: it is computed once and its cache row copied.
        place: dict[bytes, int] = {}
        inverse = [place.setdefault(prompt.tobytes(), len(place)) for prompt in prompts]
        distinct = [np.frombuffer(prompt, dtype=np.int32) for prompt in place]
        tokens, mask = pad_left(distinct)
        mask_tensor = torch.from_numpy(mask).to(self._device)
        padded = not mask.all()
        logits = self._forward.last_logits(
            torch.from_numpy(tokens).to(self._device),
            mask=mask_tensor if padded else None,
            positions=(mask_tensor.cumsum(dim=1) - 1).clamp_(min=0),
            cache=self._cache,
        )
        expand = torch.tensor(inverse, device=self._device)
        if padded:
            room = mask_tensor.new_ones((len(inverse), len(self._tokens_of_all)))
            self._mask = torch.cat([mask_tensor[expand], room], dim=1)
        if len(distinct) == len(inverse):
            return logits
        self._cache.batch_select_indices(expand)
        return logits[expand]

    def _decode(self, last: Tensor, *, index: int) -> Tensor:
        # Dead rows run on until they are dropped; the clamp keeps their positions inside the context.
        positions = (self._lengths + (index - 1)).clamp_(max=self._context_tokens - 1)
        cached_tokens = self._cache.get_seq_length()
        return self._forward.last_logits(
            last.unsqueeze(1),
            mask=None if self._mask is None else self._mask[:, : cached_tokens + 1],
            positions=positions.unsqueeze(1),
            cache=self._cache,
        )

    def _collect_ended(self, drawn: npt.NDArray[np.int64]) -> list[Generation]:
        num_tokens = len(self._versions)
        live = self._live_of_all[self._rows]
        stopped = live & self._endings.is_eos(drawn)
        for at in np.flatnonzero(live & ~stopped & self._stop_of_all[self._rows]):
            row = self._rows[at]
            tokens = _whole(self._requests[row], self._tokens_of_all[:num_tokens, row])
            stopped[at] = self._endings.has_stop(tokens, self._requests[row].sampling.stop)
        ended = stopped | (live & (num_tokens >= self._limit_of_all[self._rows]))
        reasons = np.where(stopped[ended], FINISH_STOP, FINISH_LENGTH).tolist()
        rows = self._rows[ended]
        return self._end(rows, dict(zip(rows.tolist(), reasons, strict=True)))

    def _end(self, rows: npt.NDArray[np.int64], reasons: dict[int, str]) -> list[Generation]:
        if not len(rows):
            return []
        self._live_of_all[rows] = False
        num_tokens = len(self._versions)
        tokens = np.ascontiguousarray(self._tokens_of_all[:num_tokens, rows].T)
        logprobs = np.ascontiguousarray(self._logprobs_of_all[:num_tokens, rows].T)
        runs = version_runs(self._versions)
        ended = []
        texts = self._endings.texts([_whole(self._requests[row], tokens[at]) for at, row in enumerate(rows.tolist())])
        for at, (row, text) in enumerate(zip(rows.tolist(), texts, strict=True)):
            request = self._requests[row]
            cut = find_stop(text, request.sampling.stop) if request.sampling.stop else None
            ended.append(
                Generation(
                    request_id=request.request_id,
                    tokens=tokens[at],
                    text=text if cut is None else text[:cut],
                    logprobs=logprobs[at],
                    logprobs_kind=kind_of_logprobs(request.sampling),
                    version_runs=runs,
                    finish_reason=reasons[row] if cut is None else FINISH_STOP,
                )
            )
        return ended

    def _compact(self) -> None:
        live = self._live_of_all[self._rows]
        num_dead = len(live) - int(live.sum())
        if self._last is None or num_dead < DEAD_SHARE_TO_COMPACT * len(live) or not num_dead:
            return
        kept = np.flatnonzero(live)
        keep = torch.from_numpy(kept).to(self._device)
        self._rows = self._rows[kept]
        self._cache.batch_select_indices(keep)
        self._last = self._last[keep]
        self._lengths = self._lengths[keep]
        self._mask = None if self._mask is None else self._mask[keep]
        sampling = [self._requests[row].sampling for row in self._rows]
        self._sampling = SamplingRows.of(sampling, device=self._device)


def _whole(request: GenerationRequest, tokens: TokenArray) -> TokenArray:
    """The completion with what it brought along."""
    return tokens if request.num_made == 0 else np.concatenate([made_tokens(request), tokens])


def pad_left(prompts: Sequence[npt.NDArray[np.int32]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Token ids int64 and mask bool, both [rows, longest]; padding is id 0 with mask False, on the left."""
    longest = max(len(prompt) for prompt in prompts)
    tokens = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros((len(prompts), longest), dtype=np.bool_)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = True
    return tokens, mask
