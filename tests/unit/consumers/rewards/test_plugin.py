"""Forms of plug-ins, their options, and what importing one costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.rewards.plugin import Scorer, fingerprint, load_scorer
from consumers.rewards.settings import OptionValue, RewardSettings
from schemas.errors import PluginError, SettingsError
from tests.unit.consumers.rewards.helpers import HERE, sample


def load(plugin: str, **options: OptionValue) -> Scorer:
    return load_scorer(RewardSettings(plugin=plugin, options=options))


def score(scorer: Scorer, **changes: object) -> object:
    assert scorer.call is not None
    return scorer.call([sample(0, 0, **changes)])[0]


def test_a_function_and_its_options() -> None:
    assert score(load(f"{HERE}:length"), completion_text="abc") == 3.0
    assert score(load(f"{HERE}:length", factor=2.0), completion_text="abc") == 6.0


def test_a_factory() -> None:
    scorer = load(f"{HERE}:make", wanted="easy")
    assert score(scorer, metadata={"kind": "easy"}) == 1.0


def test_a_class_with_batches_and_a_version() -> None:
    scorer = load(f"{HERE}:Batched", offset=10.0)
    assert scorer.batches
    assert scorer.version == "7"
    assert score(scorer, completion_text="abc") == 13.0


def test_an_async_function() -> None:
    scorer = load(f"{HERE}:slow_length")
    assert scorer.async_call is not None
    assert scorer.call is None


def test_a_file_of_ten_lines(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def score(sample):\n    return len(sample.completion_text)\n")
    scorer = load(f"{file}:score")
    assert score(scorer, completion_text="ab") == 2
    before = scorer.version
    file.write_text("def score(sample):\n    return 2 * len(sample.completion_text)\n")
    assert load(f"{file}:score").version != before


def test_a_function_states_its_version_with_options_and_without(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def score(sample, *, factor=1.0):\n    return factor\nscore.version = '2'\n")
    assert load(f"{file}:score").version == "2"
    assert load(f"{file}:score", factor=2.0).version == "2"


@pytest.mark.parametrize(
    ("plugin", "options"),
    [("length", {"speed": 1}), ("Batched", {"speed": 1}), ("make", {}), ("make", {"wanted": "x", "speed": 1})],
)
def test_options_that_do_not_fit_are_named(plugin: str, options: dict[str, OptionValue]) -> None:
    with pytest.raises(SettingsError, match=plugin) as caught:
        load(f"{HERE}:{plugin}", **options)
    assert "it takes: " in caught.value.hint


@pytest.mark.parametrize("plugin", ["ScoresNothing", "not_a_scorer"])
def test_what_scores_nothing_is_refused(plugin: str) -> None:
    with pytest.raises(PluginError, match="scores nothing"):
        load(f"{HERE}:{plugin}")


def test_an_unknown_plugin_names_those_there_are() -> None:
    with pytest.raises(PluginError) as caught:
        load("exact_mach")
    assert "exact_match, format, length_penalty, " in caught.value.hint


def test_a_fingerprint_tells_plugins_options_and_names_apart() -> None:
    first = RewardSettings(plugin="exact_match")
    same = fingerprint("a", first, version="1")
    assert fingerprint("a", RewardSettings(plugin="exact_match", replicas=3), version="1") == same
    others = {
        fingerprint("b", first, version="1"),
        fingerprint("a", first, version="2"),
        fingerprint("a", RewardSettings(plugin="number_match"), version="1"),
        fingerprint("a", RewardSettings(plugin="exact_match", weight=0.0), version="1"),
        fingerprint("a", RewardSettings(plugin="exact_match", options={"ignore_case": True}), version="1"),
    }
    assert len(others | {same}) == 6
