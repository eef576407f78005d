"""Offsets while leaders move: asked again, never guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from topics.kafka.offsets import AdminHandle, BrokerOffsets

PLACE = ("rlweave.x.samples", 0)
INVALID = -1001  # what the library gives instead of an offset, without an error


@dataclass(frozen=True)
class Info:
    offset: int


@dataclass
class Client:
    """Answers one after the other; stale until the cluster's metadata is asked for."""

    answers: list[int | KafkaError]
    num_relearned: int = 0
    asked: list[int] = field(default_factory=list)

    def list_offsets(
        self, request: Mapping[TopicPartition, object], **_: object
    ) -> Mapping[TopicPartition, Future[Info]]:
        answer = self.answers[min(self.num_relearned, len(self.answers) - 1)]
        future: Future[Info] = Future()
        if isinstance(answer, KafkaError):
            future.set_exception(KafkaException(answer))
        else:
            self.asked.append(answer)
            future.set_result(Info(answer))
        return dict.fromkeys(request, future)

    def list_topics(self, **_: object) -> object:
        self.num_relearned += 1
        return None


@dataclass
class Handle:
    made: Client

    def client(self) -> Client:
        return self.made


def offsets(answers: Iterable[int | KafkaError]) -> tuple[BrokerOffsets, Client]:
    client = Client(list(answers))
    return BrokerOffsets(cast("AdminHandle", Handle(client))), client


@pytest.mark.parametrize(
    "answer",
    [
        INVALID,
        KafkaError(KafkaError.FENCED_LEADER_EPOCH),
        KafkaError(KafkaError._NOENT, "Failed to query partition leaders: No leaders found"),
    ],
)
def test_a_stale_answer_is_asked_again_with_fresh_metadata(answer: int | KafkaError) -> None:
    asked, client = offsets([answer, 7])
    assert asked.ends([PLACE]) == {PLACE: 7}
    assert client.num_relearned == 1


def test_an_offset_that_is_none_is_never_passed_on() -> None:
    asked, _ = offsets([INVALID])
    with pytest.raises(KafkaException, match="no offset of"):
        asked.ends([PLACE], timeout_s=0.3)


def test_a_refusal_is_not_asked_again() -> None:
    asked, client = offsets([KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)])
    with pytest.raises(KafkaException):
        asked.ends([PLACE])
    assert client.num_relearned == 0
