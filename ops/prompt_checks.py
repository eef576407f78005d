"""Prompts that hold what the model's tokenizer has no token for: it would read its unknown token in their place.

Role: a part of `rlweave up --check`.
Data in: a `RunFile`, the stages that run here; `tokenizer.json` of the model, the first prompts of every source that
these stages read. Data out: warnings as text.
Invariants: nothing of the model is loaded; chat templates are not looked at. No warning where the tokenizer is not in
`tokenizer.json` or takes any text, and none of prompts that are token ids.
Failure: those of opening a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import orjson

from ops.run_file import RunFile
from pipeline.sources import PromptItem, SourceSettings, open_source
from schemas.errors import RecordInvalid

_MOST_PROMPTS = 256  # of each source: enough to meet a script or a sign that is missing
_MOST_CHARS = 60  # of an example


class _Encoding(Protocol):
    """What is used of the library's."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class _Tokenizer(Protocol):
    """What is used of the library's."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> _Encoding: ...
    def token_to_id(self, token: str) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """A tokenizer that has an unknown token."""

    tokenizer: _Tokenizer
    unknown: str
    unknown_id: int

    def missing(self, text: str) -> str:
        """The first piece of a text that has no token; empty: all have one."""
        read = self.tokenizer.encode(text, add_special_tokens=False)
        places = (place for token, place in zip(read.ids, read.offsets, strict=True) if token == self.unknown_id)
        return next((text[begin:end] for begin, end in places if text[begin:end] != self.unknown), "")


def unknown_text_warnings(run_file: RunFile, *, stages: Sequence[str]) -> list[str]:
    """See the module.

    Raises:
        SettingsError, PluginError: a source cannot be opened.
    """
    model = run_file.model.path
    reader = _reader_of(model)
    if reader is None:
        return []
    found = []
    for setting, settings in _sources(run_file, stages=stages):
        texts = list(_texts(settings, seed=run_file.run.seed))
        missing = [(piece, text) for text in texts if (piece := reader.missing(text))]
        if missing:
            piece, text = missing[0]
            example = text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."
            found.append(
                f"{setting}: the tokenizer of {model} has no token for parts of {len(missing)} of the first "
                f"{len(texts)} prompts, and the model reads {reader.unknown} in their place, for example of {piece!r} "
                f"in {example!r}"
            )
    return found


def _sources(run_file: RunFile, *, stages: Sequence[str]) -> Iterator[tuple[str, SourceSettings]]:
    if "prompts" in stages:
        yield "prompts.source", run_file.prompts.source
    cloning = run_file.learner.cloning
    if "learner" in stages and cloning.num_steps > 0 and cloning.source is not None:
        yield "learner.cloning.source", cloning.source
    for name, chosen in run_file.evaluation.items() if "evaluator" in stages else ():
        yield f"evaluation.{name}.source", chosen.source


def _texts(settings: SourceSettings, *, seed: int) -> Iterator[str]:
    """What the model reads of the first prompts."""
    source = open_source(settings, seed=seed)
    per_epoch = source.items_per_epoch
    for index in range(_MOST_PROMPTS if per_epoch is None else min(_MOST_PROMPTS, per_epoch)):
        try:
            item = source.item(index)
        except RecordInvalid:
            continue
        if item.token_ids is None:
            yield _text(item)


def _text(item: PromptItem) -> str:
    if item.messages is not None:
        return " ".join(message.content for message in item.messages)
    return "" if item.text is None else item.text


def _reader_of(model: Path) -> _Reader | None:
    """None where there is nothing that a text could lack."""
    try:
        content = (model / "tokenizer.json").read_text("utf-8")
        unknown = _unknown_token(orjson.loads(content))
        library = import_module("tokenizers")
        tokenizer = cast("_Tokenizer", library.Tokenizer.from_str(content))
    except (OSError, ValueError, ImportError):
        return None
    unknown_id = None if unknown is None else tokenizer.token_to_id(unknown)
    return (
        None
        if unknown is None or unknown_id is None
        else _Reader(tokenizer=tokenizer, unknown=unknown, unknown_id=unknown_id)
    )


def _unknown_token(described: object) -> str | None:
    """As tokenizer.json says it: by name, or (Unigram) by its place in the vocabulary."""
    model = described.get("model") if isinstance(described, dict) else None
    if not isinstance(model, dict):
        return None
    named, place, vocabulary = model.get("unk_token"), model.get("unk_id"), model.get("vocab")
    if isinstance(place, int) and isinstance(vocabulary, list) and 0 <= place < len(vocabulary):
        named = vocabulary[place][0]
    return named if isinstance(named, str) else None
