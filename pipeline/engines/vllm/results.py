"""From what vLLM returns to a `Generation`.

Role: text, stop rule, log-probability kind and version runs, with the meaning the torch engine gives them.
Data in: ended requests with their original ones; data out: generations.
Invariants: text is decoded from all tokens at once and cut before the first stop string; the version of each token is
the label vLLM stamped it with.
Failure: `EngineError` for an end that vLLM calls an error, or labels that do not cover the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.engines.base import (
    FINISH_ABORT,
    FINISH_LENGTH,
    FINISH_STOP,
    Generation,
    GenerationRequest,
    TokenArray,
    first_tokens,
    kind_of_logprobs,
    made_tokens,
)
from pipeline.engines.endings import Endings, find_stop, num_until_stop
from pipeline.engines.vllm.exchange import EndedRequest
from schemas.errors import EngineError
from schemas.records import Version, VersionRun

_REASONS = {"stop": FINISH_STOP, "length": FINISH_LENGTH, "abort": FINISH_ABORT}


def generations(
    ended: Sequence[tuple[GenerationRequest, EndedRequest]], *, endings: Endings, labels: Mapping[str, Version]
) -> list[Generation]:
    """Convert ended requests, decoding them together.

    Raises:
        EngineError: see the module.
    """
    tokens = [_kept(request, np.asarray(end.tokens, dtype=np.int32), endings=endings) for request, end in ended]
    whole = [np.concatenate([made_tokens(request), ids]) for (request, _), ids in zip(ended, tokens, strict=True)]
    made: list[Generation] = []
    for (request, end), ids, text in zip(ended, tokens, endings.texts(whole), strict=True):
        cut = find_stop(text, request.sampling.stop) if request.sampling.stop else None
        made.append(
            Generation(
                request_id=request.request_id,
                tokens=ids,
                text=text if cut is None else text[:cut],
                logprobs=np.asarray(end.logprobs, dtype=np.float32)[: len(ids)],
                logprobs_kind=kind_of_logprobs(request.sampling),
                version_runs=first_tokens(_runs(end, labels=labels), num=len(ids)),
                finish_reason=_reason(end) if cut is None else FINISH_STOP,
                num_cached=end.num_cached_tokens,
            )
        )
    return made


def not_begun(request: GenerationRequest) -> Generation:
    """A request that was aborted before anything was computed."""
    return Generation(
        request_id=request.request_id,
        tokens=np.empty(0, dtype=np.int32),
        text="",
        logprobs=np.empty(0, dtype=np.float32),
        logprobs_kind=kind_of_logprobs(request.sampling),
        version_runs=(),
        finish_reason=FINISH_ABORT,
    )


def _kept(request: GenerationRequest, tokens: TokenArray, *, endings: Endings) -> TokenArray:
    """Without what came after a stop string that vLLM did not see, as it began in the tokens brought along."""
    return tokens[: num_until_stop(endings, made=made_tokens(request), tokens=tokens, stop=request.sampling.stop)]


def _reason(end: EndedRequest) -> str:
    if end.finish_reason not in _REASONS:
        raise EngineError(f"vLLM ended a request with {end.finish_reason!r}; known are {', '.join(_REASONS)}")
    return _REASONS[end.finish_reason]


def _runs(end: EndedRequest, *, labels: Mapping[str, Version]) -> tuple[VersionRun, ...]:
    runs: list[VersionRun] = []
    for label, num_tokens in end.versions:
        if label not in labels:
            raise EngineError(f"vLLM stamped tokens with {label!r}, a version that was never loaded here")
        if num_tokens:
            runs.append(VersionRun(num_tokens=num_tokens, version=labels[label]))
    num_stamped = sum(run.num_tokens for run in runs)
    if num_stamped != len(end.tokens) or len(end.logprobs) != len(end.tokens):
        raise EngineError(
            f"vLLM returned {len(end.tokens)} tokens with {num_stamped} version stamps and {len(end.logprobs)} "
            "log-probabilities; a sample needs one of each per token"
        )
    return tuple(runs)
