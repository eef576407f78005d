"""Servers that speak OpenAI's `POST /v1/completions` and give token ids back; TensorRT-LLM is one.

OpenAI's interface takes a prompt as token ids and gives log-probabilities, but the tokens back as text only. Token ids
come by an extension: `return_token_ids` (a list beside the text) or `return_tokens_as_token_ids` ("token_id:17" in
place of each text), which vLLM and others have; TensorRT-LLM gives a list when it is told not to decode.
Nobody says which weights made a token, and there is no route for new ones.
"""

from __future__ import annotations

from pipeline.engines.http.dialects.base import NUM_TOP, Ask, descending, first_choice, lacks, prioritised, refuse_top_k
from pipeline.engines.http.exchange import Answer, BadAnswer, Scored
from pipeline.engines.http.reading import Node
from pipeline.engines.vllm.exchange import NewRequest
from schemas.records import SamplingParams

PATH = "/v1/completions"
TOKEN_MARK = "token_id:"  # noqa: S105 - not a secret


class OpenAiDialect:
    """See `base.Dialect`."""

    name = "openai"
    says_weights = False
    takes_top_k = False
    missing_hint = (
        "training needs both per sampled token; servers with return_token_ids or return_tokens_as_token_ids give them, "
        "vLLM and SGLang do by routes of their own (rollout.http.kind)"
    )

    def check_sampling(self, sampling: SamplingParams) -> None:
        """See `base.Dialect.check_sampling`."""
        refuse_top_k(sampling, kind=self.name)

    def generate(self, request: NewRequest, *, model: str, salt: str, want_top: bool = False) -> Ask:
        """See `base.Dialect.generate`. Where a sequence ends is the server's own matter here."""
        del salt
        extensions: dict[str, object] = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        return Ask(path=PATH, body={**_body(request, model=model, want_top=want_top), **extensions})

    def read(self, data: bytes) -> Answer:
        """See `base.Dialect.read`."""
        choice = first_choice(data)
        given = choice.get("logprobs")
        if given.absent or given.get("token_logprobs").absent:
            raise lacks("log-probabilities", hint=self.missing_hint)
        return Answer(
            tokens=self._tokens(choice),
            logprobs=given.get("token_logprobs").logprobs(),
            spans=None,
            finish_reason=choice.get("finish_reason").text(),
            top=_top(given.get("top_logprobs")),
        )

    def score(self, prompt: list[int], *, model: str, salt: str) -> Ask:
        """See `base.Dialect.score`."""
        sampling = SamplingParams(max_tokens=1)
        request = NewRequest(
            key="score", prompt_tokens=prompt, sampling=sampling, max_tokens=1, seed=0, stop_token_ids=[]
        )
        ask = self.generate(request, model=model, salt=salt)
        return Ask(path=ask.path, body={**ask.body, "echo": True})

    def read_scores(self, data: bytes, *, prompt: list[int]) -> Scored | None:
        """See `base.Dialect.read_scores`: the prompt is echoed in front of the answer, if the server does that."""
        given = first_choice(data).get("logprobs").get("token_logprobs")
        values = list(given.items())
        if len(values) < len(prompt) or not values[0].absent:
            return None
        return Scored(logprobs=[node.logprob() for node in values[1 : len(prompt)]], label=None)

    def _tokens(self, choice: Node) -> list[int]:
        ids = choice.get("token_ids")
        if not ids.absent:
            return ids.integers()
        names = [node.text() for node in choice.get("logprobs").get("tokens").items()]
        if not all(name.startswith(TOKEN_MARK) for name in names):
            raise lacks("token ids, only text, from which they cannot be told", hint=self.missing_hint)
        try:
            return [int(name.removeprefix(TOKEN_MARK)) for name in names]
        except ValueError as error:
            raise BadAnswer(f"{choice.path}.logprobs.tokens has {error}") from error


class TrtllmDialect(OpenAiDialect):
    """TensorRT-LLM's `trtllm-serve`: refuses fields it does not know, and has some of its own."""

    name = "trtllm"
    takes_top_k = True
    missing_hint = "use a trtllm-serve whose /v1/completions takes detokenize and logprobs"

    def check_sampling(self, sampling: SamplingParams) -> None:
        """See `base.Dialect.check_sampling`."""

    def generate(self, request: NewRequest, *, model: str, salt: str, want_top: bool = False) -> Ask:
        """See `base.Dialect.generate`."""
        del salt
        own: dict[str, object] = {
            "detokenize": False,
            "top_k": request.sampling.top_k,
            "stop_token_ids": request.stop_token_ids,
            "add_special_tokens": False,
        }
        return Ask(path=PATH, body={**_body(request, model=model, want_top=want_top), **own})


def _body(request: NewRequest, *, model: str, want_top: bool) -> dict[str, object]:
    sampling = request.sampling
    return {
        "model": model,
        "prompt": request.prompt_tokens,
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "seed": request.seed,
        "stop": list(sampling.stop),
        "logprobs": NUM_TOP if want_top else 1,  # some servers take 0 for none
        **prioritised(request),
    }


def _top(given: Node) -> list[float] | None:
    for entry in given.items() if not given.absent else ():
        return None if entry.absent else descending(entry.values())
    return None
