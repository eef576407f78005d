"""A run on the memory log, stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.consumers.rewards import plugins
from tests.unit.consumers.scheduler.rig import Rig
from topics.clock import Deadline


@pytest.fixture
def rig() -> Iterator[Rig]:
    plugins.down.clear()
    rig = Rig()
    yield rig
    for stage in rig.started:
        stage.stop(deadline=Deadline.after(5))
