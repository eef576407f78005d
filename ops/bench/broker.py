"""The broker of a benchmark: given, that of the local services, or one started for the while.

Failure: `ServicesError` when none can be started.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.services.manager import services_down, services_status, services_up
from ops.services.model import ServicesSettings


@contextmanager
def broker(kafka: str | None, *, state_dir: Path) -> Iterator[str]:
    """The bootstrap address. What was started here is stopped and removed at the end.

    Raises:
        ServicesError: nothing runs and nothing can be started.
    """
    if kafka is not None:
        yield kafka
        return
    known = services_status(ServicesSettings(state_dir=state_dir))
    if known.kafka.running and known.access is None:
        yield known.kafka_bootstrap
        return
    with tempfile.TemporaryDirectory(prefix="rlweave-bench-") as folder:
        settings = ServicesSettings(state_dir=Path(folder))
        try:
            yield services_up(settings).kafka_bootstrap
        finally:
            services_down(settings)
