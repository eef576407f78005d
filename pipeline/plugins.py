"""Loads what users plug in: by entry point, by `module:attr`, or by `path/to/file.py:attr`.

Role: the only way user code enters a process; names come from settings, never from a record.
Invariants: a user's folder goes to the end of the import path, so it cannot shadow a package of ours.
Failure: `PluginError` with what was tried and which plug-ins exist.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

from schemas.errors import PluginError, RlweaveError


def load_plugin(spec: str, *, group: str, builtins: Mapping[str, str]) -> object:
    """The object a plug-in spec names.

    Args:
        spec: a name in `builtins`, the name of an entry point, `module:attr`, or `file.py:attr`.
        group: entry point group, e.g. `rlweave.rewards`.
        builtins: name -> `module:attr` of what rlweave ships.

    Raises:
        PluginError: nothing of that name exists, or importing it failed.
    """
    if spec in builtins:
        return _from_module(builtins[spec], spec=spec, group=group, builtins=builtins)
    if ":" in spec:
        location, _, attr = spec.rpartition(":")
        if location.endswith(".py"):
            return _attribute(_import_file(Path(location)), attr, spec=spec)
        return _from_module(spec, spec=spec, group=group, builtins=builtins)
    for point in entry_points(group=group):
        if point.name == spec:
            return _from_module(point.value, spec=spec, group=group, builtins=builtins)
    raise PluginError(f"no plug-in {spec!r} in group {group}", hint=_choices(group, builtins))


def told(error: BaseException) -> str:
    """What code that is not ours raised, in words; its own text may not be had, as making it is such code, too."""
    try:
        said = str(error)
    except BaseException:  # noqa: BLE001 - user code
        said = "(its text cannot be had)"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def loading(what: str, *, hint_missing: str = "") -> Iterator[None]:
    """Around code that is not ours while it is imported or made; a script that ends with `sys.exit()` must not end us,
    as if all were well.

    Args:
        what: which one, and what failed, in words.
        hint_missing: given when a package was not there.

    Raises:
        PluginError: whatever it raised, but for errors of ours.
    """
    try:
        yield
    except RlweaveError:
        raise
    except (Exception, SystemExit) as error:
        hint = hint_missing if isinstance(error, ImportError) else ""
        raise PluginError(f"plug-in {what}: {told(error)}", hint=hint) from error


def _from_module(target: str, *, spec: str, group: str, builtins: Mapping[str, str]) -> object:
    module_name, _, attr = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    with loading(f"{spec!r}: {module_name!r} failed while it was imported"):
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise PluginError(
                f"plug-in {spec!r}: importing {module_name!r} failed: {error}", hint=_choices(group, builtins)
            ) from error
    return _attribute(module, attr, spec=spec)


def _import_file(path: Path) -> object:
    if not path.is_file():
        raise PluginError(f"plug-in file {path} does not exist", hint=f"looked in {Path.cwd()}")
    name = f"rlweave_plugin_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise PluginError(f"plug-in file {path} cannot be imported")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    with loading(f"file {path} failed while it was imported"):
        found.loader.exec_module(module)
    return module


def _attribute(module: object, attr: str, *, spec: str) -> object:
    if not attr or not hasattr(module, attr):
        public = sorted(name for name in vars(module) if not name.startswith("_"))
        raise PluginError(f"plug-in {spec!r}: no attribute {attr!r}", hint=f"the module has: {', '.join(public)}")
    found: object = getattr(module, attr)
    return found


def _choices(group: str, builtins: Mapping[str, str]) -> str:
    installed = [point.name for point in entry_points(group=group)]
    return (
        f"built in: {', '.join(sorted(builtins)) or 'none'}; installed: {', '.join(sorted(installed)) or 'none'}; "
        "or give module:attr, or path/to/file.py:attr"
    )
