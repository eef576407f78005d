"""The dashboard's benchmark: a long run made up on a real broker, and the command as a user starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench.dashboard.bench import bench_dashboard
from ops.services.model import ServicesInfo

pytestmark = pytest.mark.integration


def test_a_made_up_run_is_shown_its_drops_are_listed_and_samples_of_it_open(
    services: ServicesInfo, tmp_path: Path
) -> None:
    found = bench_dashboard(quick=True, kafka=services.kafka_bootstrap, state_dir=tmp_path)
    values = found.values
    assert values["dashboard_num_samples"] == 4_000
    for name in ("first_view_s", "all_read_s", "drops_s", "indexed_s", "click_s", "max_rss_bytes"):
        for size in ("", "small_"):
            assert float(values[f"dashboard_{size}{name}"] or 0) > 0
    assert values["dashboard_small_num_samples"] == 400
