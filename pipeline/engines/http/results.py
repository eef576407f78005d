"""From what a server returned to a `Generation`.

Role: judges an answer, then text, stop rule, log-probability kind and version runs, as other engines mean them.
Data in: ended requests with their original ones. Data out: generations, failed ones included.
Invariants: nothing half-right comes out: a wrong number of log-probabilities, a token outside the vocabulary, more
tokens than asked for, an end nobody knows, each fails its own sequence. Text is decoded from the tokens, never taken
over.
Failure: `ForeignWeights`, which concerns the whole server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipeline.engines.base import (
    FINISH_ABORT,
    FINISH_FAILED,
    FINISH_LENGTH,
    FINISH_STOP,
    PROCESSED,
    RAW,
    Generation,
    GenerationRequest,
    TokenArray,
    first_tokens,
    kind_of_logprobs,
    made_tokens,
)
from pipeline.engines.endings import Endings, num_until_stop
from pipeline.engines.http.exchange import Answer, BadAnswer, Meaning
from schemas.errors import EngineError
from schemas.records import SamplingParams, VersionRun
from schemas.validation import MAX_LOGPROB

_REASONS = {"stop": FINISH_STOP, "length": FINISH_LENGTH, "abort": FINISH_ABORT}


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """An answer that passed, not yet decoded."""

    request: GenerationRequest
    tokens: TokenArray
    logprobs: list[float]
    runs: tuple[VersionRun, ...]
    finish_reason: str

    @property
    def whole(self) -> TokenArray:
        """The completion with what it brought along."""
        return np.concatenate([made_tokens(self.request), self.tokens])


def judge(
    request: GenerationRequest,
    answer: Answer,
    *,
    vocab_size: int,
    max_tokens: int,
    runs: Callable[[Answer], tuple[VersionRun, ...]],
) -> Judged:
    """See that an answer is one.

    Raises:
        BadAnswer: it is not.
        ForeignWeights: its tokens are of weights that nobody here loaded.
    """
    reason = _REASONS.get(answer.finish_reason)
    num = len(answer.tokens)
    wrong = ""
    if reason is None:
        wrong = f"ended with {answer.finish_reason!r}; known are {', '.join(_REASONS)}"
    elif len(answer.logprobs) != num:
        wrong = f"{num} tokens and {len(answer.logprobs)} log-probabilities; one each is needed"
    elif num > max_tokens:
        wrong = f"{num} tokens; at most {max_tokens} were asked for"
    elif num == 0 and reason != FINISH_ABORT:
        wrong = "no token"
    elif num and not 0 <= min(answer.tokens) <= max(answer.tokens) < vocab_size:
        wrong = f"token ids from {min(answer.tokens)} to {max(answer.tokens)}; allowed are 0 to {vocab_size - 1}"
    elif num and max(answer.logprobs) > MAX_LOGPROB:
        wrong = f"a log-probability of {max(answer.logprobs)}; allowed are at most 0"
    if wrong or reason is None:
        raise BadAnswer(f"the server's answer has {wrong}" if reason is not None else f"the server's answer {wrong}")
    tokens = np.asarray(answer.tokens, dtype=np.int32)
    return Judged(request=request, tokens=tokens, logprobs=answer.logprobs, runs=runs(answer), finish_reason=reason)


def within_stop(judged: Judged, *, endings: Endings) -> Judged:
    """Without what came after a stop string that the server did not see, as it began in the tokens brought along."""
    made, stop = made_tokens(judged.request), judged.request.sampling.stop
    num = num_until_stop(endings, made=made, tokens=judged.tokens, stop=stop)
    if num == len(judged.tokens):
        return judged
    runs = first_tokens(judged.runs, num=num)
    return replace(judged, tokens=judged.tokens[:num], logprobs=judged.logprobs[:num], runs=runs)


def completed(judged: Judged, *, text: str, cut: int | None, meaning: Meaning) -> Generation:
    """The generation of an answer that passed.

    Args:
        text: of all its tokens.
        cut: where the first stop string begins; None: there is none.
    """
    return Generation(
        request_id=judged.request.request_id,
        tokens=judged.tokens,
        text=text if cut is None else text[:cut],
        logprobs=np.asarray(judged.logprobs, dtype=np.float32),
        logprobs_kind=kind_of(judged.request.sampling, meaning=meaning),
        version_runs=judged.runs,
        finish_reason=judged.finish_reason if cut is None else FINISH_STOP,
    )


def without_tokens(request: GenerationRequest, *, failure: str = "") -> Generation:
    """A request that was aborted, or failed by itself."""
    return Generation(
        request_id=request.request_id,
        tokens=np.empty(0, dtype=np.int32),
        text="",
        logprobs=np.empty(0, dtype=np.float32),
        logprobs_kind=kind_of_logprobs(request.sampling),
        version_runs=(),
        finish_reason=FINISH_FAILED if failure else FINISH_ABORT,
        failure=failure,
    )


def check_meaning(sampling: SamplingParams, *, meaning: Meaning) -> None:
    """Raises: EngineError: the server's log-probabilities would be neither of the model nor of what is drawn from."""
    filtered = sampling.top_k > 0 or sampling.top_p < 1
    if meaning is Meaning.TEMPERED and filtered and sampling.temperature not in (0, 1):
        raise EngineError(
            f"sampling has temperature {sampling.temperature} with top_k {sampling.top_k} and top_p {sampling.top_p}; "
            "this server's log-probabilities are after temperature and before top-k and top-p, so they are neither the "
            "model's nor those of the distribution drawn from; no request was taken",
            hint="use temperature 1, or neither top-k nor top-p, or a server with processed log-probabilities (vLLM: "
            "--logprobs-mode processed_logprobs)",
        )


def kind_of(sampling: SamplingParams, *, meaning: Meaning) -> str:
    """What a sample says of its log-probabilities."""
    if sampling.temperature == 0 or meaning is Meaning.RAW:
        return RAW
    if meaning is Meaning.TEMPERED and sampling.temperature == 1:
        return RAW
    return PROCESSED
