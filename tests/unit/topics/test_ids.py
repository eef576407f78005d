"""Ids of topics while brokers go and come: what the library keeps of a dead one is asked for anew."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from topics.kafka.ids import IdWatch, ask_ids, ask_known_ids
from topics.kafka.offsets import AdminHandle

NAME = "rlweave.x.samples"


@dataclass(frozen=True)
class Described:
    topic_id: str


@dataclass
class Client:
    """Waits for a controller that is dead, until the cluster's metadata is asked for."""

    is_fresh: bool = False

    def describe_topics(self, topics: TopicCollection, **_: object) -> dict[str, Future[Described]]:
        future: Future[Described] = Future()
        if self.is_fresh:
            future.set_result(Described("id-1"))
        else:
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT, "Timed out waiting for controller")))
        return dict.fromkeys(topics.topic_names, future)

    def list_topics(self, **_: object) -> None:
        self.is_fresh = True


@dataclass
class Handle:
    made: Client = field(default_factory=Client)

    def client(self) -> Client:
        return self.made

    def renew(self, client: Client) -> None:
        if client is self.made:
            self.made = Client(is_fresh=True)


@pytest.mark.parametrize("ask", [ask_ids, ask_known_ids])
def test_the_next_try_knows_that_a_broker_is_gone(ask: Callable[..., dict[str, str]]) -> None:
    handle = cast("AdminHandle", Handle())
    with pytest.raises(KafkaException, match="waiting for controller"):
        ask(handle, [NAME])
    assert ask(handle, [NAME]) == {NAME: "id-1"}


def test_a_watch_whose_look_failed_asks_by_another_client() -> None:
    watch = IdWatch(cast("AdminHandle", Handle()), [NAME], every_s=0.0)
    looks = [watch.look() for _ in range(4)]
    assert looks == [{}, {}, {}, {NAME: "id-1"}]
