"""Where reading begins when a topic is made anew between two questions to the broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest

from schemas.errors import OffsetsLost
from topics.catalog import SAMPLES
from topics.kafka import starts
from topics.kafka.offsets import AdminHandle, BrokerOffsets, Place
from topics.kafka.starts import Starts
from topics.log import ReaderSettings
from topics.starts import Held

PLACE = ("samples", 0)
NAME = "rlweave.r.samples"


@dataclass
class Offsets:
    """The partition as it is now: of the new topic."""

    end: int

    def ranges(self, places: Sequence[Place], *, timeout_s: float) -> dict[Place, tuple[int, int]]:
        assert timeout_s
        return dict.fromkeys(places, (0, self.end))

    def committed(self, group: str, places: Sequence[Place], *, timeout_s: float) -> dict[Place, Held]:
        assert group == "g"
        assert timeout_s
        return dict.fromkeys(places, Held(offset=100, topic_id="old"))


def made(monkeypatch: pytest.MonkeyPatch, ids: list[str]) -> Starts:
    def ask(_: object, names: Sequence[str], *, timeout_s: float) -> dict[str, str]:
        assert timeout_s
        return dict.fromkeys(names, ids.pop(0) if len(ids) > 1 else ids[0])

    monkeypatch.setattr(starts, "ask_ids", ask)
    settings = ReaderSettings(topics=(SAMPLES,), group="g", assign="group")
    found = Starts(cast("AdminHandle", None), settings, full_names={"samples": NAME})
    found._offsets = cast("BrokerOffsets", Offsets(end=3))
    return found


def test_a_topic_made_anew_between_its_id_and_its_offsets_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(monkeypatch, ["old", "new"])
    start = found.find({PLACE: None}, timeout_s=1)[PLACE]
    assert start.offset == 0
    assert start.recreated is not None
    assert start.recreated.topic_id == "new"


def test_a_position_beyond_the_end_of_its_own_topic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OffsetsLost, match="beyond the end 3"):
        made(monkeypatch, ["old"]).find({PLACE: None}, timeout_s=1)
