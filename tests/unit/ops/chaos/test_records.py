"""Bad records are bad in every form; destroyed ones are named as the audit names them."""

from __future__ import annotations

from random import Random

import pytest

from ops.chaos.faults.poison import _FORMS, _value
from ops.chaos.faults.records import _ids
from ops.chaos.world import Doomed
from ops.replay.sources import decode
from schemas.errors import CodecError
from tests.unit.ops.little_run import manifest, prompt, reward, sample
from topics.catalog import CATALOG, SAMPLES, Topic
from topics.kafka.raw import RawRecord


@pytest.mark.parametrize("topic", CATALOG, ids=lambda topic: topic.name)
@pytest.mark.parametrize("form", _FORMS)
def test_no_form_of_a_bad_record_is_one_of_its_topic(form: str, topic: Topic) -> None:
    for seed in range(20):
        value = _value(form, topic, rng=Random(seed), run="little")
        record = RawRecord(topic="t", partition=0, offset=0, key=b"k", value=value, headers=(), unix_ms=0)
        with pytest.raises(CodecError):
            decode(topic, record)


def test_what_is_destroyed_is_named_as_the_audit_names_it() -> None:
    assert _ids(sample(3, 1)) == {"little/3/1"}
    assert _ids(reward(3, 1)) == {"little/3/1 reward exact"}
    assert _ids(prompt(3)) == {"little/3"}
    assert _ids(manifest("2.7")) == {"version 2.7"}
    assert _ids(None) == set()


def test_the_doomed_are_known_by_topic() -> None:
    doomed = Doomed()
    doomed.add(SAMPLES.name, {"little/3/1"}, num_records=4)
    doomed.add(SAMPLES.name, {"little/3/0"}, num_records=2)
    assert doomed.num_records == 6
    assert doomed.has("samples", "little/3/1")
    assert doomed.has("samples", "little/3/0")
    assert not doomed.has("rewards", "little/3/1")
