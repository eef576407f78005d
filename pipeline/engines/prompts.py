"""From a prompt record to the tokens an engine reads, with a tokenizer of transformers.

Role: the tokenizer's side of an engine: chat template and encoding.
Data in: a `PromptGroup`; data out: `PromptTokens`.
Invariants: text is encoded with the tokenizer's own special tokens; a rendered chat is not given them a second time.
Failure: `RecordInvalid` with reason `prompt_invalid`.
"""

from __future__ import annotations

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from pipeline.engines.base import PromptTokens, TokenArray
from pipeline.engines.checks import (
    check_one_form,
    check_prompt_length,
    check_token_range,
    prompt_invalid,
    unpack_prompt_tokens,
)
from schemas.records import PromptGroup


def encode_group(
    tokenizer: PreTrainedTokenizerBase, group: PromptGroup, *, context_tokens: int, vocab_size: int
) -> PromptTokens:
    """Render and tokenise one prompt.

    Raises:
        RecordInvalid: empty, not renderable, out of the vocabulary, or no room for one new token.
    """
    check_one_form(group)
    if group.token_ids is not None:
        tokens = unpack_prompt_tokens(group.token_ids)
        check_prompt_length(group, tokens, context_tokens=context_tokens)
        check_token_range(group, tokens, vocab_size=vocab_size)
        return PromptTokens(text=str(tokenizer.decode(tokens.tolist())), tokens=tokens)
    if group.messages is not None:
        text = _render_chat(tokenizer, group)
        tokens = encode_text(tokenizer, text)
    else:
        text = group.text if group.text is not None else ""
        # A begin token alone is no prompt, so the text itself is judged.
        tokens = _encode(tokenizer, text, add_special_tokens=True) if text else np.empty(0, dtype=np.int32)
    check_prompt_length(group, tokens, context_tokens=context_tokens)
    return PromptTokens(text=text, tokens=tokens)


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> TokenArray:
    """Tokens of a text that stands inside a sequence; special tokens only where the text spells them."""
    return _encode(tokenizer, text, add_special_tokens=False)


def _render_chat(tokenizer: PreTrainedTokenizerBase, group: PromptGroup) -> str:
    if not group.messages:
        raise prompt_invalid(f"the prompt of group {group.group} has no messages; at least one is needed")
    if not tokenizer.chat_template:
        raise prompt_invalid(
            f"the prompt of group {group.group} is a chat and the model's tokenizer has no chat template",
            hint="use a chat model, or give the prompts as text",
        )
    turns = [{"role": message.role, "content": message.content} for message in group.messages]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except (TemplateError, TypeError, ValueError) as error:
        raise prompt_invalid(f"the chat template refuses the prompt of group {group.group}: {error}") from error


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool) -> TokenArray:
    return np.asarray(tokenizer.encode(text, add_special_tokens=add_special_tokens), dtype=np.int32)
