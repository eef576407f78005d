"""Prompt sources: what a row becomes, the order of an epoch, and what a user is told about bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.sources import PromptItem, SkippedLine, Source, SourceSettings, open_source
from pipeline.sources.base import index_after
from schemas.errors import PluginError, RecordInvalid, SettingsError
from schemas.records import Message

SUM = {"task": "chain_sum", "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}


def jsonl(tmp_path: Path, *lines: object, name: str = "prompts.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def opened(path: Path, **fields: object) -> Source:
    return open_source(SourceSettings.model_validate({"files": [path], "shuffle": False, **fields}), seed=0)


def test_row_forms(tmp_path: Path) -> None:
    source = opened(
        jsonl(
            tmp_path,
            {"question": "4 + 3 =", "answer": 7, "level": 2, "tag": "sum"},
            {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]},
            {"prompt": "once"},
            {"token_ids": [1, 2, 300]},
        ),
        epochs=1,
    )
    assert source.num_items == 4
    assert source.item(0) == PromptItem(text="4 + 3 =", answer="7", metadata={"level": "2", "tag": "sum"})
    assert source.item(1).messages == (Message(role="system", content="be brief"), Message(role="user", content="hi"))
    assert source.item(2).text == "once"
    assert np.frombuffer(source.item(3).token_ids or b"", dtype="<i4").tolist() == [1, 2, 300]


def test_extract_prefix_suffix_and_chat(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"question": "State the answer: 4 + 3 = please"})
    shaped = {"extract": r"\d \+ \d =", "prefix": "<", "suffix": ">"}
    assert opened(path, **shaped).item(0).text == "<4 + 3 =>"
    assert opened(path, chat=True, **shaped).item(0).messages == (Message(role="user", content="<4 + 3 =>"),)


def test_extract_takes_its_group(tmp_path: Path) -> None:
    assert opened(jsonl(tmp_path, {"question": "Q: why?"}), extract="Q: (.*)").item(0).text == "why?"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"question": "  "}, "empty"),
        ({"question": ""}, "empty"),
        ({"token_ids": []}, "empty"),
        ({"messages": []}, "empty"),
        ({"question": 7}, "not text"),
        ({"token_ids": [1, -1]}, "whole number"),
        ({"token_ids": [True]}, "whole number"),
        ({"messages": [{"role": "user"}]}, "content"),
    ],
)
def test_row_without_prompt_is_refused(tmp_path: Path, row: object, why: str) -> None:
    with pytest.raises(RecordInvalid, match=why) as caught:
        opened(jsonl(tmp_path, row)).item(0)
    assert caught.value.reason == "prompt_invalid"


def test_extract_without_match_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordInvalid, match="matches nothing"):
        opened(jsonl(tmp_path, {"question": "no digits"}), extract=r"\d").item(0)


def test_bad_lines_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"question": "a"}, "{not json", "", [1], {"answer": "1"}, {"question": "b"})
    skipped: list[SkippedLine] = []
    source = open_source(SourceSettings(files=(path,), shuffle=False, epochs=1), seed=0, on_skipped=skipped.append)
    assert [source.item(index).text for index in range(2)] == ["a", "b"]
    assert [line.line for line in skipped] == [2, 3, 4, 5]
    assert {line.file for line in skipped} == {str(path)}


def test_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.jsonl"):
        opened(tmp_path / "absent.jsonl")


def test_no_usable_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no usable line"):
        opened(jsonl(tmp_path, "nonsense"))


def test_file_that_changed_is_an_error_not_another_prompt(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"question": "a"}, {"question": "bbbb"})
    source = opened(path)
    jsonl(tmp_path, {"question": "a longer first line"}, {"question": "c"})
    with pytest.raises(SettingsError, match="changed"):
        source.item(1)


@given(num_rows=st.integers(1, 40), epochs=st.integers(1, 3), seed=st.integers(0, 2**31 - 1))
def test_every_epoch_visits_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, epochs: int, seed: int
) -> None:
    path = jsonl(tmp_path_factory.mktemp("rows"), *({"question": f"q{row}"} for row in range(num_rows)))
    source = open_source(SourceSettings(files=(path,), epochs=epochs), seed=seed)
    again = open_source(SourceSettings(files=(path,), epochs=epochs), seed=seed)
    assert source.num_items == num_rows * epochs
    items = [source.item(index) for index in range(num_rows * epochs)]
    assert items == [again.item(index) for index in range(num_rows * epochs)]
    for epoch in range(epochs):
        part = items[epoch * num_rows : (epoch + 1) * num_rows]
        assert {item.text for item in part} == {f"q{row}" for row in range(num_rows)}
    for index, item in enumerate(items):
        assert index_after(source, epoch=item.epoch, source_index=item.source_index) == index + 1


def test_epochs_have_different_orders(tmp_path: Path) -> None:
    path = jsonl(tmp_path, *({"question": str(row)} for row in range(50)))
    source = opened(path, shuffle=True)
    orders = [[source.item(50 * epoch + position).text for position in range(50)] for epoch in range(2)]
    assert orders[0] != orders[1]
    assert source.num_items is None


def test_reasoning_gym_keeps_the_entry() -> None:
    settings = SourceSettings.model_validate({"kind": "reasoning_gym", **SUM, "size": 20, "extract": r"\d+ [+-] \d+ ="})
    source = open_source(settings, seed=3)
    item = source.item(5)
    entry = json.loads(item.metadata["entry"])
    assert item.metadata["task"] == "chain_sum"
    assert item.answer == entry["answer"]
    assert item.text is not None
    assert item.text in entry["question"]
    assert item == open_source(settings, seed=3).item(5)
    assert item != open_source(settings, seed=4).item(5)


def test_unknown_task_lists_close_matches() -> None:
    with pytest.raises(SettingsError, match="chainsum") as caught:
        open_source(SourceSettings(kind="reasoning_gym", task="chainsum"), seed=0)
    assert "chain_sum" in caught.value.hint


def test_task_config_that_is_refused() -> None:
    with pytest.raises(SettingsError, match="bogus"):
        open_source(SourceSettings(kind="reasoning_gym", task="chain_sum", config={"bogus": 1}), seed=0)


def plugin(tmp_path: Path, text: str) -> Source:
    path = tmp_path / "mine.py"
    path.write_text(text)
    settings = SourceSettings(kind="plugin", plugin=f"{path}:rows", config={"first": 5}, epochs=1, shuffle=False)
    return open_source(settings, seed=0)


def test_plugin_rows(tmp_path: Path) -> None:
    source = plugin(
        tmp_path, "def rows(*, seed, first):\n    return [{'question': f'{first + i}'} for i in range(3)]\n"
    )
    assert [source.item(index).text for index in range(3)] == ["5", "6", "7"]
    assert source.num_items == 3


def test_plugin_without_length_is_endless(tmp_path: Path) -> None:
    source = plugin(
        tmp_path,
        "class rows:\n    def __init__(self, seed, first): pass\n"
        "    def __getitem__(self, index): return {'question': str(index)}\n",
    )
    assert source.num_items is None
    item = source.item(10**6)
    assert item.text == "1000000"
    assert index_after(source, epoch=item.epoch, source_index=item.source_index) == 10**6 + 1


@pytest.mark.parametrize("text", ["def rows(): return []", "def rows(seed, first): return 7"])
def test_plugin_of_another_form(tmp_path: Path, text: str) -> None:
    with pytest.raises(PluginError, match="rows"):
        plugin(tmp_path, text)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "reasoning_gym"},
        {"kind": "plugin", "files": ["a"], "plugin": "a:b"},
        {"files": ["a"], "extract": "("},
        {"files": ["a"], "epochs": 0},
    ],
)
def test_settings_that_contradict_themselves(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SourceSettings.model_validate(fields)


def test_import_is_light() -> None:
    heavy = ("torch", "reasoning_gym", "transformers")
    code = f"import sys, pipeline.sources; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
