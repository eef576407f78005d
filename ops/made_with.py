"""The settings a run was made with, held against those it is to go on with.

Role: keeps `rlweave up` from going on with a run under settings that would spoil what it has written.
Data in: a `RunFile`, and `settings.json` and `model.json` in the run's folder. Data out: a line on settings that may
change and did; `model.json`, what the model was when the run began.
What never changes in a run, and why:
- run.partitions: topics keep theirs.
- run.group_size: open groups on the topics have that many members; they would wait for ever, or be dropped.
- run.seed; prompts.source: kind, task and plugin: group n is prompt n of one source. Files, entries and epochs may be
  added, to go on with a run that has used up its prompts. A phase of a run may have a source of its own.
- learner.cloning: it came before the first version. More steps would clone in the middle of the run, and `retrain`
  takes its source from here.
- learner.lora: checkpoints and versions have its shape.
- what is in model.path: checkpoints and versions have its shape, `retrain` begins with its weights. It may move.
All else may: the ledger keeps per lineage what decides its arithmetic, prompts carry their sampling, outcomes the
rewards used. [kafka] and [redis] say where servers are, not what the run is.
Failure: `SettingsError` with every setting that differs; nothing is written before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import orjson
from blake3 import blake3

from ops.run_file import RunFile, load_saved
from pipeline.secrets import shown
from schemas.errors import SettingsError

SETTINGS_FILE, MODEL_FILE = "settings.json", "model.json"
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Difference: TypeAlias = tuple[str, Json, Json]  # name, in the run, now

_FIXED = (
    "run.partitions",
    "run.group_size",
    "run.seed",
    "prompts.source.kind",
    "prompts.source.task",
    "prompts.source.plugin",
    "learner.cloning",
    "learner.lora",
)
_FIXED_IN_PHASES = tuple(name for name in _FIXED if not name.startswith("prompts."))
_ELSEWHERE = ("kafka", "redis", "run.name", "run.dir", "model.path")  # where things are
_WRITER = ("transformers_version", "_name_or_path")  # in config.json: who wrote it
_END_BYTES = 2**20  # read of each end of a weight file; names and shapes are in the first


def check_made_with(run_file: RunFile, *, in_phase: bool = False) -> str:
    """Refuse settings that the run was not made with; returns a line on those that changed, empty: none did.

    Args:
        in_phase: these are the settings of one phase of the run, which may have prompts of its own.

    Raises:
        SettingsError: with all that must not change and did, or the run's settings cannot be read.
    """
    folder = run_file.run.folder
    if not (folder / SETTINGS_FILE).is_file():
        return ""
    made = load_saved(folder / SETTINGS_FILE)
    found = list(_differences(made.model_dump(mode="json"), run_file.model_dump(mode="json"), name=""))
    wrong = [
        f"{name}: the run has {shown(old, name=name)}, the run file has {shown(new, name=name)}"
        for name, old, new in found
        if _is_in(name, _FIXED_IN_PHASES if in_phase else _FIXED)
    ]
    wrong += _model_differences(made, run_file)
    if wrong:
        raise SettingsError(
            f"run {made.run.name!r} in {folder} was made with {len(wrong)} setting(s) that cannot change in a run; "
            "nothing was started or written:\n  " + "\n  ".join(wrong),
            hint="choose another run.name, set them back, or delete that run and its folder: "
            f"`rlweave runs delete {made.run.name} --files --dir {run_file.run.dir}`",
        )
    told = [_change(each) for each in found if not _is_in(each[0], _ELSEWHERE)]
    return f"run {made.run.name} goes on with other settings than before: {', '.join(told)}" if told else ""


def check_phase(run_file: RunFile, chosen: RunFile, *, name: str) -> None:
    """Refuse a phase that sets what cannot change in a run, before the first one begins.

    Args:
        chosen: the run file as the phase `name` has it.

    Raises:
        SettingsError: naming the first such setting.
    """
    fixed = (*_FIXED_IN_PHASES, *_ELSEWHERE)
    for setting, old, new in _differences(run_file.model_dump(mode="json"), chosen.model_dump(mode="json"), name=""):
        if _is_in(setting, fixed):
            seen = f"{shown(new, name=setting)}, the run {shown(old, name=setting)}"
            raise SettingsError(
                f"phase {name}: {setting} cannot change in a run; the phase has {seen}",
                hint="set it for the whole run, in its own section",
            )


def keep_model(run_file: RunFile) -> None:
    """Remember what the model is, once per run: later launches are held against it.

    Raises:
        OSError: the folder cannot be written.
    """
    path = run_file.run.folder / MODEL_FILE
    if not path.exists() and (run_file.model.path / "config.json").is_file():
        aside = path.with_name(f".{path.name}.tmp")
        aside.write_bytes(orjson.dumps(_model_of(run_file.model.path), option=orjson.OPT_INDENT_2))
        aside.replace(path)


def _differences(old: Json, new: Json, *, name: str) -> Iterator[Difference]:
    """Every leaf that differs, and sections that only one side has."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(each for each in new if each not in old)]:
            yield from _differences(old.get(key), new.get(key), name=f"{name}.{key}" if name else key)
    elif old != new:
        yield name, old, new


def _is_in(name: str, sections: tuple[str, ...]) -> bool:
    return any(name == section or name.startswith(f"{section}.") for section in sections)


def _change(difference: Difference) -> str:
    name, old, new = difference
    if isinstance(old, dict | list) or isinstance(new, dict | list):
        return name
    return f"{name} ({shown(old, name=name)} -> {shown(new, name=name)})"


def _model_differences(made: RunFile, run_file: RunFile) -> Iterator[str]:
    """What of the model is not as the run has it; a run that kept no `model.json` is held against its own path."""
    kept, path = run_file.run.folder / MODEL_FILE, run_file.model.path
    if not (path / "config.json").is_file():
        return  # a part that needs no model; `check_named` says so to the others
    if kept.is_file():
        before = _read(kept)
    elif (made.model.path / "config.json").is_file():
        before = _model_of(made.model.path)
    else:
        return
    now = _model_of(path)
    for file in sorted(before.keys() | now.keys()):
        if before.get(file) != now.get(file):
            state = "is gone" if file not in now else "is new" if file not in before else "has another content"
            yield f"model.path: the run began with {made.model.path}; in {path}, {file} {state}"


def _read(path: Path) -> dict[str, str]:
    try:
        values = orjson.loads(path.read_bytes())
        return {str(file): str(digest) for file, digest in values.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}", hint="remove it: the model is not looked at then") from (
            error
        )


def _model_of(path: Path) -> dict[str, str]:
    """A digest by file name of what decides shape, tokens and weights.

    Raises:
        SettingsError: a file cannot be read.
    """
    try:
        found = {
            file.name: _digest(file)
            for file in sorted(path.iterdir())
            if file.name == "tokenizer.json" or file.suffix in (".safetensors", ".bin")
        }
        return {"config.json": _config_digest(path / "config.json"), **found}
    except OSError as error:
        raise SettingsError(f"model.path = {path} cannot be read: {error.strerror}", hint="see its rights") from error


def _config_digest(path: Path) -> str:
    """Of a configuration, however it is laid out; of its bytes when it is no JSON, which the engine will say."""
    content = path.read_bytes()
    try:
        values = orjson.loads(content)
    except ValueError:
        values = None
    if isinstance(values, dict):
        kept = {key: value for key, value in values.items() if key not in _WRITER}
        content = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    return blake3(content).hexdigest()


def _digest(path: Path) -> str:
    """Of length, beginning and end: whole for small files, and quick for those that would take minutes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        content = file.read(_END_BYTES)
        file.seek(max(_END_BYTES, size - _END_BYTES))
        content += file.read(_END_BYTES)
    return f"{size}:{blake3(content).hexdigest()}"
