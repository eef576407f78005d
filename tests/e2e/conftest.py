"""Fixtures of whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.engines.tiny import TinyShape, make_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model directory, made once."""
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=7, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path
