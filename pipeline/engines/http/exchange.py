"""What the engine and the thread that talks HTTP say to each other, and what can go wrong between them. No HTTP here.

Role: the values that cross between `engine.py`, `host.py` and the dialects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias

from pipeline.engines.vllm.exchange import NewRequest
from schemas.errors import EngineError


class NoAnswer(EngineError):
    """The server cannot be reached, or the connection ended before the answer was whole.

    Args:
        sent: whether the server may have begun with the request.
    """

    def __init__(self, message: str, *, sent: bool, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sent = sent


class Refusal(EngineError):
    """The server answered with another status than 200."""

    def __init__(self, message: str, *, status: int, retry_after_s: float = 0.0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.retry_after_s = retry_after_s


class BadAnswer(EngineError):
    """An answer that is not of the form the server's interface promises."""


class Meaning(StrEnum):
    """What a server's log-probabilities are of."""

    RAW = "raw"  # the model's softmax at temperature 1
    TEMPERED = "tempered"  # after temperature, before top-k and top-p
    PROCESSED = "processed"  # the distribution that the token was drawn from


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One generated sequence, as the server gave it."""

    tokens: list[int]
    logprobs: list[float]  # of the tokens; as many, if the server is right
    spans: list[tuple[str, int]] | None  # which weights made how many tokens, in order; None: it does not say
    finish_reason: str  # the server's own word
    top: list[float] | None = None  # the largest log-probabilities at the first position, descending, where asked for


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What became of a request: an answer, or what went wrong with it alone."""

    key: str
    answer: Answer | None = None  # None with no failure: it was aborted
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class SealedFile:
    """A state in a sealed file of memory on this host, for our plug-in in vLLM."""

    path: str
    ties: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A state as a model directory."""

    path: Path


Source: TypeAlias = SealedFile | Folder


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """What was found out about a server."""

    kind: str  # "vllm", "sglang", "trtllm" or "openai"
    model: str
    context_tokens: int | None  # None: it does not say
    meaning: Meaning
    update: str  # how weights get into it: "plugin", "disk" or "none"
    checks_weights: bool  # whether it compares what it loads with what was published


class HttpHost(Protocol):
    """The connection to one server."""

    @property
    def dead(self) -> bool:
        """Whether the server was lost; `revive` finds it again."""
        ...

    @property
    def facts(self) -> ServerFacts:
        """What was found out at the start or the last `revive`."""
        ...

    @property
    def pause_s(self) -> float:
        """How long generation stood still in the last swap."""
        ...

    def revive(self) -> None:
        """Look for the server again, as at the start.

        Raises:
            EngineError: it does not answer, or not as it must.
        """
        ...

    def submit(self, requests: Sequence[NewRequest]) -> None:
        """Send requests; each comes back through `take` once."""
        ...

    def abort(self, keys: Sequence[str]) -> None:
        """Give requests up; they come back without an answer."""
        ...

    def take(self, *, wait_s: float) -> list[Ended]:
        """What has ended; waits at most `wait_s` for the first.

        Raises:
            EngineError: the server was lost, and with it every request.
        """
        ...

    def swap(self, source: Source, *, label: str) -> None:
        """Load a state and have `label` said of every later token.

        Raises:
            SwapRefused: nothing was changed, generation goes on.
            SwapBroken: the weights may be a mix; nothing is sent until a whole load.
            EngineError: the server does not answer.
        """
        ...

    def scores(self, prompts: Sequence[Sequence[int]]) -> list[Scored] | None:
        """Log-probabilities of the tokens of prompts; None: the server gives none.

        Raises:
            EngineError: the server does not answer, or not as it must.
        """
        ...

    def close(self) -> None:
        """End the connection; a second call does nothing."""
        ...


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What a server says of one prompt."""

    logprobs: list[float]  # of every token but the first
    label: str | None  # of the weights; None: it does not say
