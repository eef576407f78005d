"""The rollout producer: samples prompts with an inference engine.

Role: takes prompts as work, writes `samples`; reads `ledger` (skip, abort), `weights` and `commands` (versions), reads
and writes `partials` (groups that engines gave up).
Data in and out: PromptGroup in; one Sample per member and attempt out, failures included.
Invariants: a prompt is acknowledged only when all samples of its group are durable, or when its group has an outcome in
the surviving history (commit rule); prompts are taken only when the engine has room, which is what spreads the load;
no prompt is taken before a published version of the surviving history, within the staleness bound, is loaded and
verified (promise 9).
Failure: whatever ends the process, prompts in flight are not acknowledged and go to another one.

| phase | waits for | unblocked by |
| --- | --- | --- |
| waiting_for_weights | a version to serve | learner, peers, scheduler |
| waiting_for_prompts | prompts | prompt producer |
| generating | - | - |
| parked | all trajectories: their environment | its answer, its time limit |
| swapping | - (the load) | - |

A partition that is revoked: its prompts in flight are finished and written, and never committed here.
A process that is retired takes no more prompts, finishes, writes and acknowledges those it has, and leaves; what is not
finished after `hand_over_s` goes on elsewhere (`handover`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from random import Random

from pipeline.engines.backends import Backend, BackendSettings, open_backend
from pipeline.environments.episodes import Episodes, open_episodes
from pipeline.environments.settings import EnvironmentSettings
from pipeline.flow import count_received
from pipeline.redis_client import RedisClient
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.stage import StageContext
from pipeline.traffic.classes import TrafficClass
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerDirectory
from pipeline.weights.download import ClientSettings
from pipeline.weights.staging import Staging
from pipeline.weights.tls import client_context
from pipeline.weights.tokens import run_token
from producers.control import Control
from producers.rollout.admission import Admission
from producers.rollout.chooser import VersionChooser
from producers.rollout.generator import Generator
from producers.rollout.handover import HandOver, HandOverParts
from producers.rollout.meter import count_begun
from producers.rollout.output import SampleOutput
from producers.rollout.partials import Partials
from producers.rollout.settings import RolloutSettings
from producers.rollout.tickets import Taken, Ticket
from producers.rollout.watch import StuckPrompts
from producers.rollout.weights import WeightSync
from schemas.errors import DeadlineExceeded, LogUnavailable
from schemas.records import Outcome, PromptGroup
from topics.catalog import PARTIALS, PROMPTS, rollout_group
from topics.clock import Deadline
from topics.log import Envelope, ReaderSettings, TopicPartition, Writer, WriterSettings
from topics.queue import WorkQueue

_KEEP_MEMBERSHIP_S = 0.5  # between polls of the queue while nothing may be taken
_CATCH_UP_S = 2.0  # longest look at what others say of the prompts of a partition that is new here
_IDLE_S = 0.05  # longest wait of an idle turn: how late a staged version may be loaded


@dataclass(frozen=True, kw_only=True)
class RolloutSetup:
    """What a rollout producer is made from."""

    rollout: RolloutSettings
    model: ModelSettings
    weights: WeightsSettings
    slot: int = 0  # number of this process among the replicas of its host; names its leases in the chunk store
    redis: RedisClient | None = None
    backend: Backend | None = None  # given: used in place of `rollout.engine`
    environment: EnvironmentSettings | None = None  # None: a completion is one turn


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What exists once the stage has started."""

    backend: Backend
    writer: Writer
    queue: WorkQueue
    generator: Generator[Ticket]
    episodes: Episodes | None
    admission: Admission
    output: SampleOutput
    handover: HandOver
    weights: WeightSync


class RolloutStage:
    """See the module. Constructing it does no I/O."""

    retires = True

    def __init__(self, context: StageContext, setup: RolloutSetup) -> None:
        self._context = context
        self._setup = setup
        self._settings = setup.rollout
        self._control = Control(context, target="rollout")
        self._partials = Partials(self._control.ledger, run=context.run, max_bytes=setup.rollout.partials_max_bytes)
        self._control.follow(PARTIALS, self._partials.add)
        self._has_new_partitions = False
        self._parts: _Parts | None = None
        self._polled_s = context.clock.monotonic()
        self._stuck = StuckPrompts(context, after_s=setup.rollout.stuck_after_s)

    @property
    def finished(self) -> bool:
        """Once it is retired, and all it took is acknowledged or handed over; else more prompts may come until the run
        ends."""
        if not self._context.retire.requested:
            return False
        parts = self._parts
        if parts is None:
            return True
        return parts.queue.is_settled and parts.output.is_settled and parts.handover.is_settled

    def start(self, *, deadline: Deadline) -> None:
        """1. read the control topics; 2. open the engine, cold; 3. join the group of rollout producers.

        Raises:
            EngineError, PluginError: the engine cannot be opened.
            WeightsError: the run's folder cannot be used.
            LogError, DeadlineExceeded: the broker failed or is too slow.
        """
        context, settings = self._context, self._settings
        if self._setup.weights.domain:
            context.events.labels = {**context.events.labels, "domain": self._setup.weights.domain}
        context.events.enter("waiting_for_weights")
        self._control.start(deadline=deadline)
        backend = self._open_backend()
        queue = WorkQueue.open(
            context.log,
            ReaderSettings(
                topics=(PROMPTS,),
                assign="group",
                group=rollout_group(context.run.name),
                session_timeout_s=settings.session_timeout_s,
                instance=context.instance,
            ),
            hooks=replace(context.hooks(), assigned=self._assigned),
            max_in_flight=settings.max_prompts_in_flight,
            clock=context.clock,
        )
        self._parts = self._put_together(backend, queue, writer=context.log.writer(WriterSettings()))

    def _put_together(self, backend: Backend, queue: WorkQueue, *, writer: Writer) -> _Parts:
        context, settings = self._context, self._settings
        episodes, anew_s = None, None
        if self._setup.environment is not None:
            episodes = open_episodes(self._setup.environment, engine=backend.engine, context=context)
            anew_s = self._setup.environment.retire_s
        generator = Generator[Ticket](
            backend.engine, context=context, max_failures=settings.max_engine_failures, episodes=episodes
        )
        output = SampleOutput(writer, queue=queue, context=context, settings=settings)
        between = HandOverParts(
            generator=generator,
            output=output,
            queue=queue,
            writer=writer,
            partials=self._partials,
            commands=self._control.commands,
        )
        return _Parts(
            backend=backend,
            writer=writer,
            queue=queue,
            generator=generator,
            episodes=episodes,
            admission=Admission(backend.engine, generator=generator, context=context, settings=settings),
            output=output,
            handover=HandOver(between, context=context, settings=settings, anew_s=anew_s),
            weights=self._weight_sync(backend),
        )

    def turn(self) -> None:
        """Weights, then prompts, then one decode step, then acknowledgements."""
        parts = self._started()
        self._drop_closed(parts, self._control.poll(wait_s=0.0))
        parts.admission.look()
        parts.handover.advance(may_generate=parts.weights.may_take_prompts)
        parts.weights.advance()
        self._take(parts)
        for finished in parts.generator.advance():
            parts.output.write(finished)
        parts.handover.settle()
        parts.output.settle(now=parts.generator.num_groups == 0)
        self._stuck.look(parts.queue, parked=parts.generator.parked_groups())
        self._report(parts)

    def stop(self, *, deadline: Deadline) -> None:
        """Take no more and finish nothing: confirm and acknowledge what is written, and leave the rest to others."""
        parts = self._parts
        if parts is None:
            self._control.close()
            return
        self._parts = None
        with ExitStack() as leaving:  # each step is taken whatever happened in the one before; the last one first
            leaving.callback(parts.backend.engine.close)
            if parts.episodes is not None:
                leaving.callback(parts.episodes.close)
            leaving.callback(parts.weights.close)
            leaving.callback(self._control.close)
            leaving.callback(parts.writer.close, deadline=deadline)
            leaving.callback(parts.queue.close)
            parts.output.settle(now=True, deadline=deadline)
            parts.handover.leave(deadline=deadline)

    def _started(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("a stage is started before its first turn")
        return self._parts

    def _open_backend(self) -> Backend:
        if self._setup.backend is not None:
            return self._setup.backend
        model, wire_dtype = self._setup.model, self._setup.weights.wire_dtype
        if wire_dtype is not None:  # the engine holds what travels, so that a swap is a copy
            model = model.model_copy(update={"dtype": wire_dtype})
        settings = BackendSettings(
            model=model,
            max_sequences=self._settings.max_sequences,
            num_threads=self._settings.threads,
            vllm=self._settings.vllm,
            http=self._settings.http,
            slot=self._setup.slot,
            watch_pressure=self._settings.admission == "pressure",
        )
        return open_backend(self._settings.engine, settings)

    def _weight_sync(self, backend: Backend) -> WeightSync:
        context, weights = self._context, self._setup.weights
        folder = context.run.folder
        chooser = VersionChooser(
            self._control,
            instance=context.instance,
            run=context.run,
            settings=self._settings,
            clock=context.clock,
            rng=Random(context.instance),  # noqa: S311 - spreads load, guards nothing
        )
        staging = Staging(
            ChunkStore(folder / "weights" / "engines", max_bytes=weights.store_max_bytes),
            owner=f"rollout-{self._setup.slot}",
            backend=backend,
            directory=PeerDirectory(self._setup.redis, run=context.run.name),
            client=ClientSettings(
                token=run_token(folder, token_file=weights.token_file),
                tls=client_context(ca=weights.tls_ca),
                on_received=count_received(context.metrics, traffic=TrafficClass.WEIGHTS),
            ),
            settings=weights,
            model_dir=self._setup.model.path,
        )
        return WeightSync(backend.engine, chooser=chooser, staging=staging, context=context, settings=self._settings)

    def _drop_closed(self, parts: _Parts, outcomes: Sequence[Outcome]) -> None:
        """Abort groups that got their outcome while they were in flight, or lent."""
        for outcome in outcomes:
            if not self._control.ledger.is_closed(outcome.group):
                continue
            parts.handover.closed(outcome)
            if parts.generator.holds(outcome.group):
                self._skip(parts, parts.generator.drop(outcome.group))

    def _take(self, parts: _Parts) -> None:
        """Pull as many prompts as the engine has room for; wait for some only when there is nothing else to do."""
        idle = parts.generator.num_groups == 0
        leaving = self._control.commands.draining or self._context.retire.requested
        ready = parts.weights.may_take_prompts and not leaving
        num_wanted = self._room(parts) if ready else 0
        phase = "waiting_for_prompts" if ready else "waiting_for_weights"
        if not idle:
            phase = "parked" if parts.generator.is_parked else "generating"
        self._context.events.enter(phase)
        wait_s = _IDLE_S if idle and ready else 0.0
        if num_wanted == 0 and not self._must_poll():
            if idle:
                self._drop_closed(parts, self._control.poll(wait_s=_IDLE_S))
            return
        self._polled_s = self._context.clock.monotonic()
        deadline = Deadline.after(wait_s, clock=self._context.clock)
        taken = parts.queue.take(num_wanted, deadline=deadline)
        if taken and self._has_new_partitions:
            self._catch_up(parts)
        for envelope in taken:
            self._begin(parts, envelope)

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._has_new_partitions = self._has_new_partitions or bool(partitions)

    def _catch_up(self, parts: _Parts) -> None:
        """Hear what their last holder has to say of the prompts that were its own a moment ago."""
        self._has_new_partitions = False
        deadline = Deadline.after(_CATCH_UP_S, clock=self._context.clock)
        with suppress(DeadlineExceeded, LogUnavailable):  # without it they are made afresh
            self._drop_closed(parts, self._control.catch_up(deadline=deadline))

    def _room(self, parts: _Parts) -> int:
        """Prompts to take: whole groups that fit the free slots, and one more when any slot would stay empty."""
        free = parts.generator.num_free_slots
        return min(parts.queue.num_free, -(-free // self._context.run.group_size))

    def _must_poll(self) -> bool:
        return self._context.clock.monotonic() - self._polled_s >= _KEEP_MEMBERSHIP_S

    def _begin(self, parts: _Parts, envelope: Envelope) -> None:
        prompt = envelope.record
        if not isinstance(prompt, PromptGroup) or self._control.ledger.is_closed(prompt.group):
            self._skip(parts, envelope)
            return
        if parts.handover.holds(prompt.group):
            parts.handover.renew(prompt.group, envelope)
            return
        if parts.generator.holds(prompt.group):  # delivered again after a rebalance: go on with the attempt in hand
            older = parts.generator.renew(prompt.group, envelope)
            if not isinstance(older, Taken):
                parts.queue.done(older)
            return
        partial = self._partials.usable(prompt.group)
        if partial is not None and partial.written:  # all samples of an attempt are there
            self._skip(parts, envelope)
            return
        count_begun(self._context, prompt, behind=parts.weights.behind)
        finished = parts.generator.add(prompt, ticket=envelope, partial=partial)
        if finished is not None:
            parts.output.write(finished)

    def _skip(self, parts: _Parts, ticket: Ticket) -> None:
        if not isinstance(ticket, Taken):
            parts.queue.done(ticket)
        self._context.metrics.count("groups_skipped")

    def _report(self, parts: _Parts) -> None:
        metrics, engine = self._context.metrics, parts.backend.engine
        metrics.gauge("running_sequences", engine.num_running)
        metrics.gauge("prompts_in_flight", parts.queue.num_in_flight)
        parts.generator.meter.report(num_waiting=parts.generator.num_waiting, step=self._control.ledger.step)
        if parts.episodes is not None:
            parts.episodes.report()
