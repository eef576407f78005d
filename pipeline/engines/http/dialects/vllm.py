"""vLLM 0.32 and later, by its own route for tokens: `POST /inference/v1/generate` (`vllm serve --enable-scale-out`).

Its answers carry token ids, the log-probability of each, and `weight_versions`: spans of output tokens with the label
of the weights that made them (`vllm/entrypoints/scale_out/token_in_token_out/protocol.py`).
"""

from __future__ import annotations

from pipeline.engines.http.dialects.base import NUM_TOP, Ask, descending, first_choice, lacks, prioritised
from pipeline.engines.http.exchange import Answer, BadAnswer, Scored
from pipeline.engines.http.reading import Node, parse
from pipeline.engines.vllm.exchange import NewRequest
from schemas.errors import EngineError
from schemas.records import SamplingParams

LOWEST_TEMPERATURE = 0.01  # vLLM raises anything between 0 and this
PATH = "/inference/v1/generate"


class VllmDialect:
    """See `base.Dialect`."""

    name = "vllm"
    says_weights = True
    takes_top_k = True
    missing_hint = (
        "start vLLM 0.32 or later with --enable-scale-out; for an older one set rollout.http.kind = 'openai' and "
        "rollout.http.update = 'none'"
    )

    def check_sampling(self, sampling: SamplingParams) -> None:
        """See `base.Dialect.check_sampling`."""
        if 0 < sampling.temperature < LOWEST_TEMPERATURE:
            raise EngineError(
                f"sampling has temperature {sampling.temperature}; vLLM takes 0 (greedy) or at least "
                f"{LOWEST_TEMPERATURE}; no request was taken"
            )

    def generate(self, request: NewRequest, *, model: str, salt: str, want_top: bool = False) -> Ask:
        """See `base.Dialect.generate`."""
        sampling = request.sampling
        params: dict[str, object] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "seed": request.seed,
            "max_tokens": request.max_tokens,
            "stop": list(sampling.stop),
            "stop_token_ids": request.stop_token_ids,
            "ignore_eos": True,  # the end tokens are all in stop_token_ids
            "detokenize": bool(sampling.stop),
            "logprobs": NUM_TOP if want_top else 0,  # 0: of the sampled token only
        }
        body = _body(request.prompt_tokens, params, model=model, salt=salt)
        return Ask(path=PATH, body={**body, **prioritised(request)})

    def read(self, data: bytes) -> Answer:
        """See `base.Dialect.read`."""
        choice = first_choice(data)
        if choice.get("token_ids").absent:
            raise lacks("token ids", hint=self.missing_hint)
        if choice.get("logprobs").absent:
            raise lacks("log-probabilities", hint=self.missing_hint)
        content = choice.get("logprobs").get("content")
        return Answer(
            tokens=choice.get("token_ids").integers(),
            logprobs=[] if content.absent else content.column("logprob").logprobs(),
            spans=_spans(choice.get("weight_versions")),
            finish_reason=choice.get("finish_reason").text(),
            top=_top(content),
        )

    def score(self, prompt: list[int], *, model: str, salt: str) -> Ask:
        """See `base.Dialect.score`."""
        params: dict[str, object] = {"temperature": 1.0, "max_tokens": 1, "logprobs": 0, "prompt_logprobs": 0}
        return Ask(path=PATH, body=_body(prompt, params, model=model, salt=salt))

    def read_scores(self, data: bytes, *, prompt: list[int]) -> Scored | None:
        """See `base.Dialect.read_scores`."""
        answer = self.read(data)
        given = parse(data).get("prompt_logprobs")
        if given.absent:
            return None
        rows = list(given.items())[1:]
        if len(rows) != len(prompt) - 1:
            raise BadAnswer(f"{given.path} has {len(rows) + 1} entries for a prompt of {len(prompt)} tokens")
        scores = [row.get(str(token)).get("logprob").logprob() for row, token in zip(rows, prompt[1:], strict=True)]
        return Scored(logprobs=scores, label=answer.spans[0][0] if answer.spans else None)


def _body(tokens: list[int], params: dict[str, object], *, model: str, salt: str) -> dict[str, object]:
    return {"model": model, "token_ids": tokens, "sampling_params": params, "cache_salt": salt}


def _spans(given: Node) -> list[tuple[str, int]] | None:
    if given.absent:
        return None
    spans: list[tuple[str, int]] = []
    at = 0
    for span in given.items():
        start, end = span.get("start").integer(), span.get("end").integer()
        if start != at or end < start:
            raise BadAnswer(f"{span.path} is of tokens {start} to {end} and follows token {at}")
        spans.append((span.get("version").text(), end - start))
        at = end
    return spans


def _top(content: Node) -> list[float] | None:
    for entry in content.items() if not content.absent else ():
        found = entry.get("top_logprobs")
        return None if found.absent else descending(node.get("logprob") for node in found.items())
    return None
