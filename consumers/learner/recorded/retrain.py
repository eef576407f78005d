"""Trains again what a run trained, and says whether the same came out (docs/design/0010).

Role: behind `rlweave retrain`.
Steps: (1) read the plan; (2) the initial weights are those of the run; (3) clone as the run did; (4) for every step:
its batch, trained with the settings of its lineage, its digest beside the recorded ones; (5) write what came out.
Data in: `ledger`, `weights`, `samples`, the run's model directory and checkpoints. Data out: a folder of its own:
`steps.jsonl`, `report.json`, `state/` (weights, optimizer, generator as in a checkpoint), `model/` for
`from_pretrained`.
Invariants: nothing of the run is written, no consumer group is used, nothing is committed. Seed, thread count,
optimizer, loss and all else that `facts.Arithmetic` names are the recorded ones; a lineage trained with other settings
than its parent gets its parent's state through a checkpoint's content, as a restored learner does. With `changes`
the recorded settings are changed in every lineage before anything is trained; then there is nothing to compare with,
unless the run had these settings already.
Failure: `NotRepeatable`; what was found until then stays in the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consumers.learner import checkpoint
from consumers.learner.cloning import Demonstrations
from consumers.learner.facts import (
    FIRST_ANCHOR,
    INITIAL_STATE,
    Arithmetic,
    arithmetic_in,
    differences,
    environment_of,
)
from consumers.learner.publisher import WIRE_NAMES
from consumers.learner.recorded.changes import changed, differing
from consumers.learner.recorded.history import RecordedHistory, RecordedStep, repeatable, until_hint
from consumers.learner.recorded.report import Comparison, StepReport
from consumers.learner.recorded.samples import RecordedSamples
from consumers.learner.recovery import put_back, snapshot_of
from consumers.learner.settings import LearnerSettings
from consumers.learner.step_stats import StepStats
from consumers.learner.trainer import Trainer
from pipeline.settings import ModelSettings, WeightsSettings
from schemas.errors import CheckpointError, NotRepeatable
from schemas.records import Version
from topics.log import Log


@dataclass(frozen=True, kw_only=True)
class RetrainSetup:
    """What the run's folder says; the ledger's facts go first."""

    settings: LearnerSettings
    model: ModelSettings
    weights: WeightsSettings
    seed: int
    checkpoints: Path  # of the run; read only
    has_reference: bool = False  # a reference model scores the run's samples
    changes: Mapping[str, object] = field(default_factory=dict)  # by name in a run file: settings the run did not have


class Repetition:
    """See the module. Constructing it loads the model.

    Raises:
        NotRepeatable: the run was trained by several ranks, begins with other weights, or was cloned from what the
            settings do not name.
        RecordInvalid: the ledger keeps settings that are not understood.
        SettingsError: `changes` are wrong.
        EngineError: the model directory cannot be loaded, or the recorded device is not there.
    """

    def __init__(self, log: Log, history: RecordedHistory, *, setup: RetrainSetup) -> None:
        self._log = log
        self._history = history
        self._setup = setup
        self._here = here = Arithmetic.of(
            setup.settings,
            model=setup.model,
            weights=setup.weights,
            seed=setup.seed,
            has_reference=setup.has_reference,
        )
        kept = {lineage: arithmetic_in(facts) for lineage, facts in history.facts.items()}
        self.without_facts = [lineage for lineage, each in kept.items() if each is None]
        self._recorded = {lineage: here if each is None else each for lineage, each in kept.items()}
        self._arithmetic = {lineage: changed(each, setup.changes) for lineage, each in self._recorded.items()}
        self._check_ranks()
        self._current = self._arithmetic[history.origin]
        self._check_cloning()
        self._check_plugins()
        self._digests: dict[str | None, str] = {}  # of the present weights, by dtype of the wire
        self.trainer = self._make_trainer(self._current)
        self._check_initial_weights()
        environment = environment_of(self.trainer)
        found = {lineage: differences(facts, environment) for lineage, facts in history.facts.items()}
        self.environment = {lineage: each for lineage, each in found.items() if each}

    @property
    def cloning_differs(self) -> bool:
        """Whether the run was cloned from a source with other settings than the run's folder names now."""
        here = self._here.cloning_source
        return self._current.cloning.num_steps > 0 and here != self._current.cloning_source

    @property
    def settings_apart(self) -> dict[int, list[str]]:
        """Settings of each lineage, by name, that the run's folder has otherwise now; the lineage's own are applied."""
        names = sorted(Arithmetic.model_fields.keys() - {"cloning_source"})
        found = {
            lineage: [name for name in names if getattr(each, name) != getattr(self._here, name)]
            for lineage, each in self._recorded.items()
        }
        return {lineage: apart for lineage, apart in found.items() if apart}

    @property
    def changes(self) -> dict[str, tuple[str, str]]:
        """(the run's, here) of every setting that is another than any lineage had, by its name in a run file."""
        found: dict[str, tuple[str, str]] = {}
        for lineage, recorded in self._recorded.items():
            found |= differing(recorded, self._arithmetic[lineage])
        return found

    @property
    def arithmetic(self) -> Mapping[int, Arithmetic]:
        """What each lineage is trained with here."""
        return self._arithmetic

    def run(self) -> Iterator[StepReport]:
        """Steps (3) and (4): the weights before the first step, then every step.

        Raises:
            NotRepeatable: samples are missing.
            TrainingError: a step is not finite.
        """
        self._clone()
        yield self._report(Version(lineage=self._history.origin, step=0))
        samples = RecordedSamples(
            self._log,
            self._history.steps,
            limit_bytes=self._setup.settings.buffer_bytes,
            scored=[lineage for lineage, each in self._arithmetic.items() if each.has_reference],
        )
        try:
            for step in self._history.steps:
                yield self._repeat(step, samples)
        finally:
            samples.close()

    def _repeat(self, step: RecordedStep, samples: RecordedSamples) -> StepReport:
        self._follow(step.version.lineage)
        batch = samples.batch(step)
        stats = self.trainer.step(batch)
        return self._report(step.version, stats=stats, num_samples=batch.num_samples)

    def _follow(self, lineage: int) -> None:
        """Go on with the settings of another lineage, where they differ."""
        wanted = self._arithmetic[lineage]
        if wanted == self._current:
            return
        state = snapshot_of(self.trainer, state=no_state())
        self.trainer = self._make_trainer(wanted)
        put_back(self.trainer, state)
        self._current = wanted

    def _clone(self) -> None:
        settings = self._current.cloning.model_copy(update={"source": self._setup.settings.cloning.source})
        if settings.num_steps == 0:
            return
        demonstrations = Demonstrations.open(settings, trainer=self.trainer, seed=self._current.seed)
        for number in range(settings.num_steps):
            self.trainer.clone(demonstrations.batch(number), number)
        self.trainer.reset_optimizer()

    def _report(self, version: Version, *, stats: StepStats | None = None, num_samples: int = 0) -> StepReport:
        self._digests.clear()
        training = self.trainer.digest().hex()
        own = self._state_digest(version.lineage)
        return StepReport(
            version=version,
            state_digest=own,
            training_digest=training,
            compared=() if self.changes else tuple(self._comparisons(version.step, training=training)),
            num_samples=num_samples,
            num_tokens=0 if stats is None else stats.num_tokens,
            loss=None if stats is None else stats.loss,
            reward_mean=None if stats is None else stats.reward_mean,
            grad_norm=None if stats is None else stats.grad_norm,
            mismatch_mean=None if stats is None else stats.mismatch_mean,
            clipped_share=None if stats is None else stats.clipped_share,
        )

    def _comparisons(self, step: int, *, training: str) -> Iterator[Comparison]:
        history = self._history
        for each in history.digests.get(step, ()):
            computed = self._state_digest(each.version.lineage)
            yield Comparison(version=str(each.version), place=each.place, recorded=each.digest, computed=computed)
        if step == 0:
            computed = self._state_digest(history.origin)
            for lineage, facts in history.facts.items():
                if FIRST_ANCHOR in facts:
                    version = f"{lineage}.0"
                    yield Comparison(version=version, place="anchor", recorded=facts[FIRST_ANCHOR], computed=computed)
        for version, recorded in self._stored_states(step):
            yield Comparison(version=version, place="checkpoint", recorded=recorded, computed=training)

    def _stored_states(self, step: int) -> Iterator[tuple[str, str]]:
        """Checkpoints of the run at this step, while it still has them."""
        for version in checkpoint.versions(self._setup.checkpoints):
            if version.step == step and self._history.lineages.survives(version.lineage, step):
                try:
                    kept = checkpoint.load(self._setup.checkpoints / str(version))
                except CheckpointError:  # not whole, or just being removed by its learner
                    continue
                yield str(version), checkpoint.digest_of_tensors({**kept.model, **kept.optimizer}).hex()

    def _state_digest(self, lineage: int) -> str:
        wire = self._arithmetic[lineage].wire_dtype
        if wire not in self._digests:
            self._digests[wire] = self.trainer.state_digest(wire_dtype=None if wire is None else WIRE_NAMES[wire])
        return self._digests[wire]

    def _make_trainer(self, arithmetic: Arithmetic) -> Trainer:
        own = self._setup.settings
        loss, advantage = arithmetic.loss, arithmetic.advantage
        if arithmetic.plugins:  # the names are the folder's, which were found to be those
            loss = loss.model_copy(update={"function": own.loss.function})
            advantage = own.advantage
        settings = own.model_copy(
            update={
                "threads": arithmetic.threads,
                "micro_batch_tokens": arithmetic.micro_batch_tokens,
                "optimizer": arithmetic.optimizer,
                "loss": loss,
                "lora": arithmetic.lora,
                "packing": arithmetic.packing,
                "compute_dtype": arithmetic.compute_dtype,
                "algorithm": arithmetic.algorithm,
                "advantage": advantage,
                "cloning": arithmetic.cloning,
                "ranks": 1,
            }
        )
        model = self._setup.model.model_copy(update={"device": arithmetic.device, "dtype": arithmetic.dtype})
        return Trainer(settings, model, seed=arithmetic.seed)

    def _check_ranks(self) -> None:
        for step in self._history.steps:
            ranks = self._arithmetic[step.version.lineage].ranks
            if ranks != 1:
                last = step.version.step - 1
                raise NotRepeatable(
                    f"step {step.version.step} was trained by {ranks} ranks, which sum gradients in an order of their "
                    f"own; recorded mode repeats what one rank trained; {repeatable(last)}",
                    hint=until_hint(last)
                    if last > 0
                    else "--set learner.ranks=1 trains it with one rank, not bit for bit",
                )

    def _check_cloning(self) -> None:
        num_steps = self._current.cloning.num_steps
        if num_steps > 0 and self._setup.settings.cloning.source is None:
            raise NotRepeatable(
                f"lineage {self._history.origin} was cloned for {num_steps} steps before its first version, and the "
                "settings in the run's folder name no learner.cloning.source (a later start had other settings); no "
                "step can be repeated",
                hint="put learner.cloning.source into settings.json in the run's folder, as it was at the first start",
            )

    def _check_plugins(self) -> None:
        for lineage, each in self._arithmetic.items():
            if each.plugins and each.plugins != self._here.plugins:
                raise NotRepeatable(
                    f"lineage {lineage} was trained with plug-ins for advantage or loss that the settings in the run's "
                    "folder do not name",
                    hint="put learner.advantage and learner.loss.function into settings.json, as they were",
                )

    def _check_initial_weights(self) -> None:
        origin = self._history.origin
        if self._recorded[origin].dtype != self._arithmetic[origin].dtype:
            return  # the same weights in another dtype have another digest
        recorded = self._history.facts[origin].get(INITIAL_STATE)
        here = self.trainer.initial_digest()
        if recorded is not None and recorded != here:
            raise NotRepeatable(
                f"the run began with weights {recorded}, {self._setup.model.path} has {here}; no step can be repeated",
                hint="name the model directory as it was at the start with --model",
            )


def no_state() -> checkpoint.LearnerState:
    """Of a snapshot that never becomes a checkpoint."""
    return checkpoint.LearnerState(
        lineage=0,
        step=0,
        positions={},
        topic_ids={},
        closed={"watermark": 0, "above": []},
        num_cloning_steps=0,
        threads=1,
        first_anchor="",
    )
