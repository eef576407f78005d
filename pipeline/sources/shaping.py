"""From a row to a prompt.

Role: the one place that knows which keys of a row mean what.
Data in: a JSON object; data out: a `PromptItem`.
Invariants: exactly one prompt form; `extract`, `prefix` and `suffix` apply to text only; keys without a meaning here go
to the metadata, text as it is and everything else as JSON text.
Failure: `RecordInvalid` with reason `prompt_invalid` and what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import orjson

from pipeline.sources.base import PromptItem, Row
from pipeline.sources.settings import PlainSource
from schemas.errors import RecordInvalid
from schemas.packed import pack_i32
from schemas.reasons import Reason
from schemas.records import Message

TEXT_KEYS = ("question", "prompt")
FORM_KEYS = (*TEXT_KEYS, "messages", "token_ids")
_INT32_LIMIT = 2**31


def invalid(why: str) -> RecordInvalid:
    """The error of a row that gives no prompt."""
    return RecordInvalid(why, reason=Reason.PROMPT_INVALID)


class Shaper:
    """Makes prompts of rows, as the settings say."""

    def __init__(self, settings: PlainSource) -> None:
        self._settings = settings
        self._extract = None if settings.extract is None else re.compile(settings.extract)

    def __call__(self, row: Row, *, source_index: int, epoch: int) -> PromptItem:
        """The prompt of a row.

        Raises:
            RecordInvalid: no prompt, more than one, of the wrong type, or empty.
        """
        form = check_row(row)
        text, messages, token_ids = None, None, None
        if form == "messages":
            messages = _messages(row[form])
        elif form == "token_ids":
            token_ids = _token_ids(row[form])
        elif self._settings.chat:
            messages = (Message(role="user", content=self._text(row[form])),)
        else:
            text = self._text(row[form])
        return PromptItem(
            text=text,
            messages=messages,
            token_ids=token_ids,
            answer=_answer(row.get("answer")),
            metadata=_metadata(row),
            source_index=source_index,
            epoch=epoch,
        )

    def _text(self, value: object) -> str:
        if not isinstance(value, str):
            raise invalid(f"the question is a {type(value).__name__}, not text")
        if self._extract is not None:
            found = self._extract.search(value)
            if found is None:
                raise invalid(f"extract {self._extract.pattern!r} matches nothing in {value[:80]!r}")
            value = found.group(1) if found.re.groups else found.group(0)
        if not value or value.isspace():
            raise invalid("the prompt is empty")
        return f"{self._settings.prefix}{value}{self._settings.suffix}"


def check_row(row: Row) -> str:
    """The key of the row's prompt form.

    Raises:
        RecordInvalid: none, or more than one.
    """
    forms = [key for key in FORM_KEYS if row.get(key) is not None]
    if len(forms) != 1:
        seen = f"has {' and '.join(forms)}" if forms else f"has the keys {sorted(row)}"
        raise invalid(f"a row {seen}; exactly one of {', '.join(FORM_KEYS)} is needed")
    return forms[0]


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise invalid(f"messages is a {type(value).__name__}, not a list")
    messages = tuple(_message(turn) for turn in value)
    if not any(message.content.strip() for message in messages):
        raise invalid("the prompt is empty")
    return messages


def _message(turn: object) -> Message:
    if isinstance(turn, Mapping):
        role, content = turn.get("role"), turn.get("content")
        if isinstance(role, str) and isinstance(content, str):
            return Message(role=role, content=content)
    raise invalid(f"a message needs text `role` and `content`, got {str(turn)[:80]}")


def _token_ids(value: object) -> bytes:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise invalid(f"token_ids is a {type(value).__name__}, not a list of numbers")
    if not value:
        raise invalid("the prompt is empty")
    if not all(type(token) is int and 0 <= token < _INT32_LIMIT for token in value):
        raise invalid("token_ids holds something that is not a whole number from 0 to 2**31 - 1")
    return pack_i32(value)


def _answer(value: object) -> str | None:
    return None if value is None else _as_text(value)


def _metadata(row: Row) -> dict[str, str]:
    return {key: _as_text(value) for key, value in row.items() if key not in FORM_KEYS and key != "answer"}


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise invalid(f"a value cannot be written as JSON: {error}") from error
