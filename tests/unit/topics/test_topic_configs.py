"""Configurations of topics that are there, against those that this release asks for."""

from __future__ import annotations

from topics.catalog import SAMPLES
from topics.kafka.admin import _to_bring, _wanted_config

WANTED = _wanted_config(SAMPLES, copies=3)


def test_what_an_older_release_made_is_brought_to_this_one() -> None:
    assert _to_bring(WANTED, seen={**WANTED, "compression.type": "producer"}) == {"compression.type": "zstd"}
    assert _to_bring(WANTED, seen=WANTED) == {}


def test_a_setting_that_the_broker_does_not_know_is_not_asked_of_it() -> None:
    known = {key: value for key, value in WANTED.items() if key != "compression.type"}
    assert _to_bring(WANTED, seen=known) == {}
