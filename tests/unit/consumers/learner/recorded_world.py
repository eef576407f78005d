"""A run of which the learner dies several times, on the memory log, for tests of recorded mode."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from consumers.learner.loss_settings import LossSettings
from consumers.learner.recorded.history import RecordedHistory, read_history
from consumers.learner.recorded.report import Verdict
from consumers.learner.recorded.retrain import Repetition, RetrainSetup
from consumers.learner.settings import CloningSettings, LearnerSettings, OptimizerSettings
from consumers.learner.setup import LearnerSetup
from pipeline.settings import WeightsSettings
from pipeline.sources import SourceSettings
from schemas.packed import pack_i32
from schemas.records import Version
from tests.integration.learner_world import SIZE, World, alive, start, step_of, turn_until
from tests.unit.consumers.learner.material import prompt, reward, sample, score
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.memory import MemoryLog

BORN = Version(lineage=1, step=0)
NUM_GROUPS = 24
STEPS = 6
CHANGED = ("optimizer", "loss", "cloning", "threads", "algorithm", "advantage", "packing", "compute_dtype")
OPTIMIZER = OptimizerSettings(learning_rate=3e-3, warmup_steps=2)


@dataclass
class RecordedRun(World):
    """Six steps of four groups."""

    learner_settings: LearnerSettings = field(default_factory=LearnerSettings)
    weights: WeightsSettings = field(default_factory=WeightsSettings)
    has_reference: bool = False

    def _setup(self) -> LearnerSetup:
        setup = super()._setup()
        changes = {name: getattr(self.learner_settings, name) for name in CHANGED}
        settings = setup.settings.model_copy(update={**changes, "micro_batch_tokens": 40})
        return replace(setup, settings=settings, weights=self.weights, has_reference=self.has_reference)

    def tell(self, *, born: Version) -> None:
        """Everything the other stages write: the members of a group differ in length, tokens and reward."""
        for number in range(NUM_GROUPS):
            self.write(prompt(number, size=SIZE))
            for member in reversed(range(SIZE)):
                tokens = pack_i32([(7 * number + 3 * member + 1) % 30, (number + member) % 30])
                made = replace(sample(number, member, born=born), completion_tokens=tokens)
                self.write(made, reward(number, member, value=((number + 1) * (member + 2) % 5) / 4))
                if self.has_reference:
                    self.write(score(number, member, value=-0.25 * (1 + (number + member) % 7)))

    def live(self, *, until: int) -> None:
        """A learner that dies after a step; after the last one it ends in order."""
        stage, context = self.learner()
        start(stage)
        assert stage._loop is not None
        ended = (lambda: stage.finished) if until >= STEPS else (lambda: step_of(context) >= until)
        turn_until(
            stage, ended, what=f"step {until}", each=alive(self, num_groups=NUM_GROUPS, lineage=stage._loop._lineage)
        )
        if stage.finished:
            stage.stop(deadline=Deadline.after(20))
        else:
            stage._loop.close(in_order=False)  # nothing is written, as at a death

    def die_at_once(self) -> None:
        """A learner that begins a lineage and dies."""
        stage, _ = self.learner()
        start(stage)
        assert stage._loop is not None
        stage._loop.close(in_order=False)

    def setup_of_record(self) -> RetrainSetup:
        setup = self._setup()
        return RetrainSetup(
            settings=setup.settings,
            model=setup.model,
            weights=setup.weights,
            seed=0,
            checkpoints=self.folder / self.log.run / "checkpoints",
            has_reference=self.has_reference,
        )

    def history(self, *, until_step: int | None = None) -> RecordedHistory:
        return read_history(self.log, until_step=until_step)

    def repeat(self, history: RecordedHistory | None = None, *, setup: RetrainSetup | None = None) -> Verdict:
        """Train again."""
        repetition = Repetition(
            self.log,
            self.history() if history is None else history,
            setup=self.setup_of_record() if setup is None else setup,
        )
        verdict = Verdict()
        for report in repetition.run():
            verdict.add(report)
        return verdict

    def ends(self) -> dict[str, dict[int, tuple[int, int]]]:
        return self.log.admin().describe()


def recorded_run(
    log: MemoryLog,
    folder: Path,
    model: Path,
    *,
    minibatches: int = 1,
    cloning_steps: int = 0,
    weights: WeightsSettings | None = None,
    born: Version = BORN,
    learner: LearnerSettings | None = None,
    has_reference: bool = False,
) -> RecordedRun:
    """A run that has not begun."""
    demonstrations = folder / "demonstrations.jsonl"
    demonstrations.write_text(
        "".join(json.dumps({"question": f"{n} + 1 =", "answer": str(n + 1)}) + "\n" for n in range(9))
    )
    settings = LearnerSettings(
        optimizer=OPTIMIZER,
        loss=LossSettings(minibatches=minibatches),
        cloning=CloningSettings(
            num_steps=cloning_steps, batch_size=4, source=SourceSettings(files=(demonstrations,), shuffle=True)
        ),
    )
    run = RecordedRun(
        cast("KafkaLog", log),
        folder,
        model,
        max_steps=STEPS,
        every_steps=2,
        learner_settings=settings if learner is None else learner,
        has_reference=has_reference,
        weights=WeightsSettings() if weights is None else weights,
    )
    run.tell(born=born)
    return run
