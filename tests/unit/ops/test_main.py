"""The command line as a whole: what it says when a package of an extra is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ops.cli.main import missing_package


def test_a_command_without_its_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from ops.cli.main import main; main(['demo'])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr == "error: package 'torch' is not installed\nhint: pip install 'rlweave[torch]'\n"
    assert ran.returncode == 2


def test_a_module_of_no_extra_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"ours\.gone"):
        missing_package(ModuleNotFoundError("No module named 'ours.gone'", name="ours.gone"))
