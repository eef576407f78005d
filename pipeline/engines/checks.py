"""The checks that every engine makes before it takes anything in.

Role: refuse requests and weight states as a whole, before the first of them has an effect.
Data in: requests or tensors; data out: nothing, or the first thing that is wrong.
Invariants: no torch; a tensor is judged by name, shape and dtype name only.
Failure: `EngineError` that names the request or tensor, what was seen and what is allowed; `RecordInvalid` for prompts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from pipeline.engines.base import EngineState, GenerationRequest, StateTensor, TokenArray
from schemas.errors import EngineError, RecordInvalid
from schemas.reasons import Reason
from schemas.records import PromptGroup, SamplingParams

NAMES_SHOWN = 5


def prompt_invalid(message: str, *, hint: str = "") -> RecordInvalid:
    """The error of a prompt that cannot be generated from."""
    return RecordInvalid(message, reason=Reason.PROMPT_INVALID, hint=hint)


def check_one_form(group: PromptGroup) -> None:
    """Raises: RecordInvalid: not exactly one of text, messages and token ids is set."""
    forms = {"text": group.text, "messages": group.messages, "token_ids": group.token_ids}
    present = [name for name, value in forms.items() if value is not None]
    if len(present) != 1:
        raise prompt_invalid(
            f"the prompt of group {group.group} sets {' and '.join(present) if present else 'nothing'}; "
            "exactly one of text, messages and token_ids is allowed"
        )


def unpack_prompt_tokens(packed: bytes) -> TokenArray:
    """Little-endian int32 bytes to an array.

    Raises:
        RecordInvalid: the length is not a multiple of 4.
    """
    if len(packed) % 4:
        raise prompt_invalid(f"token_ids has {len(packed)} bytes; packed int32 needs a multiple of 4")
    return np.frombuffer(packed, dtype="<i4").astype(np.int32)


def check_prompt_length(group: PromptGroup, tokens: TokenArray, *, context_tokens: int) -> None:
    """Raises: RecordInvalid: no token, or no room in the context for one new token."""
    if len(tokens) == 0:
        raise prompt_invalid(f"the prompt of group {group.group} is empty; at least one token is needed")
    if len(tokens) + 1 > context_tokens:
        raise prompt_invalid(
            f"the prompt of group {group.group} has {len(tokens)} tokens and the context holds {context_tokens}: "
            "no room for one new token",
            hint="shorten the prompt or use a model with a longer context",
        )


def check_token_range(group: PromptGroup, tokens: TokenArray, *, vocab_size: int) -> None:
    """Raises: RecordInvalid: a token id the model does not have."""
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        seen = low if low < 0 else high
        raise prompt_invalid(
            f"the prompt of group {group.group} has token id {seen}; allowed are 0 to {vocab_size - 1}"
        )


def check_ready(state: EngineState, *, closed: bool) -> None:
    """Raises: EngineError: nothing whole is loaded, so no token could be stamped with a version."""
    if closed:
        raise EngineError("the engine is closed and takes no more calls")
    if state is not EngineState.SERVING:
        raise EngineError(
            f"the engine is {state}, no version is loaded as a whole, so it takes no requests",
            hint="load a published version first",
        )


def check_requests(
    requests: Sequence[GenerationRequest],
    *,
    held: Collection[str],
    num_free_slots: int,
    context_tokens: int,
    vocab_size: int,
) -> None:
    """Judge a whole submission before any of it is taken.

    Raises:
        EngineError: too many, an id twice, a prompt or sampling parameter out of range.
    """
    if len(requests) > num_free_slots:
        raise EngineError(
            f"{len(requests)} requests for {num_free_slots} free slots; none was taken",
            hint="submit at most `num_free_slots`, or raise max_concurrent_sequences",
        )
    seen: set[str] = set()
    for request in requests:
        if request.request_id in held or request.request_id in seen:
            raise EngineError(f"request id {request.request_id!r} is already in use; none was taken")
        seen.add(request.request_id)
        num_prompt_tokens = len(request.prompt_tokens)
        if not 1 <= num_prompt_tokens < context_tokens:
            raise EngineError(
                f"request {request.request_id!r} has {num_prompt_tokens} prompt tokens; allowed are 1 to "
                f"{context_tokens - 1}; none was taken"
            )
        if request.num_made and not 0 < request.num_made < min(num_prompt_tokens, request.sampling.max_tokens):
            raise EngineError(
                f"request {request.request_id!r} goes on from {request.num_made} tokens; allowed are 0 to "
                f"{min(num_prompt_tokens, request.sampling.max_tokens) - 1}; none was taken"
            )
    for sampling in {request.sampling for request in requests}:
        check_sampling(sampling)
    if requests:
        _check_vocabulary(requests, vocab_size=vocab_size)


def check_sampling(sampling: SamplingParams) -> None:
    """Raises: EngineError: a sampling parameter out of range."""
    wrong = ""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        wrong = f"temperature {sampling.temperature}; allowed are finite numbers from 0 (greedy) up"
    elif not 0 < sampling.top_p <= 1:
        wrong = f"top_p {sampling.top_p}; allowed are numbers above 0 up to 1 (off)"
    elif sampling.top_k < 0:
        wrong = f"top_k {sampling.top_k}; allowed are 0 (off) and up"
    elif sampling.max_tokens < 1:
        wrong = f"max_tokens {sampling.max_tokens}; at least 1 is needed"
    elif "" in sampling.stop:
        wrong = "an empty stop string; it would match everywhere"
    if wrong:
        raise EngineError(f"sampling has {wrong}; no request was taken")


def check_state(expected: Mapping[str, StateTensor], given: Mapping[str, StateTensor], *, ties: Iterable[str]) -> None:
    """Compare a weight state with the model, before anything is copied. Tied names may be there or not.

    Raises:
        EngineError: names missing or unknown, another shape or another dtype.
    """
    missing = sorted(set(expected) - set(given))
    unknown = sorted(set(given) - set(expected) - set(ties))
    if missing or unknown:
        raise _mismatch(f"names differ: {_some('missing', missing)}, {_some('unknown', unknown)}")
    for name, tensor in expected.items():
        if tuple(given[name].shape) != tuple(tensor.shape):
            raise _mismatch(f"{name} has shape {tuple(given[name].shape)}, the model's is {tuple(tensor.shape)}")
        if dtype_name(given[name]) != dtype_name(tensor):
            raise _mismatch(f"{name} has dtype {dtype_name(given[name])}, the model's is {dtype_name(tensor)}")


def dtype_name(tensor: StateTensor) -> str:
    """The dtype's name without its library: "float32" for numpy.float32 and torch.float32."""
    return str(tensor.dtype).removeprefix("torch.")


def _check_vocabulary(requests: Sequence[GenerationRequest], *, vocab_size: int) -> None:
    flat = np.concatenate([np.asarray(request.prompt_tokens) for request in requests])
    low, high = int(flat.min()), int(flat.max())
    if low < 0 or high >= vocab_size:
        seen = low if low < 0 else high
        raise EngineError(f"prompt token id {seen}; allowed are 0 to {vocab_size - 1}; no request was taken")


def _mismatch(what: str) -> EngineError:
    return EngineError(
        f"the weights do not fit the model: {what}; nothing was copied, the old version is still served",
        hint="learner and engine must start from the same model directory with the same dtype",
    )


def _some(label: str, names: Sequence[str]) -> str:
    if not names:
        return f"none {label}"
    rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{label} {', '.join(names[:NAMES_SHOWN])}{rest}"
