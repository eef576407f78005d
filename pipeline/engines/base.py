"""What every inference engine offers, whatever runs underneath.

Role: the protocol between a rollout producer (or an evaluator) and the engine in its own process, and the values they
exchange.
Data in: requests with prompt tokens, sampling parameters and a seed; weight states with a version.
Data out: finished generations with tokens, text, log-probabilities and the version that made each token.
Invariants: every submitted request comes back from `step` exactly once; `version` names weights that are wholly loaded
and checked, or is None; a token carries the version whose weights computed it (promises 6, 9, 10).
Failure: `EngineError` for a request, a swap or a model at fault; `RecordInvalid` for a prompt at fault.

No torch here: producers and tests import this module where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from schemas.records import PromptGroup, SamplingParams, Version, VersionRun

TokenArray: TypeAlias = npt.NDArray[np.int32]
LogprobArray: TypeAlias = npt.NDArray[np.float32]

FINISH_STOP = "stop"  # an end-of-sequence token or a stop string
FINISH_LENGTH = "length"  # `max_tokens` or the end of the context
FINISH_ABORT = "abort"
FINISH_FAILED = "failed"  # this request went wrong, the others go on: no tokens, `failure` says why
ROLLOUT, EVALUATION = "rollout", "evaluation"  # classes of requests
RAW = "raw"  # log-probabilities of the model's softmax at temperature 1
PROCESSED = "processed"  # log-probabilities after temperature, top-k and top-p


class EngineState(StrEnum):
    """Where an engine is between its start and serving (promise 9)."""

    COLD = "cold"  # no version loaded; takes no requests
    STAGING = "staging"  # a state is being checked; what was served is still served
    VERIFIED = "verified"  # checked as a whole, the copy is under way
    SERVING = "serving"
    QUARANTINED = "quarantined"  # failed half-way; the weights may be a mix, so nothing runs until a whole load


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerationRequest:
    """One sequence to generate."""

    request_id: str  # unique among the requests the engine holds
    prompt_tokens: TokenArray | tuple[int, ...]  # [prompt length], at least one, and what was made of the completion
    sampling: SamplingParams  # `max_tokens` is capped by the room left in the context
    seed: int  # taken modulo 2**64; same seed, prompt and weights give the same tokens in any batch
    # The last so many of `prompt_tokens` are completion tokens, made before. `max_tokens`, stop strings and the text of
    # the generation are of the whole completion; its tokens, log-probabilities and runs are of what is added to it.
    num_made: int = 0
    traffic: str = ROLLOUT  # whose request it is, where an engine serves both: ROLLOUT or EVALUATION


@dataclass(frozen=True, kw_only=True, eq=False)
class Generation:
    """What became of a request."""

    request_id: str
    tokens: TokenArray  # [n], all that was sampled, an end token or those of a stop string included
    text: str  # of `tokens` without special tokens, cut before the first stop string
    logprobs: LogprobArray  # [n], natural log, of the sampled token; NaN when the model's logits were not finite
    # RAW for greedy (temperature 0), else PROCESSED: of the distribution the token was drawn from. An engine over a
    # server that gives nothing else says RAW at other temperatures too.
    logprobs_kind: str
    version_runs: tuple[VersionRun, ...]  # lengths add up to n; the version whose weights computed each token
    finish_reason: str  # FINISH_STOP, FINISH_LENGTH, FINISH_ABORT or FINISH_FAILED
    failure: str = ""  # of FINISH_FAILED: what was seen, for people
    num_cached: int = 0  # prompt tokens that the engine still had in its cache; one that does not say: 0


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptTokens:
    """A prompt as the engine sees it."""

    text: str  # after the chat template
    tokens: TokenArray  # [prompt length]


class StateTensor(Protocol):
    """What a weight has in numpy and in torch alike."""

    @property
    def shape(self) -> Sequence[int]:
        """Length of each axis."""
        ...

    @property
    def dtype(self) -> object:
        """Element type, as its library names it."""
        ...


class Engine(Protocol):
    """An inference engine in the caller's process. Not thread-safe: one thread calls it."""

    @property
    def state(self) -> EngineState:
        """Where the engine is between its start and serving."""
        ...

    @property
    def version(self) -> Version | None:
        """The version served: whole and checked. None before the first load and in quarantine."""
        ...

    @property
    def num_running(self) -> int:
        """Requests submitted and not yet returned by `step`; aborted ones count until they are returned."""
        ...

    @property
    def num_free_slots(self) -> int:
        """How many more requests `submit` takes now."""
        ...

    def encode_prompt(self, group: PromptGroup) -> PromptTokens:
        """Render and tokenise a prompt: chat template for messages, text as it stands, token ids as given.

        Raises:
            RecordInvalid: reason `prompt_invalid`: empty, cannot be rendered, or no room for one new token.
        """
        ...

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Take requests; nothing is computed before `step`. All are taken or none.

        Raises:
            EngineError: no version is served, too few free slots, an id already held, or a request out of range.
        """
        ...

    def step(self) -> list[Generation]:
        """Advance every held sequence (by one token on a real model) and return those that ended, in any order.

        Raises:
            EngineError: no version is served, or the computation failed. In the second case every held request is
                lost, the engine is quarantined, and a whole `load` makes it serve again.
        """
        ...

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests where they are; the next `step` returns them with `FINISH_ABORT`. Ids not held are ignored."""
        ...

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        """Swap the weights between two steps; requests in flight go on with their cache ("keep", promise 10).

        Args:
            version: what the state is; the caller has verified its bytes.
            state: every tensor of the model under its own name; tied names may be left out.

        Raises:
            EngineError: names, shapes, dtypes or ties differ from the model's: nothing was copied, the old version is
                still served. Or the copy itself failed: the engine is quarantined; held requests go on if a whole
                `load` comes before the next `step`, else that step raises and they are lost.
        """
        ...

    def close(self) -> None:
        """Free the model and forget held requests. A second call does nothing."""
        ...


@runtime_checkable
class Continuing(Protocol):
    """An engine whose sequences another one may go on with, and the reverse. One that does not say so does neither."""

    @property
    def hands_over(self) -> bool:
        """Whether an aborted request comes back with all tokens made so far."""
        ...

    def continues(self, sampling: SamplingParams, *, logprobs_kind: str) -> bool:
        """Whether `submit` takes requests with `num_made` above 0 and gives log-probabilities of this kind for them."""
        ...


@runtime_checkable
class Conversing(Protocol):
    """An engine whose sequences go on with tokens that it did not make: what an environment needs."""

    @property
    def context_tokens(self) -> int:
        """Most prompt and completion tokens of one sequence."""
        ...

    def encode_text(self, text: str) -> TokenArray:
        """Tokens of a text that stands inside a sequence: without the tokenizer's own special tokens around it."""
        ...


def kind_of_logprobs(sampling: SamplingParams) -> str:
    """What an engine of ours gives: RAW for greedy, else PROCESSED."""
    return RAW if sampling.temperature == 0 else PROCESSED


def made_tokens(request: GenerationRequest) -> TokenArray:
    """The completion tokens that a request brings along, [num_made]."""
    tokens = np.asarray(request.prompt_tokens, dtype=np.int32)
    return tokens[len(tokens) - request.num_made :]


def first_tokens(runs: tuple[VersionRun, ...], *, num: int) -> tuple[VersionRun, ...]:
    """The runs of the first `num` tokens."""
    kept: list[VersionRun] = []
    for run in runs:
        length = min(run.num_tokens, num - sum(each.num_tokens for each in kept))
        if length > 0:
            kept.append(replace(run, num_tokens=length))
    return tuple(kept)


def version_runs(versions: Iterable[Version]) -> tuple[VersionRun, ...]:
    """Run-length encode the version of each token, in token order."""
    return tuple(VersionRun(num_tokens=sum(1 for _ in run), version=version) for version, run in groupby(versions))
