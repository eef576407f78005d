"""SGLang, by its native route `POST /generate`, as its documentation describes it.

Followed: "SGLang Native APIs", "Sampling Parameters" and "SGLang for RL Systems" of SGLang's documentation. An answer
carries `meta_info.output_token_logprobs`, a list of [log-probability, token id, text], and `meta_info.weight_version`,
the label of the weights when the sequence ended: of the whole sequence only if nothing was loaded while it ran, which
is why requests are drained before an update. A seed counts only with `--enable-deterministic-inference`.
"""

from __future__ import annotations

from pipeline.engines.http.dialects.base import NUM_TOP, Ask, descending, lacks, prioritised
from pipeline.engines.http.exchange import Answer, BadAnswer, Scored
from pipeline.engines.http.reading import Node, parse
from pipeline.engines.vllm.exchange import NewRequest
from schemas.errors import EngineError
from schemas.records import SamplingParams

PATH = "/generate"
LOWEST_TEMPERATURE = 1e-6  # SGLang takes anything between 0 and this for greedy


class SglangDialect:
    """See `base.Dialect`."""

    name = "sglang"
    says_weights = True
    takes_top_k = True
    missing_hint = "use an SGLang whose /generate answers with output_token_logprobs and weight_version"

    def check_sampling(self, sampling: SamplingParams) -> None:
        """See `base.Dialect.check_sampling`."""
        if 0 < sampling.temperature < LOWEST_TEMPERATURE:
            raise EngineError(
                f"sampling has temperature {sampling.temperature}, which SGLang takes for 0; no request was taken",
                hint=f"set 0 (greedy) or at least {LOWEST_TEMPERATURE}",
            )

    def generate(self, request: NewRequest, *, model: str, salt: str, want_top: bool = False) -> Ask:
        """See `base.Dialect.generate`. SGLang flushes its cache with an update, so the salt is not needed."""
        del model, salt
        sampling = request.sampling
        params: dict[str, object] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k > 0 else -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "sampling_seed": request.seed,
            "max_new_tokens": request.max_tokens,
            "stop": list(sampling.stop),
            "stop_token_ids": request.stop_token_ids,
        }
        body: dict[str, object] = {
            "input_ids": request.prompt_tokens,
            "sampling_params": params,
            "return_logprob": True,
            **prioritised(request, first_is_highest=True),
        }
        return Ask(path=PATH, body={**body, "top_logprobs_num": NUM_TOP} if want_top else body)

    def read(self, data: bytes) -> Answer:
        """See `base.Dialect.read`."""
        info = parse(data).get("meta_info")
        pairs = info.get("output_token_logprobs")
        if pairs.absent:
            raise lacks("token ids with log-probabilities (output_token_logprobs)", hint=self.missing_hint)
        tokens = pairs.column(1).integers()
        counted = info.get("completion_tokens")
        if not counted.absent and counted.integer() != len(tokens):
            raise BadAnswer(f"the answer has {len(tokens)} log-probabilities for {counted.integer()} tokens")
        label = info.get("weight_version")
        return Answer(
            tokens=tokens,
            logprobs=pairs.column(0).logprobs(),
            spans=None if label.absent else [(label.text(), len(tokens))],
            finish_reason=info.get("finish_reason").get("type").text(),
            top=_top(info.get("output_top_logprobs")),
        )

    def score(self, prompt: list[int], *, model: str, salt: str) -> Ask:
        """See `base.Dialect.score`."""
        del model, salt
        params: dict[str, object] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 1}
        body: dict[str, object] = {"input_ids": prompt, "sampling_params": params}
        return Ask(path=PATH, body={**body, "return_logprob": True, "logprob_start_len": 0})

    def read_scores(self, data: bytes, *, prompt: list[int]) -> Scored | None:
        """See `base.Dialect.read_scores`."""
        info = parse(data).get("meta_info")
        given = info.get("input_token_logprobs")
        if given.absent:
            return None
        if given.column(1).integers() != prompt:
            raise BadAnswer(f"{given.path} is of other tokens than the prompt")
        label = info.get("weight_version")
        scores = [node.logprob() for node in list(given.column(0).items())[1:]]
        return Scored(logprobs=scores, label=None if label.absent else label.text())


def _top(given: Node) -> list[float] | None:
    return None if given.absent else descending(given.first().column(0).items())
