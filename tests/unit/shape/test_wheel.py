"""What a built wheel carries."""

from __future__ import annotations

import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from ops.start_checks import PACKAGES
from tests.unit.shape.tree import ROOT, files


def test_a_wheel_holds_every_file_of_the_packages_and_nothing_else(tmp_path: Path) -> None:
    [built] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(built) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        [entry_points] = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
        commands = wheel.read(entry_points).decode()
    assert names == {path for path in files() if path.partition("/")[0] in PACKAGES}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "schemas/avro/sample/v1.avsc" in names
    assert "rlweave = ops.cli.main:main" in commands
