"""The page on chaos names every kind of fault, every figure of the result and every option, and no other kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ops.chaos.faults import KINDS
from ops.chaos.result import ChaosResult, as_json
from ops.cli.chaos import chaos

PAGE = (Path(__file__).parents[3] / "docs" / "chaos.md").read_text(encoding="utf-8")
TABLE = PAGE.split("## Kinds of faults")[1].split("## Its result")[0]


def test_every_kind_has_a_row_and_every_row_a_kind() -> None:
    first = [row.split("|")[1] for row in TABLE.splitlines() if row.startswith("| `")]
    assert sorted(name for cell in first for name in re.findall(r"`([a-z-]+)`", cell)) == sorted(
        kind.name for kind in KINDS
    )


@pytest.mark.parametrize("key", sorted(as_json(ChaosResult(seed=1, brokers=1, ranks=1, planned=0))))
def test_every_figure_is_explained(key: str) -> None:
    assert f"`{key}`" in PAGE or key in {"seed", "brokers", "ranks"}


def test_every_option_of_the_page_exists() -> None:
    known = {name for parameter in chaos.params for name in parameter.opts} | {"--state-dir", "--run", "--group"}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) - known == set()
