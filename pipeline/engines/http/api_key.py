"""The key a server asks for.

Role: reads it from where the settings point; keeps it out of everything that people read.
Invariants: the key is in no setting, no message and no log; `repr` hides it, and what a server echoes is blanked.
Failure: `EngineError` that names the variable or the file.
"""

from __future__ import annotations

import os

from pipeline.engines.http.settings import HttpSettings
from schemas.errors import EngineError

HIDDEN = "***"


class ApiKey:
    """A key, or none."""

    def __init__(self, value: str | None) -> None:
        self._value = value

    @property
    def headers(self) -> dict[str, str]:
        """What proves it to the server."""
        return {} if self._value is None else {"Authorization": f"Bearer {self._value}"}

    def blanked(self, text: str) -> str:
        """The text without the key."""
        return text if self._value is None else text.replace(self._value, HIDDEN)

    def __repr__(self) -> str:
        return f"ApiKey({'none' if self._value is None else HIDDEN})"


def read_key(settings: HttpSettings) -> ApiKey:
    """The key that the settings point to.

    Raises:
        EngineError: two places are named, or the one that is holds no key.
    """
    name, path = settings.api_key_env, settings.api_key_file
    if name is not None and path is not None:
        raise EngineError("rollout.http sets both api_key_env and api_key_file; one of them is allowed")
    if name is not None:
        value = os.environ.get(name)
        if value is None:
            raise EngineError(f"the environment variable {name} (rollout.http.api_key_env) is not set")
        return _checked(value, where=f"the environment variable {name}")
    if path is not None:
        try:
            value = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EngineError(f"{path} (rollout.http.api_key_file) cannot be read: {type(error).__name__}") from error
        return _checked(value, where=str(path))
    return ApiKey(None)


def _checked(value: str, *, where: str) -> ApiKey:
    key = value.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise EngineError(f"{where} does not hold an API key: one word of printable ASCII", hint="write only the key")
    return ApiKey(key)
