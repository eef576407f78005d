"""The codec benchmark measures what it says and names its numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from ops.bench.catalog import BENCHES, BenchRequest
from ops.bench.codec import _contenders
from ops.bench.result import BenchResult, Table
from ops.cli.bench import NAMES


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return BENCHES["codec"](BenchRequest(quick=True))


def test_the_command_offers_what_there_is() -> None:
    assert tuple(BENCHES) == NAMES


def test_every_number_is_in_the_json_under_a_flat_key(result: BenchResult, tmp_path: Path) -> None:
    result.save(tmp_path / "deep" / "codec.json")
    values = orjson.loads((tmp_path / "deep" / "codec.json").read_bytes())
    for key in ("codec", "avro_arrays", "orjson", "json"):
        assert values[f"{key}_encode_per_s"] > 0
        assert values[f"{key}_decode_per_s"] > 0
        assert values[f"{key}_bytes"] > 0
    for key in ("avro_arrays", "orjson", "json"):
        assert {f"encode_over_{key}", f"decode_over_{key}", f"bytes_share_of_{key}"} <= values.keys()
    assert {"num_cpus", "load_average_before", "load_average_after", "num_repeats"} <= values.keys()
    assert not any(isinstance(value, dict | list) for value in values.values())


def test_packed_bytes_decode_faster_than_arrays_of_numbers(result: BenchResult) -> None:
    ratio = result.values["decode_over_avro_arrays"]
    assert ratio is not None
    assert ratio > 3


def test_every_contender_carries_the_whole_sample() -> None:
    ours, *others = _contenders()
    wanted = ours.decode(ours.encode())
    for other in others:
        found = other.decode(other.encode())
        assert isinstance(found, dict)
        assert found["completion_tokens"] == wanted.completion_tokens.tolist()  # type: ignore[attr-defined]
        assert np.allclose(found["logprobs"], wanted.logprobs)  # type: ignore[attr-defined]
        assert len(found["loss_mask"]) == 1024
        assert found["group"] == 7
        assert found["completion_text"]


def test_material_is_the_same_each_time() -> None:
    assert _contenders()[0].encode() == _contenders()[0].encode()


def test_a_table_lines_up() -> None:
    table = Table(title="t", headers=("name", "n"), rows=(("a", "1"), ("longer", "1,000")))
    assert table.text().splitlines() == ["t", "name        n", "-------------", "a           1", "longer  1,000"]
