"""Writes the first files of a plug-in: the plug-in itself and its test.

Role: what `rlweave new KIND NAME` has in common for all kinds.
Data in: a name, two templates and a folder. Data out: NAME.py and test_NAME.py, which run as they are.
Invariants: nothing that exists is overwritten, and both files are written or none.
Failure: `SettingsError` for a name that is none, a file that exists, a folder that cannot be written.
"""

from __future__ import annotations

import re
from keyword import iskeyword
from pathlib import Path
from string import Template

from ops.outputs import check_folder, writing
from schemas.errors import SettingsError

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")


def write_plugin(name: str, *, kind: str, plugin: Template, test: Template, folder: Path) -> tuple[Path, Path]:
    """Write both; returns their paths.

    Args:
        kind: what it is called in messages: `reward`.
        plugin, test: with `$name`, `$title` (a name of a class), `$file` and `$test_file`.

    Raises:
        SettingsError: see the module.
    """
    if not _NAME.match(name):
        raise SettingsError(
            f"{kind} name {name!r} is not allowed",
            hint="use 1 to 63 lower-case letters, digits, '-' or '_', beginning with a letter or digit",
        )
    module = name.replace("-", "_")
    if not module.isidentifier():
        raise SettingsError(f"{kind} name {name!r} cannot name a Python file", hint="begin with a letter")
    file, test_file = folder / f"{module}.py", folder / f"test_{module}.py"
    for path in (file, test_file):
        if path.exists():
            raise SettingsError(f"{path} exists already, it is left as it is", hint="choose another name or --into")
    check_folder(folder, setting="--into")
    names = {"name": name, "title": title_of(file), "file": file.name, "test_file": test_file.name}
    with writing(folder, setting="--into"):
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(plugin.substitute(names), encoding="utf-8")
        test_file.write_text(test.substitute(names), encoding="utf-8")
    return file, test_file


def title_of(file: Path) -> str:
    """Name of the class in a file that was written."""
    title = "".join(word.capitalize() for word in file.stem.split("_"))
    return f"{title}_" if iskeyword(title) else title
