"""The evaluator: published versions on evaluation sets, without disturbing training (docs/design/0013).

Role: fetches versions as a rollout does, into an engine of its own, asks the prompts of each set, scores the
completions with the set's plug-in, and writes one record per set and version.
Data in: `ledger`, `weights`, chunks of peers; prompt sources. Data out: `evaluations`.
Invariants: no consumer group, no transaction, nothing that another stage waits for: it may be killed, be slow or be
absent, and training is the same. A set and version that is on the topic is not evaluated again, and one that was cut
short is begun anew; of two records of a pair the first counts. One process of it is meant; of two, each does all.
Failure: a fetch, load or engine that fails is told in a notice and tried again with a pause; the scorer's failures are
per completion; errors of the log end the process.

| phase | waits for | unblocked by |
| --- | --- | --- |
| waiting_for_versions | a version that is due | learner |
| fetching | chunks | peers |
| swapping | - (the load) | - |
| evaluating | - | - |
| finished | nothing: the run is sealed and its last version evaluated; the process stays until the run ends | - |
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from consumers.evaluator.news import News
from consumers.evaluator.passes import EvaluationSet, Pass, read_prompts
from consumers.evaluator.plan import Task, due_tasks
from consumers.evaluator.settings import EvaluationSettings, EvaluatorSettings
from consumers.rewards.opening import open_plugin
from consumers.rewards.scoring import Scoring
from pipeline.engines.backends import Backend, BackendSettings, open_backend
from pipeline.environments.episodes import Episodes, open_episodes
from pipeline.flow import count_received
from pipeline.priority import stand_back
from pipeline.redis_client import RedisClient
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.sources import open_source
from pipeline.stage import TURN_S, StageContext
from pipeline.traffic.classes import TrafficClass
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerDirectory
from pipeline.weights.download import ClientSettings
from pipeline.weights.staging import Staged, Staging
from pipeline.weights.tls import client_context
from pipeline.weights.tokens import run_token
from schemas.errors import EngineError, RlweaveError, SettingsError
from schemas.records import Version
from topics.catalog import EVALUATIONS
from topics.clock import Deadline
from topics.log import Writer, WriterSettings

FLUSH_S = 30.0


@dataclass(frozen=True, kw_only=True)
class EvaluatorSetup:
    """What an evaluator is made from."""

    evaluator: EvaluatorSettings
    sets: Mapping[str, EvaluationSettings]
    model: ModelSettings
    weights: WeightsSettings
    redis: RedisClient | None = None
    backend: Backend | None = None  # given: used in place of `evaluator.engine`


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What exists once the stage has started."""

    backend: Backend
    weights: Staging
    sets: Mapping[str, EvaluationSet]
    episodes: Mapping[str, Episodes | None]  # by set; None: it is of one turn
    writer: Writer


class EvaluatorStage:
    """See the module. Constructing it does no I/O."""

    finished = False  # it serves until it is told to stop

    def __init__(self, context: StageContext, setup: EvaluatorSetup) -> None:
        self._context = context
        self._setup = setup
        self._news = News(context)
        self._parts: _Parts | None = None
        self._closing = ExitStack()
        self._pass: Pass | None = None
        self._not_before_s = context.clock.monotonic()

    def start(self, *, deadline: Deadline) -> None:
        """1. lower the priority; 2. read the control topics; 3. open sets and scorers; 4. open the engine, cold, and
        the environments.

        Raises:
            SettingsError: a set has no prompts, or a source cannot be opened.
            PluginError, EngineError: a scorer, an environment or the engine cannot be opened.
            LogError, DeadlineExceeded: the broker failed or is too slow.
        """
        context, own = self._context, self._setup.evaluator
        if own.yields:
            self._closing.callback(stand_back(niceness=own.niceness))
        self._closing.callback(self._news.close)
        self._news.start(deadline=deadline)
        sets = {name: self._open_set(name, settings) for name, settings in sorted(self._setup.sets.items())}
        backend = self._setup.backend if self._setup.backend is not None else self._open_backend()
        self._closing.callback(backend.engine.close)
        weights = self._open_weights(backend)
        self._closing.callback(weights.close)
        writer = context.log.writer(WriterSettings())
        episodes = {name: self._open_episodes(each.settings, backend) for name, each in sets.items()}
        self._parts = _Parts(backend=backend, weights=weights, sets=sets, episodes=episodes, writer=writer)

    def turn(self) -> None:
        """News; then a piece of the pass in hand, or the next version, or a short wait."""
        parts = self._started()
        self._news.poll(wait_s=0.0)
        if self._pass is not None:
            self._go_on(self._pass, parts)
            return
        staged = parts.weights.poll()
        if staged is not None:
            self._load(staged, parts)
        tasks = self._tasks(parts)
        self._context.metrics.gauge("evaluations_due", len(tasks))
        ready = next((task for task in tasks if task.version == parts.backend.engine.version), None)
        may_try = self._context.clock.monotonic() >= self._not_before_s
        if ready is not None and may_try:
            self._begin(ready, parts)
        elif parts.weights.version is not None:
            self._context.events.enter("fetching")
            self._news.poll(wait_s=TURN_S)
        elif tasks and may_try:
            manifest = self._news.published[tasks[0].version]
            parts.weights.begin(manifest, published=self._news.published)
        else:
            is_over = not tasks and self._news.last() is not None
            self._context.events.enter("finished" if is_over else "waiting_for_versions")
            self._news.poll(wait_s=TURN_S)

    def stop(self, *, deadline: Deadline) -> None:
        """Give up the pass in hand: it is begun anew by the next process. Leave."""
        parts, self._parts = self._parts, None
        with self._closing:
            if parts is not None:
                parts.writer.close(deadline=deadline)

    def _started(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("a stage is started before its first turn")
        return self._parts

    def _tasks(self, parts: _Parts) -> list[Task]:
        digests = {name: each.digest for name, each in parts.sets.items()}
        return due_tasks(
            self._setup.sets,
            published=self._news.surviving(),
            done=self._news.done(digests),
            last=self._news.last(),
        )

    def _open_set(self, name: str, settings: EvaluationSettings) -> EvaluationSet:
        context = self._context
        source = open_source(settings.source, seed=context.run.seed)
        prompts = read_prompts(source, settings, run=context.run.name)
        if not prompts:
            raise SettingsError(
                f"evaluation.{name}: source {source.name} gives no prompt", hint=f"see [evaluation.{name}.source]"
            )
        opened = open_plugin(settings.scoring, is_stopped=lambda: context.stop.requested)
        if opened is None:
            raise SettingsError(f"evaluation.{name}: stopped while its plug-in was being loaded")
        scoring = Scoring(opened.pool, settings.scoring, batches=opened.batches, clock=context.clock)
        self._closing.callback(scoring.close)
        return EvaluationSet(
            name=name,
            settings=settings,
            digest=settings.digest(source_name=source.name),
            prompts=prompts,
            scoring=scoring,
            plugin_version=opened.version,
        )

    def _open_episodes(self, settings: EvaluationSettings, backend: Backend) -> Episodes | None:
        if settings.environment is None:
            return None
        episodes = open_episodes(settings.environment, engine=backend.engine, context=self._context)
        self._closing.callback(episodes.close)
        return episodes

    def _open_backend(self) -> Backend:
        own, model, wire_dtype = self._setup.evaluator, self._setup.model, self._setup.weights.wire_dtype
        if wire_dtype is not None:  # the engine holds what travels, so that a swap is a copy
            model = model.model_copy(update={"dtype": wire_dtype})
        if own.device is not None:
            model = model.model_copy(update={"device": own.device})
        settings = BackendSettings(
            model=model,
            max_sequences=own.max_sequences,
            num_threads=own.threads,
            vllm=own.vllm,
            http=own.http,
            watch_pressure=own.yields,
        )
        return open_backend(own.engine, settings)

    def _open_weights(self, backend: Backend) -> Staging:
        """Over the store of this host's engines: what rollouts here have fetched is not fetched again. Chunks are asked
        for as evaluation, which peers hold back for weights that rollouts wait for."""
        context, weights = self._context, self._setup.weights
        folder = context.run.folder
        return Staging(
            ChunkStore(folder / "weights" / "engines", max_bytes=weights.store_max_bytes),
            owner="evaluator",
            backend=backend,
            directory=PeerDirectory(self._setup.redis, run=context.run.name),
            client=ClientSettings(
                token=run_token(folder, token_file=weights.token_file),
                tls=client_context(ca=weights.tls_ca),
                traffic_class=str(TrafficClass.EVALUATION),
                on_received=count_received(context.metrics, traffic=TrafficClass.EVALUATION),
            ),
            settings=weights,
            model_dir=self._setup.model.path,
            alone=True,
        )

    def _load(self, staged: Staged, parts: _Parts) -> None:
        version = staged.manifest.version
        if staged.state is None or staged.result is None:
            self._failed("fetch_failed", version=version, error=staged.error)
            return
        self._context.metrics.observe("fetch_s", staged.result.seconds)
        self._context.metrics.count("weight_bytes", staged.result.bytes_fetched, direction="received")
        with self._context.events.phase("swapping"):
            try:
                parts.backend.engine.load(version, staged.state)
            except EngineError as error:
                self._failed("load_failed", version=version, error=error)
                return
        self._context.events.version = parts.backend.engine.version

    def _begin(self, task: Task, parts: _Parts) -> None:
        self._context.events.enter("evaluating")
        self._pass = Pass(
            task,
            parts.sets[task.name],
            engine=parts.backend.engine,
            context=self._context,
            yields=self._setup.evaluator.yields,
            episodes=parts.episodes[task.name],
        )

    def _go_on(self, current: Pass, parts: _Parts) -> None:
        try:
            current.step(limit_s=TURN_S)
        except EngineError as error:
            self._pass = None
            current.give_up()
            self._failed("evaluation_failed", version=current.task.version, error=error)
            return
        if current.is_through:
            self._pass = None
            self._write(current, parts)

    def _write(self, done: Pass, parts: _Parts) -> None:
        record = done.record(facts={"engine": self._setup.evaluator.engine})
        parts.writer.write(EVALUATIONS, record, partition=0)
        parts.writer.flush(deadline=Deadline.after(FLUSH_S, clock=self._context.clock))
        self._news.add(record)
        context, name = self._context, record.name
        context.metrics.count("records_written", topic=EVALUATIONS.name)
        context.metrics.gauge("evaluation_step", record.version.step, set=name)
        gauges = {"num_scored": float(record.num_scored), "num_failed": float(record.num_failed)}
        if record.mean is not None:
            context.metrics.gauge("evaluation_mean", record.mean, set=name)
            gauges["mean"] = record.mean
        details = {"set": name, "version": str(record.version)}
        context.events.notice("evaluated", details=details, duration_s=record.duration_s, **gauges)

    def _failed(self, name: str, *, version: Version, error: RlweaveError | None) -> None:
        pause_s = self._setup.evaluator.fetch_retry_s
        why = "" if error is None else error.message
        self._context.events.notice(name, details={"version": str(version), "error": why}, retry_in_s=pause_s)
        self._not_before_s = self._context.clock.monotonic() + pause_s
