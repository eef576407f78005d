"""Being let in, or not, on real servers: every refusal is one named error that comes soon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ops.services.certificates import Authority
from ops.services.model import ServicesAccess, ServicesInfo
from pipeline.credentials import redis_client
from pipeline.settings import RedisSettings
from schemas.errors import AccessDenied, DeliveryError, LogUnavailable, RedisRefused
from tests.e2e.support import config_of
from tests.integration.tls_servers import certificate, showing
from tests.unit.ops.little_run import reward
from topics.access import ADMIN, grants
from topics.catalog import REWARDS, SAMPLES, WEIGHTS, full_name
from topics.clock import Deadline
from topics.kafka import KafkaLog, refusals
from topics.kafka.acls import AccessRules
from topics.kafka.configs import alter_configs
from topics.kafka.offsets import AdminHandle
from topics.log import ReaderHooks, ReaderSettings, WriterSettings

HOOKS = ReaderHooks(dead_letter=lambda _: None, lost=lambda _: None)
AWAY_S = 60.0  # the limit for a broker that is away


def open_log(services: ServicesInfo, run: str, *, role: str = ADMIN, **changes: str) -> KafkaLog:
    config = {name: value for name, value in (config_of(services, role=role) | changes).items() if value}
    return KafkaLog(services.kafka_bootstrap, run=run, data_partitions=1, config=config)


def refusal(log: KafkaLog) -> AccessDenied:
    """The error of connecting, which comes soon and has advice."""
    deadline = Deadline.after(AWAY_S)
    with pytest.raises(AccessDenied) as caught:
        log.connect(deadline=deadline)
    assert deadline.remaining_s() > AWAY_S / 2
    assert caught.value.hint
    return caught.value


def until_refused(act: Callable[[], object], *, limit_s: float = 60.0) -> None:
    """Act again and again; something raises in the end."""
    deadline = Deadline.after(limit_s)
    while True:
        deadline.check("a refusal")
        act()


def access(services: ServicesInfo) -> ServicesAccess:
    assert services.access is not None
    return services.access


@pytest.fixture
def run_with_rules(secure_services: ServicesInfo, run_name: str) -> Iterator[str]:
    """Topics of a run, and the rules of rollout and reward."""
    log = open_log(secure_services, run_name)
    log.admin().ensure_topics()
    rules = [(f"User:{role}", grant) for role in ("rollout", "reward") for grant in grants(role, run=run_name)]
    known = AccessRules(secure_services.kafka_bootstrap, config=config_of(secure_services, role=ADMIN))
    assert known.apply(rules) == len(rules)
    assert known.apply(rules) == 0
    yield run_name
    log.admin().delete_topics()


def test_topics_of_an_older_release_are_a_warning_to_whom_may_not_change_them(
    secure_services: ServicesInfo, run_with_rules: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = full_name(run_with_rules, SAMPLES)
    handle = AdminHandle(open_log(secure_services, run_with_rules)._connection)
    alter_configs(handle, {name: {"message.timestamp.type": "CreateTime"}})
    log = open_log(secure_services, run_with_rules, role="rollout")

    def warns() -> bool:
        caplog.clear()
        assert log.admin().ensure_topics() == []
        return bool(caplog.messages)

    deadline = Deadline.after(20)
    while not warns():
        deadline.check("the warning")
    assert f"topics {name} were made by an older release and lack message.timestamp.type" in caplog.messages[0]
    open_log(secure_services, run_with_rules).admin().ensure_topics()  # as `rlweave up` does
    while warns():
        deadline.check("the topic to be brought to this release")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"sasl.password": "not-this-one"}, "refused the credentials of user 'admin'"),
        ({"sasl.username": "nobody"}, "refused the credentials of user 'nobody'"),
        ({"sasl.mechanism": "PLAIN"}, "Unsupported SASL mechanism"),
        ({"security.protocol": ""}, "speaks TLS, and kafka.security is 'plaintext'"),
        ({"ssl.ca.location": ""}, "certificate of Kafka at"),
    ],
)
def test_wrong_credentials_are_one_error_at_once(
    secure_services: ServicesInfo, run_name: str, changes: dict[str, str], part: str
) -> None:
    error = refusal(open_log(secure_services, run_name, **changes))
    assert part in error.message
    assert "not-this-one" not in error.message + error.hint
    assert secure_services.kafka_bootstrap in error.message


def test_a_certificate_of_another_authority_is_refused(
    secure_services: ServicesInfo, run_name: str, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(Authority("another").certificate)
    error = refusal(open_log(secure_services, run_name, **{"ssl.ca.location": str(other)}))
    assert "certificate of Kafka at" in error.message
    assert "kafka.ca_file" in error.hint


@pytest.mark.parametrize(("kind", "part"), [("expired", "has expired"), ("other host", "not valid for '127.0.0.1'")])
def test_a_certificate_that_is_over_or_for_another_host_is_refused_and_says_why(
    tmp_path: Path, run_name: str, kind: str, part: str
) -> None:
    authority, ca_file = Authority(), tmp_path / "ca.pem"
    ca_file.write_bytes(authority.certificate)
    with showing(certificate(authority, kind), tmp_path) as port:
        config = {"security.protocol": "SSL", "ssl.ca.location": str(ca_file)}
        log = KafkaLog(f"127.0.0.1:{port}", run=run_name, data_partitions=1, config=config)
        assert part in refusal(log).message
        settings = RedisSettings(url=f"rediss://127.0.0.1:{port}/0", ca_file=ca_file)
        with pytest.raises(RedisRefused) as caught:
            redis_client(settings, timeout_s=20.0).check()
    assert part in caught.value.message


def test_a_client_with_tls_on_a_plain_port_is_told(services: ServicesInfo, run_name: str, tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(Authority().certificate)
    config = {"security.protocol": "SSL", "ssl.ca.location": str(ca_file)}
    log = KafkaLog(services.kafka_bootstrap, run=run_name, data_partitions=1, config=config)
    assert "does not speak TLS" in refusal(log).message
    url = services.redis_url.replace("redis://", "rediss://")
    with pytest.raises(RedisRefused, match="no TLS with Redis"):
        redis_client(RedisSettings(url=url, ca_file=ca_file), timeout_s=0.5).check()


def test_who_shows_no_user_is_not_let_in(secure_services: ServicesInfo, run_name: str) -> None:
    config = {"security.protocol": "SSL", "ssl.ca.location": str(access(secure_services).ca_file)}
    log = KafkaLog(secure_services.kafka_bootstrap, run=run_name, data_partitions=1, config=config)
    with pytest.raises(LogUnavailable, match="no Kafka broker answered"):
        log.connect(deadline=Deadline.after(1))


def test_a_reward_consumer_may_write_rewards_and_not_weights(
    secure_services: ServicesInfo, run_with_rules: str
) -> None:
    log = open_log(secure_services, run_with_rules, role="reward")
    writer = log.writer(WriterSettings(linger_ms=0.0))
    writer.write(REWARDS, reward(0, 0, value=1.0), partition=0)
    writer.flush(deadline=Deadline.after(10))
    writer.write_raw(WEIGHTS, key=b"0.1", value=None, partition=0)
    with pytest.raises(AccessDenied, match=r"writing to \S+weights \[0\]: the broker does not allow it"):
        writer.flush(deadline=Deadline.after(10))
    writer.close(deadline=Deadline.after(5))
    assert open_log(secure_services, run_with_rules).admin().describe()[WEIGHTS.name][0][1] == 0


def test_the_learners_transactional_id_is_of_no_use_to_a_rollout(
    secure_services: ServicesInfo, run_with_rules: str
) -> None:
    log = open_log(secure_services, run_with_rules, role="rollout")
    writer = log.writer(WriterSettings(transactional_id=f"rlweave.{run_with_rules}.learner"))
    with pytest.raises(AccessDenied, match="taking over transactional id"):
        writer.start(deadline=Deadline.after(10))


def test_reading_what_no_rule_allows_ends_with_one_error(secure_services: ServicesInfo, run_with_rules: str) -> None:
    log = open_log(secure_services, run_with_rules, role="reward")
    reader = log.reader(ReaderSettings(topics=(WEIGHTS,)), hooks=HOOKS)
    with pytest.raises(AccessDenied, match=r"weights"):
        until_refused(lambda: reader.poll(10, deadline=Deadline.after(0.2)))
    reader.close()


def test_missing_rules_are_all_named_at_start(secure_services: ServicesInfo, run_with_rules: str) -> None:
    log = open_log(secure_services, run_with_rules, role="rollout")
    log.check_access(grants("rollout", run=run_with_rules))
    with pytest.raises(AccessDenied) as caught:
        log.check_access(grants("learner", run=run_with_rules))
    assert f"write rlweave.{run_with_rules}.ledger" in caught.value.message
    assert f"read rlweave.{run_with_rules}.rewards" in caught.value.message
    assert f"read rlweave.{run_with_rules}.prompts" not in caught.value.message
    assert "rlweave acls" in caught.value.hint


@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_a_client_that_is_refused_while_it_works_gives_up(
    secure_services: ServicesInfo, run_name: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(refusals, "_LIMIT_S", 0.5)
    monkeypatch.setattr(refusals, "_ASK_S", 0.5)
    log = open_log(secure_services, run_name, **{"sasl.password": "changed meanwhile"})
    reader = log.reader(ReaderSettings(topics=(WEIGHTS,)), hooks=HOOKS)
    writer = log.writer(WriterSettings(linger_ms=0.0))
    acts: dict[str, Callable[[], object]] = {
        "reader": lambda: reader.poll(10, deadline=Deadline.after(0.2)),
        "writer": lambda: writer.write_raw(WEIGHTS, key=b"0.1", value=None, partition=0),
    }
    with pytest.raises(AccessDenied, match="refused the credentials"):
        until_refused(acts[kind])
    reader.close()
    with suppress(AccessDenied, DeliveryError):  # of what was queued
        writer.close(deadline=Deadline.after(0.1))


def test_redis_lets_in_who_has_the_password_and_checks_the_certificate(secure_services: ServicesInfo) -> None:
    files = access(secure_services)
    right = RedisSettings(url=secure_services.redis_url, password_file=files.redis_password_file, ca_file=files.ca_file)
    client = redis_client(right, timeout_s=20.0)
    client.check()
    client.set("rlweave:test", "value", ttl_s=5.0)
    assert client.get("rlweave:test") == "value"
    client.close()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("password", "refused our password"),
        ("no password", "refused our password"),
        ("no authority", "certificate of Redis"),
        ("plain", "speaks TLS"),
    ],
)
def test_redis_refuses_with_one_error(secure_services: ServicesInfo, tmp_path: Path, change: str, part: str) -> None:
    files = access(secure_services)
    wrong = tmp_path / "wrong.password"
    wrong.write_text("not-this-one\n")
    settings = RedisSettings(
        url=secure_services.redis_url if change != "plain" else secure_services.redis_url.replace("rediss", "redis"),
        password_file={"password": wrong, "no password": None}.get(change, files.redis_password_file),
        ca_file=None if change in ("no authority", "plain") else files.ca_file,
    )
    client = redis_client(settings, timeout_s=20.0)
    with pytest.raises(RedisRefused) as caught:
        client.check()
    assert part in caught.value.message
    assert "not-this-one" not in caught.value.message
    client.close()
