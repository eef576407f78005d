"""The tiny model and its character tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.engines.model_dir import load_model, load_tokenizer, named_state
from pipeline.engines.tiny import CHARACTERS, make_tiny_model
from schemas.errors import EngineError


def file_bytes(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        make_tiny_model(tmp_path / name, seed=seed)
    assert torch.equal(torch.random.get_rng_state(), before)
    first, second, other = (file_bytes(tmp_path / name) for name in "abc")
    assert first == second
    assert first["model.safetensors"] != other["model.safetensors"]
    assert first["tokenizer.json"] == other["tokenizer.json"]


def test_shape_and_ties(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, seed=0)
    own, ties = named_state(load_model(tmp_path, device="cpu", dtype="float32"))
    assert list(own) == sorted(own)
    assert ties == {"lm_head.weight": "model.embed_tokens.weight"}
    assert "lm_head.weight" not in own
    assert sum(tensor.numel() for tensor in own.values()) == 125_376
    assert own["model.embed_tokens.weight"].shape == (32, 64)
    assert own["model.layers.0.self_attn.q_proj.weight"].shape == (4 * 32, 64)
    assert not any(tensor.requires_grad for tensor in own.values())


@pytest.mark.parametrize("text", [CHARACTERS, "4 + 3 =", "What is 3 + 5?", " 12 ", "1\n2"])
def test_text_makes_the_round_trip(tmp_path: Path, text: str) -> None:
    make_tiny_model(tmp_path, seed=0)
    tokenizer = load_tokenizer(tmp_path)
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text)
    assert tokenizer.decode(tokens) == text


def test_unknown_characters_and_chats(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, seed=0)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("Z7é") == [3, tokenizer.encode("7")[0], 3]
    turns = [
        {"role": "user", "content": "1 + 1 ="},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2 + 2 ="},
    ]
    rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert rendered == "1 + 1 =\n2<eos>2 + 2 =\n"


@pytest.mark.parametrize("characters", ["", "abc", "a" * 28])
def test_a_character_set_of_the_wrong_size_is_refused(tmp_path: Path, characters: str) -> None:
    with pytest.raises(EngineError, match="exactly 28"):
        make_tiny_model(tmp_path, seed=0, characters=characters)
