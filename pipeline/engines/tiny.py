"""A tiny Qwen3-shaped model with a character tokenizer, made on the spot.

Role: something real to serve and train in a demo and in tests, within seconds, without a download.
Data in: a seed and a shape; data out: a model directory.
Invariants: the same arguments give the same bytes. The vocabulary has 32 entries: 4 special ones and 28 characters.
Failure: `EngineError` for a character set of the wrong size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from pipeline.engines.model_dir import quiet_transformers
from schemas.errors import EngineError

PAD, BOS, EOS, UNK = SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
# Digits, arithmetic and the letters of "What is"; every other character becomes <unk>.
CHARACTERS = "0123456789 +-*/=?.:()\nWhatis"
NUM_CHARACTERS = 28
# One line per turn; what the assistant said ends with the end token.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True, kw_only=True)
class TinyShape:
    """The shape of a tiny model; 125,376 parameters with the defaults."""

    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32  # need not divide hidden_size
    initializer_range: float = 0.15  # about 1 / sqrt(hidden_size); the usual 0.02 is for wide models


DEFAULT_SHAPE = TinyShape()


def make_tiny_model(
    path: Path,
    *,
    seed: int,
    characters: str = CHARACTERS,
    context_tokens: int = 64,
    shape: TinyShape = DEFAULT_SHAPE,
) -> None:
    """Write a model directory with random weights.

    Args:
        path: the directory; made when absent, its files are replaced.
        seed: of the weights.
        characters: 28 different ones.
        context_tokens: most prompt and completion tokens.
        shape: of the model.

    Raises:
        EngineError: `characters` does not have 28 different ones.
    """
    tokenizer = character_tokenizer(characters, context_tokens=context_tokens)
    config = Qwen3Config(
        vocab_size=len(SPECIAL_TOKENS) + len(characters),
        hidden_size=shape.hidden_size,
        intermediate_size=3 * shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=context_tokens,
        initializer_range=shape.initializer_range,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL_TOKENS.index(PAD),
        bos_token_id=SPECIAL_TOKENS.index(BOS),
        eos_token_id=SPECIAL_TOKENS.index(EOS),
    )
    construct: Callable[[Qwen3Config], PreTrainedModel] = Qwen3ForCausalLM  # its constructor is untyped
    with quiet_transformers():
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model: PreTrainedModel = construct(config)
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)


def character_tokenizer(characters: str, *, context_tokens: int) -> PreTrainedTokenizerFast:
    """One token per character, in the order given, after the special tokens.

    Raises:
        EngineError: not 28 different characters.
    """
    if len(characters) != NUM_CHARACTERS or len(set(characters)) != NUM_CHARACTERS:
        raise EngineError(
            f"the character set has {len(characters)} characters, {len(set(characters))} of them different; "
            f"exactly {NUM_CHARACTERS} different ones are needed"
        )
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    wrap: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast  # its constructor is untyped
    wrapped = wrap(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
        model_max_length=context_tokens,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped
