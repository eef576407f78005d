"""An inference server over HTTP as an engine of a rollout producer.

Role: the engine protocol over a server that somebody else started, and may stop.
Data in: requests and weight states. Data out: generations, stamped with what the server says of its weights.
Invariants: see `base.Engine`. Requests are handed over by `step`, which then waits a little for ended ones; the server
goes on generating between two steps. A state is checked and staged meanwhile; the pause covers only the load. What a
token is stamped with is the server's own word (`stamps.py`), or, from a server whose weights nobody updates, the
version that was current when its request was sent, and then `verified` only if a probe showed that the server has it.
Failure: what goes wrong with one request fails that sequence. `EngineError` for a server that is lost, has weights that
nobody here loaded, or fails `max_failures_in_row` sequences in a row; the next `load` looks for it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.engines.base import EngineState, Generation, GenerationRequest, PromptTokens, StateTensor, TokenArray
from pipeline.engines.checks import check_ready, check_requests, check_state
from pipeline.engines.endings import find_stop
from pipeline.engines.http.attach import DIALECTS
from pipeline.engines.http.exchange import Answer, BadAnswer, Ended, HttpHost
from pipeline.engines.http.loading import Loader, NotLoaded, Served
from pipeline.engines.http.results import Judged, check_meaning, completed, judge, kind_of, within_stop, without_tokens
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.http.stamps import Stamps
from pipeline.engines.pressure import EnginePressure, pressure_of
from pipeline.engines.prompts import encode_group, encode_text
from pipeline.engines.randomness import seeds_of
from pipeline.engines.vllm.exchange import NewRequest, SwapRefused
from pipeline.engines.vllm.facts import ModelFacts
from schemas.errors import EngineError
from schemas.records import PromptGroup, SamplingParams, Version, VersionRun

RELOAD = "load a whole version again"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Held:
    """A request at the server."""

    request: GenerationRequest
    served: Served  # when it was sent
    max_tokens: int


class HttpEngine:
    """See `base.Engine`.

    Args:
        facts: of the model's directory.
        host: found and examined.
        loader: over the same host and stamps.
    """

    def __init__(
        self,
        facts: ModelFacts,
        *,
        host: HttpHost,
        loader: Loader,
        stamps: Stamps,
        settings: HttpSettings,
        max_sequences: int,
    ) -> None:
        self._facts = facts
        self._host = host
        self._loader = loader
        self._stamps = stamps
        self._settings = settings
        self._max_sequences = min(max_sequences, settings.max_requests)
        self._served: Served | None = None
        self._state = EngineState.COLD
        self._closed = False
        self._prefix, self._serial = secrets.token_hex(4), 0  # of keys
        self._held: dict[str, _Held] = {}  # by key: handed over
        self._waiting: list[GenerationRequest] = []
        self._aborted: list[GenerationRequest] = []
        self._num_failed = 0  # sequences in a row

    @property
    def state(self) -> EngineState:
        """Where the engine is between its start and serving."""
        return self._state

    @property
    def version(self) -> Version | None:
        """The version served."""
        return None if self._served is None else self._served.stamp.version

    @property
    def verified(self) -> bool:
        """Whether it was seen that the server computes with the version served."""
        return self._served is not None and self._served.stamp.verified

    @property
    def pause_s(self) -> float:
        """How long generation stood still in the last swap."""
        return self._host.pause_s

    @property
    def pressure(self) -> EnginePressure | None:
        """What the server says of its load."""
        return pressure_of(self._host)

    @property
    def num_running(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._held) + len(self._waiting) + len(self._aborted)

    @property
    def num_free_slots(self) -> int:
        """How many more requests `submit` takes now."""
        return self._max_sequences - self.num_running

    @property
    def hands_over(self) -> bool:
        """See `base.Continuing`: what a server made of an aborted request is not fetched."""
        return False

    def continues(self, sampling: SamplingParams, *, logprobs_kind: str) -> bool:
        """See `base.Continuing`. Prompts are token ids for every kind of server, so it goes on from any."""
        return logprobs_kind == kind_of(sampling, meaning=self._host.facts.meaning)

    def encode_prompt(self, group: PromptGroup) -> PromptTokens:
        """See `base.Engine.encode_prompt`."""
        facts = self._facts
        return encode_group(facts.tokenizer, group, context_tokens=self.context_tokens, vocab_size=facts.vocab_size)

    @property
    def context_tokens(self) -> int:
        """See `base.Conversing`."""
        theirs = self._host.facts.context_tokens
        return self._facts.context_tokens if theirs is None else min(theirs, self._facts.context_tokens)

    def encode_text(self, text: str) -> TokenArray:
        """See `base.Conversing`."""
        return encode_text(self._facts.tokenizer, text)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `base.Engine.submit`."""
        check_ready(self._state, closed=self._closed)
        held = (each.request for each in self._held.values())
        check_requests(
            requests,
            held={request.request_id for request in (*held, *self._waiting, *self._aborted)},
            num_free_slots=self.num_free_slots,
            context_tokens=self.context_tokens,
            vocab_size=self._facts.vocab_size,
        )
        server = self._host.facts
        for sampling in {request.sampling for request in requests}:
            DIALECTS[server.kind].check_sampling(sampling)
            check_meaning(sampling, meaning=server.meaning)
        self._waiting.extend(requests)

    def step(self) -> list[Generation]:
        """Hand over what was submitted and return what has ended; waits at most `step_wait_s` for the first."""
        if self._served is None and self.num_running:
            raise self._fail(EngineError("the server's weights are not known"))
        check_ready(self._state, closed=self._closed)
        self._hand_over()
        done = [without_tokens(request) for request in self._aborted]
        self._aborted = []
        wait_s = self._settings.step_wait_s if self._held and not done else 0.0
        try:
            ended = [end for end in self._host.take(wait_s=wait_s) if end.key in self._held]
            return [*done, *self._results(ended)]
        except EngineError as error:
            raise self._fail(error) from error

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `base.Engine.abort`; what a server made of an aborted request is not fetched."""
        wanted = set(request_ids)
        self._aborted.extend(request for request in self._waiting if request.request_id in wanted)
        self._waiting = [request for request in self._waiting if request.request_id not in wanted]
        keys = [key for key, held in self._held.items() if held.request.request_id in wanted]
        if keys:
            self._host.abort(keys)

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        """See `base.Engine.load`; the server generates on until the state is staged.

        What becomes of requests in flight is the setting `on_swap`. From a server that takes no weights the version is
        only noted, and its samples are marked as not verified unless a probe shows that it has these weights.
        """
        if self._closed:
            raise EngineError("the engine is closed and takes no more weights")
        if self._host.dead:
            self._find_again()
        before, self._state = self._state, EngineState.STAGING
        try:
            check_state(self._facts.weights, state, ties=self._facts.ties)
            staged, reference = self._loader.stage(version, state)
        except EngineError:
            self._state = before
            raise
        self._state = EngineState.VERIFIED
        old = self._served
        try:
            self._served = self._loader.load(version, staged, reference=reference, old=old)
        except EngineError as error:
            if staged is not None:
                staged.release()
            raise self._after_failed_load(error, before=before, version=version) from error
        self._state = EngineState.SERVING
        self._num_failed = 0
        if old is not None and old.staged is not None:
            old.staged.release()

    def close(self) -> None:
        """See `base.Engine.close`. The server stays."""
        if self._closed:
            return
        self._closed = True
        self._forget()
        self._host.close()
        if self._served is not None and self._served.staged is not None:
            self._served.staged.release()
        self._served, self._state = None, EngineState.COLD

    def _hand_over(self) -> None:
        if not self._waiting or self._served is None:
            return
        seeds = (seeds_of(self._waiting) >> 1).tolist()
        handed: list[NewRequest] = []
        for request, seed in zip(self._waiting, seeds, strict=True):
            self._serial += 1
            key = f"{self._prefix}-{self._serial}"
            room = self.context_tokens - len(request.prompt_tokens)
            limit = min(request.sampling.max_tokens - request.num_made, room)
            held = _Held(request=request, served=self._served, max_tokens=limit)
            self._held[key] = held
            handed.append(self._new_request(held, key=key, seed=seed))
        self._waiting = []
        self._host.submit(handed)

    def _new_request(self, held: _Held, *, key: str, seed: int) -> NewRequest:
        return NewRequest(
            key=key,
            prompt_tokens=[int(token) for token in held.request.prompt_tokens],
            sampling=held.request.sampling,
            max_tokens=held.max_tokens,
            seed=seed,
            stop_token_ids=list(self._facts.eos_token_ids),
            priority=1 if held.request.traffic == self._settings.yields else 0,
        )

    def _results(self, ended: Sequence[Ended]) -> list[Generation]:
        """Generations of what has ended; texts are decoded together."""
        done: list[Generation] = []
        passed: list[Judged] = []
        for end in ended:
            held = self._held.pop(end.key)
            try:
                if end.answer is not None:
                    passed.append(self._judge(held, end.answer))
                else:
                    done.append(without_tokens(held.request, failure=end.failure))
            except BadAnswer as error:
                done.append(without_tokens(held.request, failure=error.message))
        passed = [within_stop(each, endings=self._facts.endings) for each in passed]
        texts = self._facts.endings.texts([each.whole for each in passed])
        meaning = self._host.facts.meaning
        for judged, text in zip(passed, texts, strict=True):
            stop = judged.request.sampling.stop
            done.append(completed(judged, text=text, cut=find_stop(text, stop) if stop else None, meaning=meaning))
        self._count_failures(done, num_passed=len(passed))
        return done

    def _judge(self, held: _Held, answer: Answer) -> Judged:
        def runs(given: Answer) -> tuple[VersionRun, ...]:
            if held.served.staged is not None:
                return self._stamps.runs(given.spans if given.spans is not None else (), num_tokens=len(given.tokens))
            return _own_runs(held.served, given)

        vocab_size = self._facts.vocab_size
        return judge(held.request, answer, vocab_size=vocab_size, max_tokens=held.max_tokens, runs=runs)

    def _count_failures(self, done: Sequence[Generation], *, num_passed: int) -> None:
        failures = [each.failure for each in done if each.failure]
        self._num_failed = len(failures) if num_passed else self._num_failed + len(failures)
        if self._num_failed >= self._settings.max_failures_in_row and failures and not num_passed:
            raise EngineError(
                f"{self._num_failed} sequences in a row failed, at last with: {failures[-1]}",
                hint="see the server's log; rollout.http.max_failures_in_row is how many are borne",
            )

    def _find_again(self) -> None:
        """The server was lost: nothing of it is known any more; what it held begins anew when a version is loaded."""
        self._state, self._served = EngineState.COLD, None
        self._host.revive()
        self._waiting = [*(held.request for held in self._held.values()), *self._waiting]
        self._held.clear()

    def _after_failed_load(self, error: EngineError, *, before: EngineState, version: Version) -> EngineError:
        """What to raise, with the state set to what is the case."""
        if isinstance(error, SwapRefused) or (isinstance(error, NotLoaded) and before is EngineState.SERVING):
            self._state = before
            return error
        if self._served is not None and self._served.staged is None and not self._host.dead:
            self._state = before  # a look at a server whose weights are its own changes nothing
            return error
        self._state, self._served = EngineState.QUARANTINED, None
        return EngineError(
            f"loading {version} failed: {error.message}; the engine is quarantined", hint=error.hint or RELOAD
        )

    def _fail(self, error: EngineError) -> EngineError:
        num_lost = self.num_running
        self._host.abort(list(self._held))
        self._forget()
        self._state, self._served = EngineState.QUARANTINED, None
        return EngineError(
            f"{error.message}; {num_lost} requests are lost and the engine is quarantined",
            hint=error.hint if error.hint else RELOAD,
        )

    def _forget(self) -> None:
        self._held.clear()
        self._waiting, self._aborted = [], []


def _own_runs(served: Served, answer: Answer) -> tuple[VersionRun, ...]:
    """Of a server that is not updated: the version that was current when the request was sent."""
    if not answer.tokens:
        return ()
    same = answer.spans is None or all(label == served.own_label for label, _ in answer.spans)
    run = served.stamp.run(len(answer.tokens))
    return (run if same else VersionRun(num_tokens=run.num_tokens, version=run.version, verified=False),)
