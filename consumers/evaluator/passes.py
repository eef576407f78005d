"""One pass: a set's prompts through the engine, the completions through the scorer.

Data in: prompts, an engine that serves the version, an opened scorer, perhaps environments to act in. Data out: an
`Evaluation`.
Invariants: every completion of every prompt ends with a value or a failure; the draws depend on the set's seed, the
prompt and the number of the completion only, so two versions are asked the same. A call of `step` is bounded.
Failure: `EngineError` when the engine fails: the pass is lost, and is begun anew after the version is loaded again.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from consumers.evaluator.plan import Task
from consumers.evaluator.settings import EvaluationSettings
from consumers.rewards.pool import Taken
from consumers.rewards.scoring import Scored, Scoring
from pipeline.engines.base import (
    EVALUATION,
    FINISH_LENGTH,
    FINISH_STOP,
    Engine,
    Generation,
    GenerationRequest,
    PromptTokens,
)
from pipeline.engines.pressure import pressure_of
from pipeline.environments.episodes import Episodes, Failed, Say, task_of
from pipeline.sources import Source
from pipeline.stage import StageContext
from schemas.errors import RecordInvalid
from schemas.evaluation import EvaluatedItem, Evaluation
from schemas.packed import pack_i32, pack_u8, unpack_u8
from schemas.records import PromptGroup, Sample
from topics.clock import Deadline
from topics.log import Envelope

ATTEMPT = "evaluation"
_SCORE_WAIT_S = 0.02


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """A set, ready to be asked."""

    name: str
    settings: EvaluationSettings
    digest: str
    prompts: Sequence[PromptGroup]
    scoring: Scoring
    plugin_version: str


def read_prompts(source: Source, settings: EvaluationSettings, *, run: str) -> list[PromptGroup]:
    """The first prompts of a source; rows that give none are passed over, the next one takes their place."""
    end = settings.num_prompts * 2 if source.num_items is None else source.num_items
    found: list[PromptGroup] = []
    for index in range(end):
        if len(found) == settings.num_prompts:
            break
        try:
            item = source.item(index)
        except RecordInvalid:
            continue
        found.append(
            PromptGroup(
                run=run,
                group=len(found),
                group_size=settings.samples_per_prompt,
                text=item.text,
                messages=item.messages,
                token_ids=item.token_ids,
                sampling=settings.sampling,
                seed=_seed_of(settings.seed, len(found)),
                answer=item.answer,
                metadata=item.metadata,
                source=source.name,
                source_index=item.source_index,
                epoch=item.epoch,
                created_unix_ms=0,
            )
        )
    return found


class Pass:
    """See the module.

    Args:
        yields: begin nothing while requests wait in the engine.
        episodes: of the set's environment; None: a completion is one turn.
    """

    def __init__(
        self,
        task: Task,
        chosen: EvaluationSet,
        *,
        engine: Engine,
        context: StageContext,
        yields: bool,
        episodes: Episodes | None = None,
    ) -> None:
        self.task = task
        self._set = chosen
        self._engine = engine
        self._context = context
        self._yields = yields
        self._began_s, self._began_ms = context.clock.monotonic(), context.clock.unix_ms()
        self._items: dict[tuple[int, int], EvaluatedItem] = {}
        self._asked: dict[str, tuple[PromptGroup, int, PromptTokens]] = {}
        self._episodes = episodes
        self._unbegun = deque(self._requests())
        self._waiting: deque[GenerationRequest] = deque()  # for a slot of the engine
        self._num_all = len(chosen.prompts) * chosen.settings.samples_per_prompt

    @property
    def is_through(self) -> bool:
        """Whether every completion has its value or failure."""
        return len(self._items) == self._num_all

    def step(self, *, limit_s: float) -> None:
        """Submit, generate and score for at most about so long.

        Raises:
            EngineError: the engine failed.
        """
        turn = Deadline.after(limit_s, clock=self._context.clock)
        while not self.is_through and not turn.expired:
            self._begin()
            self._follow()
            self._submit()
            generates = self._engine.num_running > 0
            for generation in self._engine.step() if generates else ():
                self._generated(generation)
            self._settle(self._set.scoring.step(wait_s=0.0 if generates else _SCORE_WAIT_S))

    def give_up(self) -> None:
        """Take what is under way out of the scorer, and close its environments; an engine that failed has nothing left
        of it."""
        self._set.scoring.abandon([(ATTEMPT, 0)])
        if self._episodes is not None:
            self._episodes.forget(list(self._asked))

    def record(self, *, facts: dict[str, str]) -> Evaluation:
        """What came out, once the pass is through."""
        items = [self._items[place] for place in sorted(self._items)]
        values = [item.value for item in items if item.value is not None]
        best: dict[int, float] = {}
        for item in items:
            if item.value is not None:
                best[item.index] = max(item.value, best.get(item.index, item.value))
        clock = self._context.clock
        return Evaluation(
            run=self._context.run.name,
            name=self.task.name,
            version=self.task.version,
            settings_digest=self._set.digest,
            mean=statistics.fmean(values) if values else None,
            best_mean=statistics.fmean(best.values()) if best else None,
            num_prompts=len(self._set.prompts),
            num_scored=len(values),
            num_failed=len(items) - len(values),
            mean_tokens=statistics.fmean(item.num_tokens for item in items) if items else 0.0,
            items=tuple(items),
            facts={**facts, "plugin": self._set.settings.plugin, "plugin_version": self._set.plugin_version},
            began_unix_ms=self._began_ms,
            ended_unix_ms=clock.unix_ms(),
            duration_s=max(0.0, clock.monotonic() - self._began_s),
            producer=self._context.instance,
        )

    def _requests(self) -> Iterator[GenerationRequest]:
        """Of all prompts; one that cannot be asked ends here."""
        for group in self._set.prompts:
            try:
                tokens = self._engine.encode_prompt(group)
            except RecordInvalid as error:
                for member in range(group.group_size):
                    self._end(group.group, member, failure=f"{error.reason}: {error.message}")
                continue
            for member in range(group.group_size):
                request_id = f"{ATTEMPT}/{self.task.name}/{group.group}/{member}"
                self._asked[request_id] = (group, member, tokens)
                yield GenerationRequest(
                    request_id=request_id,
                    prompt_tokens=tokens.tokens,
                    sampling=group.sampling,
                    seed=group.seed + member,
                    traffic=EVALUATION,
                )

    def _begin(self) -> None:
        """Trajectories as long as there are slots for them; without an environment all at once."""
        episodes, slots = self._episodes, self._engine.num_free_slots
        if episodes is None:
            self._waiting.extend(self._unbegun)
            self._unbegun.clear()
            return
        num_all = self._engine.num_running + slots
        while self._unbegun and slots > len(self._waiting) + episodes.num_held and not episodes.is_full(num_all):
            request = self._unbegun.popleft()
            group, member, tokens = self._asked[request.request_id]
            episodes.begin(task_of(group, member=member, text=tokens.text), request)

    def _follow(self) -> None:
        """What environments answered."""
        if self._episodes is None:
            return
        is_idle = self._engine.num_running == 0 and not self._waiting and self._set.scoring.num_unfinished == 0
        for move in self._episodes.moves(wait_s=_SCORE_WAIT_S if is_idle else 0.0):
            if isinstance(move, Say):
                self._waiting.append(move.request)
                continue
            group, member, tokens = self._asked.pop(move.key)
            if isinstance(move, Failed):
                self._end(group.group, member, failure=f"environment: {move.reason}")
            else:
                sample = self._sample(group, member, tokens=tokens, generation=move.whole)
                self._score(move.told.on(sample))

    def _submit(self) -> None:
        pressure = pressure_of(self._engine) if self._yields else None
        if pressure is not None and pressure.queued:
            return
        count = min(self._engine.num_free_slots, len(self._waiting))
        if count > 0:
            requests = [self._waiting.popleft() for _ in range(count)]
            if self._episodes is not None:
                self._episodes.submitted(request.request_id for request in requests)
            self._engine.submit(requests)

    def _generated(self, generation: Generation) -> None:
        asked = self._asked.get(generation.request_id)
        if asked is None:
            return
        group, member, tokens = asked
        has_ended = generation.finish_reason in (FINISH_STOP, FINISH_LENGTH)
        if has_ended and self._episodes is not None:
            self._episodes.said(generation)
            return
        del self._asked[generation.request_id]
        if has_ended:
            self._score(self._sample(group, member, tokens=tokens, generation=generation))
            return
        if self._episodes is not None:
            self._episodes.forget([generation.request_id])
        why = generation.failure if generation.failure else generation.finish_reason
        self._end(group.group, member, failure=f"generation: {why}")

    def _score(self, sample: Sample) -> None:
        envelope = Envelope(
            topic=ATTEMPT,
            partition=0,
            offset=sample.group,
            key=None,
            record=sample,
            headers={},
            unix_ms=sample.finished_unix_ms,
            num_bytes=0,
        )
        self._set.scoring.take((Taken(envelope=envelope, sample=sample),))

    def _settle(self, scored: Sequence[Scored]) -> None:
        for one in scored:
            sample = one.taken.sample
            if one.taken.abandoned or sample.producer != self._producer:
                continue  # of a pass that was given up
            kept = len(self._items) < self._set.settings.keep_texts
            self._items[sample.group, sample.member] = EvaluatedItem(
                index=sample.group,
                member=sample.member,
                value=one.verdict.value,
                failure=one.verdict.failure,
                num_tokens=int(unpack_u8(sample.loss_mask).sum()),  # its own, not the environment's
                text=sample.completion_text if kept else "",
            )

    def _end(self, index: int, member: int, *, failure: str) -> None:
        self._items[index, member] = EvaluatedItem(index=index, member=member, failure=failure)

    @property
    def _producer(self) -> str:
        return f"{self._context.instance}/{self.task.version}"

    def _sample(self, group: PromptGroup, member: int, *, tokens: PromptTokens, generation: Generation) -> Sample:
        now_ms = self._context.clock.unix_ms()
        return Sample(
            run=group.run,
            group=group.group,
            member=member,
            attempt=ATTEMPT,
            producer=self._producer,
            prompt_text=tokens.text,
            prompt_tokens=pack_i32(tokens.tokens),
            completion_text=generation.text,
            completion_tokens=pack_i32(generation.tokens),
            loss_mask=pack_u8(np.ones(len(generation.tokens), dtype=np.uint8)),
            version_runs=generation.version_runs,
            sampling=group.sampling,
            seed=group.seed + member,
            answer=group.answer,
            metadata=group.metadata,
            finish_reason=generation.finish_reason,
            started_unix_ms=self._began_ms,
            finished_unix_ms=now_ms,
        )


def _seed_of(seed: int, index: int) -> int:
    """56 bits: far apart, so that seed + member never meets another prompt's."""
    return int.from_bytes(blake3(f"evaluation/{seed}/{index}".encode()).digest(length=7), "big")
