"""Refuses to run when another package stands where one of ours should be.

Role: our import packages have common names (`topics`, `ops`, ...), so another project's package of the same name, or a
file in the working directory, may come first on the import path.
Failure: `SettingsError` naming the package, where it was found and where it should be.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from schemas.errors import SettingsError

PACKAGES = ("schemas", "topics", "pipeline", "producers", "consumers", "ops")


def check_own_packages() -> None:
    """Check that all six packages come from one place.

    Raises:
        SettingsError: one of them does not.
    """
    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        found = _location(name)
        if found is None or found.parent != home:
            raise SettingsError(
                f"package {name!r} is shadowed: found {found or 'nothing'}, expected {home / name}",
                hint="run from another directory, rename that package, or use an environment of its own for rlweave",
            )


def _location(name: str) -> Path | None:
    module = sys.modules.get(name)
    spec = module.__spec__ if module is not None else importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin).resolve().parent
    places = list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve() if places else None
