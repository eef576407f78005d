"""`make docs`: the site is built without a warning, and no page of it asks another host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# What a browser fetches by itself; links that a person follows are free.
FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\"'\s>]+")


def test_the_site_is_whole_and_asks_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr

    wanted = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert wanted - {path.relative_to(tmp_path) for path in tmp_path.rglob("*.html")} == set()
    found = {path.name: FETCHED.findall(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.html")}
    assert {name: hits for name, hits in found.items() if hits} == {}
    styles = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?https?:[^)\"']*", styles) == []
