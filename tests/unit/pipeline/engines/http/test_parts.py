"""Settings, keys, reading of JSON, stamps and the probe's verdict, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.engines.http.api_key import ApiKey, read_key
from pipeline.engines.http.exchange import BadAnswer
from pipeline.engines.http.opening import open_http_engine
from pipeline.engines.http.reading import parse
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.http.stamps import ForeignWeights, Stamp, Stamps
from pipeline.engines.http.verdict import Before, mean_difference, problem
from schemas.errors import EngineError
from schemas.records import Version, VersionRun

V1, V2 = Version(lineage=1, step=1), Version(lineage=1, step=2)


def test_urls_are_taken_as_people_write_them() -> None:
    settings = HttpSettings(base_urls=("http://a:8000/v1/", "https://b", "http://c/prefix/"))
    assert settings.base_urls == ("http://a:8000", "https://b", "http://c/prefix")


@pytest.mark.parametrize("url", ["a:8000", "ftp://a", "http://", "http://a?x=1", "http://user:secret@a"])
def test_other_urls_are_refused_and_a_password_is_not_shown(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        HttpSettings(base_urls=(url,))
    if "secret" in url:
        assert "would end up in logs" in str(caught.value)


def test_a_process_without_a_server_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="rollout process 1 has no server"):
        open_http_engine(tmp_path, max_sequences=1, slot=1, settings=HttpSettings(base_urls=("http://a",)))


def test_keys_come_from_a_file_or_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("  from-file\n")
    monkeypatch.setenv("A_KEY", "from-env")
    assert read_key(HttpSettings()).headers == {}
    assert read_key(HttpSettings(api_key_file=path)).headers == {"Authorization": "Bearer from-file"}
    key = read_key(HttpSettings(api_key_env="A_KEY"))
    assert key.headers == {"Authorization": "Bearer from-env"}
    assert "from-env" not in repr(key)
    assert key.blanked("you sent from-env") == "you sent ***"
    assert repr(ApiKey(None)) == "ApiKey(none)"


@pytest.mark.parametrize("content", ["", "two words", "a\nb", "schl\u00fcssel"])
def test_a_key_that_is_none_is_refused_without_showing_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(EngineError, match="does not hold an API key") as caught:
        read_key(HttpSettings(api_key_file=path))
    assert not content or content not in caught.value.message


def test_a_key_that_cannot_be_had_names_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(EngineError, match="NO_KEY"):
        read_key(HttpSettings(api_key_env="NO_KEY"))
    with pytest.raises(EngineError, match="absent"):
        read_key(HttpSettings(api_key_file=tmp_path / "absent"))
    with pytest.raises(EngineError, match="both"):
        read_key(HttpSettings(api_key_env="NO_KEY", api_key_file=tmp_path / "absent"))


def test_json_is_read_by_type_and_errors_name_the_path() -> None:
    root = parse(b'{"a": [{"b": 1, "c": -0.5}, {"b": 2, "c": -1}], "t": true, "n": null}')
    assert root.get("a").column("b").integers() == [1, 2]
    assert root.get("a").column("c").logprobs() == [-0.5, -1]
    assert root.get("n").absent
    assert root.get("missing").absent
    reads: list[tuple[Callable[[], object], str]] = [
        (lambda: root.get("t").integer(), "answer.t is True, not a whole number"),
        (lambda: root.get("t").number(), "answer.t is True, not a finite number"),
        (lambda: root.get("a").text(), "not a text"),
        (lambda: root.get("a").get("b"), "answer.a is .*, not an object"),
        (lambda: root.get("t").items(), "answer.t is True, not a list"),
        (lambda: root.get("a").column("c").integers(), r"answer.a\[\*\].c\[0\] is -0.5, not a whole number"),
        (lambda: root.get("a").column("d"), "every element has 'd'"),
    ]
    for read, said in reads:
        with pytest.raises(BadAnswer, match=said):
            read()
    with pytest.raises(BadAnswer, match="is not JSON"):
        parse(b'{"a": NaN}')


def test_stamps_are_of_labels_given_here() -> None:
    stamps = Stamps()
    first, second = stamps.new_label(V1), stamps.new_label(V2)
    again = stamps.new_label(V2)
    assert len({first, second, again}) == 3, "a second load of a version is another load"
    stamps.accept(first, Stamp(version=V1, verified=True))
    stamps.accept(second, Stamp(version=V2, verified=False))
    assert stamps.runs([(first, 3), (second, 2)], num_tokens=5) == (
        VersionRun(num_tokens=3, version=V1, verified=True),
        VersionRun(num_tokens=2, version=V2, verified=False),
    )
    with pytest.raises(BadAnswer, match="says of 3 tokens"):
        stamps.runs([(first, 3)], num_tokens=5)
    stamps.reject(again)
    with pytest.raises(BadAnswer, match="failed their check"):
        stamps.runs([(first, 3), (again, 2)], num_tokens=5)
    for label in ("default", Stamps().new_label(V1)):
        with pytest.raises(ForeignWeights):
            stamps.runs([(label, 5)], num_tokens=5)


def test_the_verdict_of_a_probe() -> None:
    old, new, noise = [[-1.0, -2.0]], [[-1.5, -2.5]], 1e-4
    near = [[value + noise for value in new[0]]]
    before = Before(server=old, reference=old)
    assert problem(near, reference=new, tolerance=1e-3, before=before) is None
    assert "differ from the published" in str(problem(old, reference=new, tolerance=1e-3, before=before))
    assert "differ from the published" in str(problem([[float("nan")] * 2], reference=new, tolerance=1e9, before=None))
    # within the tolerance, and exactly what it was before: it said yes and loaded nothing
    close = [[-1.01, -2.01]]
    assert "nothing was loaded" in str(problem(old, reference=close, tolerance=0.05, before=before))
    assert problem(old, reference=close, tolerance=0.05, before=None) is None
    assert problem(old, reference=old, tolerance=0.05, before=before) is None, "the same weights again"
    assert mean_difference([[1.0]], [[1.0, 2.0]]) == float("inf")
