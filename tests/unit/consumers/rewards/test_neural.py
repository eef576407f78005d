"""A neural reward model: a tiny random classifier made here, in batches and in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from consumers.rewards.neural import NeuralReward
from consumers.rewards.opening import runs_here
from consumers.rewards.settings import RewardSettings
from pipeline.engines.model_dir import load_tokenizer
from pipeline.engines.tiny import make_tiny_model
from schemas.errors import PluginError
from tests.unit.consumers.rewards.helpers import sample

SAMPLES = [sample(group, prompt_text="1 + 1 =", completion_text="2 is it?"[: 1 + group]) for group in range(5)]


def make_classifier(path: Path, *, num_labels: int) -> Path:
    make_tiny_model(path / "policy", seed=0)
    torch.manual_seed(0)
    tokenizer = load_tokenizer(path / "policy")
    config = Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=16,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.5,
    )
    config.num_labels = num_labels
    Qwen3ForSequenceClassification(config).save_pretrained(path / "judge")  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(path / "judge")
    return path / "judge"


def test_a_batch_scores_as_each_does_alone_and_as_transformers_does(tmp_path: Path) -> None:
    path = make_classifier(tmp_path, num_labels=1)
    reward = NeuralReward(path=str(path))
    together = reward.score_batch(SAMPLES)
    alone = [value for one in SAMPLES for value in reward.score_batch([one])]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len({round(float(str(value)), 4) for value in together}) > 1, "the text makes no difference"
    model = Qwen3ForSequenceClassification.from_pretrained(path).train(False)
    given = load_tokenizer(path)("1 + 1 =2", return_tensors="pt")
    with torch.inference_mode():
        assert model(input_ids=given["input_ids"]).logits.item() == pytest.approx(together[0], abs=1e-5)


def test_of_several_labels_the_probability_of_one(tmp_path: Path) -> None:
    path = str(make_classifier(tmp_path, num_labels=3))
    shares = [NeuralReward(path=path, label=label).score_batch(SAMPLES[:1])[0] for label in range(3)]
    assert sum(float(str(share)) for share in shares) == pytest.approx(1.0)
    with pytest.raises(PluginError, match="outputs 0 to 2"):
        NeuralReward(path=path, label=3)


def test_a_text_over_the_context_is_a_failure_of_that_text(tmp_path: Path) -> None:
    reward = NeuralReward(path=str(make_classifier(tmp_path, num_labels=1)))
    long = sample(9, prompt_text="1 + 1 =", completion_text="2" * 50)
    first, second = reward.score_batch([SAMPLES[0], long])
    assert isinstance(first, float)
    assert isinstance(second, ValueError)


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, seed=0)
    with pytest.raises(PluginError, match="would be random"):
        NeuralReward(path=str(tmp_path))


def test_it_runs_in_one_process_of_its_own() -> None:
    assert not runs_here(RewardSettings(plugin="neural"))
    assert NeuralReward.max_workers == 1
