"""Every decoder, fuzzed for half a second from golden bytes; `make fuzz` takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.catalog import DECODERS
from tests.fuzz.plain import fuzz

SECONDS = 0.5
SEED = 20_261_129
SHARE = 0.6  # of its lines: less says that the inputs do not get past the first check any more


@pytest.mark.parametrize("name", DECODERS)
def test_only_errors_of_ours_come_out_quickly_and_in_little_memory(name: str, tmp_path: Path) -> None:
    report = fuzz(DECODERS[name], tmp_path, seconds=SECONDS, seed=SEED)
    findings = [
        f"{finding.kind} {finding.place}: {finding.said} from {data[:200]!r}"
        for finding, data in report.findings.values()
    ]
    assert findings == []
    assert report.share >= SHARE, f"{report.num_inputs} inputs did not reach {report.missed}"
