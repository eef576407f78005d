"""What several hosts need: one token, an address that others reach, and a hint when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.settings import WeightsSettings
from pipeline.weights.peer_board import where_to_look
from pipeline.weights.tokens import TOKEN_FILE, load_or_create_token, run_token
from schemas.errors import WeightsError

TOKEN = "t" * 20


def test_the_token_of_the_settings_comes_before_the_environment_and_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run_token(tmp_path / "run", token_file=None)
    assert own == load_or_create_token(tmp_path / "run" / TOKEN_FILE)
    monkeypatch.setenv("RLWEAVE_PEER_TOKEN", "e" * 20)
    assert run_token(tmp_path / "run", token_file=None) == "e" * 20
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert run_token(tmp_path / "run", token_file=tmp_path / "token") == TOKEN


def test_a_token_file_that_is_missing_is_not_made(tmp_path: Path) -> None:
    """Each host would make another one."""
    with pytest.raises(WeightsError, match="cannot be read") as caught:
        run_token(tmp_path, token_file=tmp_path / "token")
    assert "rlweave token" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "short", "with space in it, long enough"])
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("RLWEAVE_PEER_TOKEN", text)
    with pytest.raises(WeightsError, match="RLWEAVE_PEER_TOKEN does not hold a token") as caught:
        run_token(tmp_path, token_file=None)
    assert text == "" or text not in caught.value.message


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_address_is_none_that_others_can_ask(host: str) -> None:
    with pytest.raises(ValidationError, match="advertised_url"):
        WeightsSettings(host=host, port=7070)
    assert WeightsSettings(host=host, port=7070, advertised_url="http://gpu-1:7070").port == 7070


def test_an_advertised_url_needs_a_port_that_stays() -> None:
    with pytest.raises(ValidationError, match="a port that stays"):
        WeightsSettings(advertised_url="http://gpu-1:7070")


@pytest.mark.parametrize("seed", ["http://127.0.0.1:1", "https://localhost:1", "http://[::1]:1"])
def test_a_source_on_loopback_is_told_as_the_likely_reason(seed: str) -> None:
    assert "weights.host" in where_to_look(["http://10.0.0.1:1", seed])


def test_other_sources_are_looked_at_for_port_and_token() -> None:
    hint = where_to_look(["http://10.0.0.1:1"])
    assert "weights.token_file" in hint
    assert "port" in hint
