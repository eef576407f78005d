"""Token ids as text, for people.

Role: reads the `tokenizer.json` of a model folder; nothing of the model itself is loaded or run.
Data in: a model folder, token ids. Data out: the text that each token adds; together they are the text.
Invariants: without a tokenizer there are no pieces, and the reason says why; a token in the middle of a character adds
nothing, the one that ends it adds the character.
Failure: none; what cannot be read is the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from schemas.errors import RlweaveError

TOKENIZER_FILE = "tokenizer.json"
MAX_FILE_BYTES = 256 * 1024 * 1024
_BROKEN = "\ufffd"


class Tokenizer(Protocol):
    """What is used of the library's."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of these tokens."""
        ...


class TokenizerMissing(RlweaveError):
    """There is no tokenizer to read token ids with."""


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Text per token, or why there is none."""

    pieces: tuple[str, ...] | None
    why: str = ""


def load_tokenizer(folder: Path | None) -> Tokenizer:
    """The tokenizer of a model folder.

    Raises:
        TokenizerMissing: there is none, or no library to read it.
    """
    if folder is None:
        raise TokenizerMissing("the run's settings are not at hand, so its model folder is not known")
    file = folder / TOKENIZER_FILE
    if not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
        raise TokenizerMissing(f"{file} is not there")
    try:
        library = import_module("tokenizers")
    except ImportError as error:
        raise TokenizerMissing(
            "the package tokenizers is not installed", hint="pip install 'rlweave[dashboard]'"
        ) from error
    try:
        content = file.read_text("utf-8")
        return cast("Tokenizer", library.Tokenizer.from_str(content))
    except (OSError, ValueError) as error:
        raise TokenizerMissing(f"{file} cannot be read: {error}") from error


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, ...]:
    """The text that each token adds to those before it."""
    found: list[str] = []
    begin = read = 0  # tokens that the text before `read` is taken from
    for index in range(len(ids)):
        before = tokenizer.decode(ids[begin:read], skip_special_tokens=False) if read > begin else ""
        text = tokenizer.decode(ids[begin : index + 1], skip_special_tokens=False)
        is_whole = not text.endswith(_BROKEN) or index == len(ids) - 1 or index - read > 6
        if is_whole:
            found.append(text[len(before) :] if text.startswith(before) else text)
            begin, read = read, index + 1
        else:
            found.append("")
    return tuple(found)
