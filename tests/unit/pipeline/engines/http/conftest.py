"""Fixtures of the HTTP engine's tests: one model directory, servers and engines that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.http.engine import HttpEngine
from tests.inference_server import InferenceServer
from tests.unit.pipeline.engines.http.support import make_folder, open_engine, start_server


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model directory."""
    return make_folder(tmp_path_factory.mktemp("http-model"))


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., InferenceServer]]:
    """Starts servers."""
    with ExitStack() as ending:

        def start(**options: Any) -> InferenceServer:
            server = start_server(folder, **options)
            ending.callback(server.close)
            return server

        yield start


@pytest.fixture
def connect(folder: Path) -> Iterator[Callable[..., HttpEngine]]:
    """Opens engines."""
    with ExitStack() as ending:

        def open_one(server: InferenceServer, **settings: Any) -> HttpEngine:
            engine = open_engine(folder, server, **settings)
            ending.callback(engine.close)
            return engine

        yield open_one
