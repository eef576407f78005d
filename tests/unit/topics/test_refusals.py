"""A broker that is away is waited for; one that refuses us is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from schemas.errors import AccessDenied, DeliveryError, Fenced
from topics.clock import ManualClock
from topics.kafka.client import Connection
from topics.kafka.errors import is_transient, translated, undelivered
from topics.kafka.refusals import Refusals

AWAY = KafkaError(KafkaError._TRANSPORT, "Connect to 127.0.0.1:1 failed: Connection refused")
REFUSED = KafkaError(
    KafkaError._AUTHENTICATION, "sasl_ssl://h:1/1: SASL authentication error: bad (after 3ms in state X)"
)
CONNECTION = Connection(
    bootstrap="127.0.0.1:1",
    run="any",
    data_partitions=1,
    overrides={"sasl.username": "us", "sasl.password": "s3cr3t", "security.protocol": "SASL_SSL"},
)


class Asked:
    """Brokers that answer, or not, and are counted."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self.error = error
        self.num = 0

    def __call__(self, _limit_s: float) -> object:
        self.num += 1
        if self.error is not None:
            raise KafkaException(self.error)
        return None


@pytest.fixture
def seen() -> Callable[[float], Refusals]:
    """Refusals, so many seconds later."""
    clock = ManualClock()
    made = Refusals(CONNECTION, clock=clock)

    def after(seconds: float) -> Refusals:
        clock.wait(seconds)
        return made

    return after


def test_nothing_is_asked_without_a_refusal(seen: Callable[[float], Refusals]) -> None:
    asked = Asked()
    seen(0).note(AWAY)
    seen(1000).check(asked)
    assert asked.num == 0


def test_a_refusal_that_lasts_ends_the_client_and_names_the_user_and_no_password(
    seen: Callable[[float], Refusals],
) -> None:
    asked = Asked(AWAY)
    seen(0).note(REFUSED)
    seen(5).check(asked)
    assert asked.num == 0
    with pytest.raises(AccessDenied) as caught:
        seen(6).check(asked)
    assert caught.value.message == "Kafka at 127.0.0.1:1 refused the credentials of user 'us': bad"
    assert "s3cr3t" not in repr(CONNECTION) + str(caught.value) + repr(caught.value)


def test_a_broker_that_answers_after_all_settles_it(seen: Callable[[float], Refusals]) -> None:
    asked = Asked()
    seen(0).note(REFUSED)
    seen(11).check(asked)
    seen(11).check(asked)
    assert asked.num == 1


def test_brokers_that_went_away_meanwhile_are_waited_for(seen: Callable[[float], Refusals]) -> None:
    asked = Asked(AWAY)
    seen(0).note(REFUSED)
    seen(5).note(AWAY)
    seen(20).check(asked)
    assert asked.num == 0


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    ],
)
def test_a_missing_rule_is_denied_and_not_waited_for(code: int) -> None:
    error = KafkaError(code)
    assert not is_transient(error)
    assert isinstance(translated(error, doing="writing"), AccessDenied)
    assert isinstance(undelivered(error, doing="writing"), AccessDenied)
    assert translated(error, doing="writing").hint


def test_other_failures_of_a_record_stay_what_they_were() -> None:
    assert isinstance(undelivered(AWAY, doing="writing"), DeliveryError)
    assert isinstance(undelivered(KafkaError(KafkaError._FENCED), doing="writing"), Fenced)


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError.FENCED_LEADER_EPOCH),
        KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION),
        KafkaError(KafkaError.NOT_ENOUGH_REPLICAS),
        KafkaError(KafkaError._NOENT, "Failed to query partition leaders: No leaders found"),
    ],
)
def test_leaders_on_the_move_are_waited_for(error: KafkaError) -> None:
    assert is_transient(error)


def test_nothing_found_is_not_a_leader_on_the_move() -> None:
    assert not is_transient(KafkaError(KafkaError._NOENT, "no such thing"))
