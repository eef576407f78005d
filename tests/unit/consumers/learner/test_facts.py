"""What decides the arithmetic is kept, understood again, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.learner.facts import Arithmetic, arithmetic_in, differences, facts_of
from consumers.learner.settings import CloningSettings, LearnerSettings, OptimizerSettings
from consumers.learner.trainer import Trainer
from pipeline.engines.tiny import make_tiny_model
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.sources import SourceSettings
from schemas.errors import RecordInvalid


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32)
    return path


def arithmetic(model: Path, settings: LearnerSettings) -> Arithmetic:
    return Arithmetic.of(settings, model=ModelSettings(path=model), weights=WeightsSettings(), seed=5)


def test_settings_come_back_as_they_were_without_a_path_or_a_plug_in(model: Path) -> None:
    source = SourceSettings(kind="plugin", plugin="secret/folder/mine.py:make")
    settings = LearnerSettings(
        threads=3,
        optimizer=OptimizerSettings(learning_rate=3e-4, beta2=0.95),
        cloning=CloningSettings(num_steps=2, source=source),
    )
    kept = arithmetic(model, settings)
    facts = facts_of(kept, Trainer(LearnerSettings(), ModelSettings(path=model), seed=5), begins=True, first_anchor="")
    assert arithmetic_in(facts) == kept
    assert (kept.seed, kept.threads, kept.optimizer.learning_rate, kept.optimizer.beta2) == (5, 3, 3e-4, 0.95)
    assert kept.cloning.num_steps == 2
    assert "secret" not in "".join(facts.values())
    assert str(model) not in "".join(facts.values())


def test_weights_are_named_where_a_history_begins_and_the_first_version_once_it_is_known(model: Path) -> None:
    trainer = Trainer(LearnerSettings(), ModelSettings(path=model), seed=5)
    kept = arithmetic(model, LearnerSettings())
    first = facts_of(kept, trainer, begins=True, first_anchor="")
    later = facts_of(kept, trainer, begins=False, first_anchor="ab" * 32)
    assert first["initial_state"] == trainer.state_digest(wire_dtype=None)
    assert "first_anchor" not in first
    assert "initial_state" not in later
    assert later["first_anchor"] == "ab" * 32


def test_differences_name_what_was_and_what_is_and_leave_out_what_was_not_kept() -> None:
    assert differences({"torch": "1", "numpy": "2"}, {"torch": "3", "numpy": "2", "gpu": "x"}) == {"torch": ("1", "3")}


def test_facts_of_an_older_release_are_none_and_strange_ones_are_refused(model: Path) -> None:
    assert arithmetic_in({}) is None
    text = arithmetic(model, LearnerSettings()).model_dump_json()
    changes = [('"threads":1', '"threads":0'), ('"threads":1', '"threads":4097'), ('"seed":5', f'"seed":{2**63}')]
    changes.append(('"seed"', '"seeed"'))
    assert all(old in text for old, _ in changes)
    for strange in ("", "[]", *(text.replace(old, new) for old, new in changes)):
        with pytest.raises(RecordInvalid, match="not understood"):
            arithmetic_in({"settings": strange})
