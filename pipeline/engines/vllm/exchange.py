"""What the engine and the thread that runs vLLM say to each other. No vllm here.

Role: the values that cross between `engine.py` and `host.py`, and the errors of a swap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.errors import EngineError
from schemas.records import SamplingParams


class SwapRefused(EngineError):
    """Nothing was changed; the old weights are still served."""


class SwapBroken(EngineError):
    """The weights may be a mix; generation stays paused until a whole load."""


@dataclass(frozen=True, kw_only=True)
class NewRequest:
    """One sequence to generate."""

    key: str  # unique for the life of this vLLM
    prompt_tokens: list[int]
    sampling: SamplingParams
    max_tokens: int
    seed: int  # 0 to 2**63 - 1
    stop_token_ids: list[int]
    priority: int = 0  # lower goes first; others than 0 are sent only where the settings want them


@dataclass(frozen=True, kw_only=True)
class EndedRequest:
    """What became of it."""

    key: str
    tokens: list[int]
    logprobs: list[float]
    versions: list[tuple[str, int]]  # label and number of tokens, in order
    finish_reason: str  # vLLM's: stop, length, abort, error
    num_cached_tokens: int  # prompt tokens that came from the prefix cache


class VllmHost(Protocol):
    """A running vLLM."""

    @property
    def dead(self) -> bool:
        """Whether it will never answer again."""
        ...

    @property
    def pause_s(self) -> float:
        """How long generation stood still in the last swap."""
        ...

    def submit(self, requests: Sequence[NewRequest]) -> None:
        """Hand requests over; each comes back through `take` once."""
        ...

    def abort(self, keys: Sequence[str]) -> None:
        """End requests where they are; they come back with what they have."""
        ...

    def take(self, *, wait_s: float) -> list[EndedRequest]:
        """What has ended; waits at most `wait_s` for the first.

        Raises:
            EngineError: vLLM has failed.
        """
        ...

    def swap(self, path: str, *, label: str, ties: Mapping[str, str]) -> None:
        """Pause, load the sealed file, stamp `label` from the next token on, resume.

        Raises:
            SwapRefused: nothing was changed, generation goes on.
            SwapBroken: the weights may be a mix; generation is paused until a whole load.
            EngineError: vLLM does not answer.
        """
        ...

    def close(self) -> None:
        """End vLLM; a second call does nothing."""
        ...
