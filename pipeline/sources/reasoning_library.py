"""The library reasoning-gym (https://github.com/open-thought/reasoning-gym), imported when it is first used.

Role: for the source and the reward that stand on it; both may be in threads of one process.
Invariants: one thread at a time imports it: its modules import one another in a circle, and a second thread would be
given one that is half made.
Failure: `ImportError` when it is not installed.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from types import ModuleType

_IMPORTING = threading.Lock()


def reasoning_library() -> ModuleType:
    """Its module `factory`, with all tasks registered.

    Raises:
        ImportError: it is not installed.
    """
    with _IMPORTING, warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of a package it imports, on the first compilation
        importlib.import_module("reasoning_gym")  # registers the tasks
        return importlib.import_module("reasoning_gym.factory")
