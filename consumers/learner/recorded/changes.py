"""Settings that a repetition is to have otherwise than the run had.

Role: turns `section.key` of a run file into the settings that enter the arithmetic (`facts.Arithmetic`), for every
lineage alike; what no step depends on cannot be changed, since it would change nothing.
Data in: names and values. Data out: another `Arithmetic`, and what of it is new.
Invariants: a value is checked as it is in a run file; a value that the run had is no change.
Failure: `SettingsError` naming the setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from consumers.learner.facts import Arithmetic
from schemas.errors import SettingsError

SHORT = {"lr": "learner.optimizer.learning_rate"}
_ELSEWHERE = {
    "run.seed": "seed",
    "model.device": "device",
    "model.dtype": "dtype",
    "weights.wire_dtype": "wire_dtype",
}
_OWN = "learner."
_RECORDED = ("cloning_source", "plugins", "has_reference")  # facts, no settings


def changed(arithmetic: Arithmetic, changes: Mapping[str, object]) -> Arithmetic:
    """The same with other settings.

    Args:
        changes: by the setting's name in a run file, or a short one (`SHORT`).

    Raises:
        SettingsError: a setting is not there, is none that training depends on, or has a wrong value.
    """
    values: dict[str, object] = arithmetic.model_dump(mode="json")
    for name, value in changes.items():
        _put(values, path_of(name), value=value, name=name)
    try:
        return Arithmetic.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SettingsError(f"--set {where}: {first['msg']}; nothing was trained") from error


def differing(recorded: Arithmetic, now: Arithmetic) -> dict[str, tuple[str, str]]:
    """(recorded, now) of every setting that differs, by its name in a run file."""
    old, new = recorded.model_dump(mode="json"), now.model_dump(mode="json")
    return {name_of(path): (before, after) for path, before, after in _leaves(old, new)}


def path_of(name: str) -> list[str]:
    """Where a setting of a run file is in `Arithmetic`.

    Raises:
        SettingsError: it is in no place of it.
    """
    full = SHORT.get(name, name)
    found = _ELSEWHERE.get(full, full.removeprefix(_OWN) if full.startswith(_OWN) else "")
    path = found.split(".")
    if path[0] not in Arithmetic.model_fields or path[0] in _RECORDED:
        raise SettingsError(
            f"--set {name}: no step of a repetition depends on it, so nothing would change; nothing was trained",
            hint=f"there are {', '.join((*_ELSEWHERE, *_all_own()))}, and {', '.join(SHORT)} for {SHORT['lr']}",
        )
    return path


def _all_own() -> list[str]:
    names = (name for name in Arithmetic.model_fields if name not in (*_ELSEWHERE.values(), *_RECORDED))
    return [f"{_OWN}{name}" for name in names]


def _put(values: dict[str, object], path: list[str], *, value: object, name: str) -> None:
    node = values
    for key in path[:-1]:
        child = node.get(key)
        if not isinstance(child, dict):
            raise SettingsError(f"--set {name}: there is no such setting; nothing was trained")
        node = child
    node[path[-1]] = value


def _leaves(old: object, new: object, *, path: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            yield from _leaves(old[key], new.get(key), path=f"{path}.{key}" if path else key)
    elif old != new:
        yield path, str(old), str(new)


def name_of(path: str) -> str:
    """The name in a run file of what has this dotted path in `Arithmetic`."""
    by_path = {each: name for name, each in _ELSEWHERE.items()}
    return by_path.get(path, f"{_OWN}{path}")
