"""The page has words for what the ledger says."""

from __future__ import annotations

import re

from ops.dashboard.assets import load_assets
from schemas.reasons import Reason


def test_every_reason_of_the_ledger_has_a_sentence_on_the_page() -> None:
    text = load_assets()["words.js"].content.decode()
    means = text.partition("MEANS = {")[2].partition("};")[0]
    assert set(re.findall(r'(\w+): "', means)) == {reason.value for reason in Reason}
