"""What every kind of server must offer: tokens in, tokens and log-probabilities out.

Role: the protocol between `host.py` and a kind of server, and which kind a server is.
Invariants: a dialect does no I/O and holds no state; sampling parameters are all sent, so that no default of the server
counts.
Failure: `BadAnswer` for an answer that cannot be read; `EngineError` for parameters the server has no field for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from pipeline.engines.http.exchange import Answer, BadAnswer, Scored
from pipeline.engines.http.reading import NOT_A_LOGPROB, Node, parse
from pipeline.engines.vllm.exchange import NewRequest
from schemas.errors import EngineError
from schemas.records import SamplingParams

NUM_TOP = 3  # enough for the two likeliest tokens beside the one drawn


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question: where to, and what."""

    path: str
    body: dict[str, object]


class Dialect(Protocol):
    """One kind of server."""

    @property
    def name(self) -> str:
        """As in the setting `rollout.http.kind`."""
        ...

    @property
    def says_weights(self) -> bool:
        """Whether an answer says which weights made each token."""
        ...

    @property
    def takes_top_k(self) -> bool:
        """Whether top-k can be asked for."""
        ...

    @property
    def missing_hint(self) -> str:
        """What to do about a server that lacks the route or a field."""
        ...

    def check_sampling(self, sampling: SamplingParams) -> None:
        """Raises: EngineError: a parameter the server has no field for, or takes for another value."""
        ...

    def generate(self, request: NewRequest, *, model: str, salt: str, want_top: bool = False) -> Ask:
        """Ask for one sequence.

        Args:
            salt: requests of different salts share no prefix cache, where the server has such a thing.
            want_top: also for the `NUM_TOP` largest log-probabilities at the first position.
        """
        ...

    def read(self, data: bytes) -> Answer:
        """What the server made of it.

        Raises:
            BadAnswer: no token ids, no log-probabilities, or not of the promised form.
        """
        ...

    def score(self, prompt: list[int], *, model: str, salt: str) -> Ask:
        """Ask for the log-probabilities of a prompt's own tokens."""
        ...

    def read_scores(self, data: bytes, *, prompt: list[int]) -> Scored | None:
        """One per token but the first; None: the server gives none.

        Raises:
            BadAnswer: not of the promised form.
        """
        ...


def prioritised(request: NewRequest, *, first_is_highest: bool = False) -> dict[str, object]:
    """The field for a request's priority, nothing for the ordinary one.

    Args:
        first_is_highest: the server takes higher numbers first.
    """
    if request.priority == 0:
        return {}
    return {"priority": -request.priority if first_is_highest else request.priority}


def descending(values: Iterable[Node]) -> list[float]:
    """Log-probabilities, those of tokens that were filtered out left out."""
    found = [node.value for node in values]
    kept = [value for value in found if isinstance(value, int | float) and value > NOT_A_LOGPROB]
    return sorted(map(float, kept), reverse=True)


def refuse_top_k(sampling: SamplingParams, *, kind: str) -> None:
    """Raises: EngineError: top-k is asked of a kind of server whose interface does not have it."""
    if sampling.top_k > 0:
        raise EngineError(
            f"sampling has top_k {sampling.top_k}; a server of kind {kind} has no field for it; no request was taken",
            hint="set top_k = 0, or another rollout.http.kind if the server is one",
        )


def first_choice(data: bytes) -> Node:
    """The one choice of a completion.

    Raises:
        BadAnswer: there is none.
    """
    return parse(data).get("choices").first()


def lacks(what: str, *, hint: str) -> BadAnswer:
    """The error of a server that does not give what training needs."""
    return BadAnswer(f"the server gives no {what}", hint=hint)
