"""Getting to know a server: is it there, what is it, does it give what training needs.

Role: the questions asked once, when a server is found or found again.
Data in: settings and connections. Data out: kind, model and meaning, or the reason why this server cannot be used.
Order: (1) wait until it is healthy; (2) which kind and model; (3) prepare for updates; (4) one token, to see that ids
and log-probabilities come, with weight labels where they are needed; (5) what the log-probabilities are of.
Invariants: nothing of the server is changed but a pause that a predecessor left.
Failure: `EngineError` that says what is missing and what to do.
"""

from __future__ import annotations

import asyncio

from pipeline.engines.http.dialects.base import Ask, Dialect
from pipeline.engines.http.dialects.openai import OpenAiDialect, TrtllmDialect
from pipeline.engines.http.dialects.sglang import SglangDialect
from pipeline.engines.http.dialects.vllm import VllmDialect
from pipeline.engines.http.exchange import Answer, BadAnswer, Meaning, Refusal
from pipeline.engines.http.reading import Node, parse
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.http.updates import Updates
from pipeline.engines.http.wire import KEY_REFUSED, Wire
from pipeline.engines.vllm.exchange import NewRequest
from schemas.errors import EngineError
from schemas.records import SamplingParams

DIALECTS: dict[str, Dialect] = {
    each.name: each for each in (VllmDialect(), SglangDialect(), TrtllmDialect(), OpenAiDialect())
}
OWNERS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}  # `owned_by` of /v1/models
_LOOK_S = 0.5
_APART = 0.1  # nats between the two likeliest tokens, from which on their distance says something
_HALVED = 0.75  # of the distance at temperature 1: above it, temperature had no effect


async def wait_until_healthy(wire: Wire, *, limit_s: float) -> None:
    """(1) Wait for the server to answer.

    Raises:
        EngineError: it does not within the limit.
    """
    ends_s = asyncio.get_running_loop().time() + limit_s
    while (problem := await health(wire)) is not None:
        if isinstance(problem, Refusal) and problem.status in KEY_REFUSED:
            raise problem
        if asyncio.get_running_loop().time() >= ends_s:
            within = f" within {limit_s:g} s" if limit_s > 0 else ""
            raise EngineError(
                f"the server at {wire.base_url} does not answer as a healthy one{within}: {problem.message}",
                hint="start it, or correct rollout.http.base_urls; rollout.http.start_limit_s is how long is waited",
            )
        await asyncio.sleep(_LOOK_S)


async def health(wire: Wire) -> EngineError | None:
    """What is wrong with the server; None: it answers."""
    try:
        await wire.get("/health")
    except Refusal as error:
        return None if error.status == 404 else error  # not every server has the route, but it is there
    except EngineError as error:
        return error
    return None


async def identify(wire: Wire, *, settings: HttpSettings) -> tuple[Dialect, str, int | None]:
    """(2) Kind, model name and context of the server.

    Raises:
        EngineError: it lists no models, not the one wanted, or several and none is wanted.
    """
    cards = list(parse(await wire.get("/v1/models")).get("data").items())
    card = _card(cards, wire=wire, wanted=settings.model)
    owner = card.get("owned_by").value
    kind = settings.kind if settings.kind != "auto" else OWNERS.get(owner if isinstance(owner, str) else "", "openai")
    context = card.get("max_model_len")
    return DIALECTS[kind], card.get("id").text(), None if context.absent else context.integer()


def _card(cards: list[Node], *, wire: Wire, wanted: str | None) -> Node:
    # Adapters are listed beside the model they rest on.
    names = {card.get("id").text(): card for card in cards if card.get("parent").absent}
    if wanted is not None and wanted in names:
        return names[wanted]
    if wanted is None and len(names) == 1:
        return next(iter(names.values()))
    raise EngineError(
        f"the server at {wire.base_url} has the models {', '.join(sorted(names)) or '(none)'} and rollout.http.model "
        f"is {wanted if wanted is not None else 'not set'}",
        hint="set rollout.http.model to one of them",
    )


class Examiner:
    """(4) and (5): asks for single tokens."""

    def __init__(self, wire: Wire, *, dialect: Dialect, model: str, settings: HttpSettings) -> None:
        self._wire = wire
        self._dialect = dialect
        self._model = model
        self._settings = settings

    async def examine(self, prompts: list[list[int]], *, updates: Updates | None) -> Meaning:
        """See the module.

        Raises:
            EngineError: the server cannot be used.
        """
        answer = await self._first(prompts[0])
        if updates is not None and answer.spans is None:
            raise EngineError(
                f"the server at {self._wire.base_url} does not say which weights made a token, so updated weights "
                "could not be told from old ones",
                hint=f"{self._dialect.missing_hint}; or set rollout.http.update = 'none'",
            )
        if self._settings.logprobs != "auto":
            return Meaning(self._settings.logprobs)
        for prompt in prompts:
            found = await self._meaning(prompt)
            if found is not None:
                return found
        raise EngineError(
            f"it cannot be told what the log-probabilities of {self._wire.base_url} are of: the model finds "
            "every next token equally likely",
            hint="set rollout.http.logprobs to what the server gives",
        )

    async def _first(self, prompt: list[int]) -> Answer:
        try:
            answer = await self._ask(prompt, SamplingParams(max_tokens=1))
        except (BadAnswer, Refusal) as error:
            raise EngineError(
                f"the server at {self._wire.base_url} cannot be used as an engine of kind {self._dialect.name}: "
                f"{error.message}",
                hint=error.hint or self._dialect.missing_hint,
            ) from error
        if not answer.tokens or len(answer.tokens) != len(answer.logprobs):
            raise EngineError(
                f"the server at {self._wire.base_url} gave {len(answer.tokens)} token ids and {len(answer.logprobs)} "
                "log-probabilities for one token; one of each is needed",
                hint=self._dialect.missing_hint,
            )
        return answer

    async def _meaning(self, prompt: list[int]) -> Meaning | None:
        """Told from the two likeliest first tokens: what is filtered out has no log-probability left, and a temperature
        of 2 halves the distance between them. None: they are equally likely, so it cannot be told.
        """
        if self._dialect.takes_top_k:
            only = (await self._ask(prompt, SamplingParams(max_tokens=1, top_k=1), want_top=True)).top
            if only is not None and len(only) == 1:
                return Meaning.PROCESSED
        plain, warm = [await self._distance(prompt, temperature=temperature) for temperature in (1.0, 2.0)]
        if plain is None or warm is None or plain < _APART:
            return None
        # without top-k "processed" looks the same as "tempered", which is the more careful of the two
        return Meaning.RAW if warm > _HALVED * plain else Meaning.TEMPERED

    async def _distance(self, prompt: list[int], *, temperature: float) -> float | None:
        sampling = SamplingParams(max_tokens=1, temperature=temperature)
        top = (await self._ask(prompt, sampling, want_top=True)).top
        return None if top is None or len(top) < 2 else top[0] - top[1]

    async def _ask(self, prompt: list[int], sampling: SamplingParams, *, want_top: bool = False) -> Answer:
        request = NewRequest(
            key="examine", prompt_tokens=prompt, sampling=sampling, max_tokens=1, seed=1, stop_token_ids=[]
        )
        ask: Ask = self._dialect.generate(request, model=self._model, salt="examine", want_top=want_top)
        limit_s = self._settings.request_limit_s
        return self._dialect.read(await self._wire.generate(ask.path, ask.body, limit_s=limit_s))
