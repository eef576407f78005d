"""What the local services are told, and what is refused before anything starts."""

from __future__ import annotations

import json
import ssl
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.addresses import kafka_access, redis_access
from ops.services.certificates import Authority
from ops.services.cluster import Cluster
from ops.services.kafka_settings import BrokerPlace, broker_properties
from ops.services.manager import services_down, services_status, services_up
from ops.services.model import Layout, ServicesError, ServicesSettings
from ops.services.secure import ensure_secure_files, secure_files
from ops.services.state import StateFile
from topics.access import ROLES

PLACE = BrokerPlace(node=2, ports=(10, 11), controllers={1: 21, 2: 11, 3: 31})


def properties(layout: Layout, place: BrokerPlace = PLACE) -> dict[str, str]:
    text = broker_properties(place, layout=layout, data=Path("data"), files=secure_files(Path("state")))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len({line.partition("=")[0] for line in lines}) == len(lines), "a property is set twice"
    return dict(line.split("=", 1) for line in lines)


def test_three_brokers_keep_three_copies_of_which_two_are_needed() -> None:
    found = properties(Layout(brokers=3))
    assert found["node.id"] == "2"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:21,2@127.0.0.1:11,3@127.0.0.1:31"
    for name in ("default.replication.factor", "offsets.topic.replication.factor"):
        assert found[name] == "3"
    assert found["transaction.state.log.replication.factor"] == "3"
    assert (found["min.insync.replicas"], found["transaction.state.log.min.isr"]) == ("2", "2")


def test_one_broker_keeps_one() -> None:
    found = properties(Layout(), BrokerPlace(node=1, ports=(10, 11), controllers={1: 11}))
    assert (found["offsets.topic.replication.factor"], found["min.insync.replicas"]) == ("1", "1")
    assert found["listener.security.protocol.map"] == "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT"


def test_secure_brokers_want_a_user_from_clients_a_certificate_from_each_other_and_a_rule_for_everything() -> None:
    place = BrokerPlace(node=1, ports=(10, 11, 12), controllers={1: 12})
    found = properties(Layout(secure=True), place)
    assert found["listener.security.protocol.map"] == "CLIENT:SASL_SSL,BROKER:SSL,CONTROLLER:SSL"
    assert found["listener.name.broker.ssl.client.auth"] == "required"
    assert found["listener.name.controller.ssl.client.auth"] == "required"
    assert found["authorizer.class.name"].endswith("StandardAuthorizer")
    assert "allow.everyone.if.no.acl.found" not in found
    assert "password" not in "\n".join(found.values())
    assert all("127.0.0.1" in each for each in found["listeners"].split(","))


def test_secrets_are_made_once_and_for_their_owner_only(tmp_path: Path) -> None:
    files = ensure_secure_files(tmp_path)
    passwords = files.passwords()
    assert set(passwords) == set(ROLES)
    assert len(set(passwords.values())) == len(ROLES)
    assert all(len(each) >= 32 for each in passwords.values())
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert tmp_path.stat().st_mode & 0o077 == 0
    assert ensure_secure_files(tmp_path).passwords() == passwords
    context = ssl.create_default_context(cafile=str(files.ca))
    assert context.cert_store_stats()["x509_ca"] == 1


def test_a_certificate_names_its_hosts(tmp_path: Path) -> None:
    issued = Authority().issue("server", hosts=("localhost", "127.0.0.1"))
    path = tmp_path / "a.pem"
    path.write_bytes(issued.key + issued.certificate)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    assert issued.key.startswith(b"-----BEGIN PRIVATE KEY-----"), "the broker reads PKCS#8 only"


def test_another_layout_than_the_first_is_refused(tmp_path: Path) -> None:
    StateFile(tmp_path).write_layout(Layout(brokers=3))
    for asked in (
        ServicesSettings(state_dir=tmp_path, brokers=1),
        ServicesSettings(state_dir=tmp_path, secure=True),
    ):
        with pytest.raises(ServicesError, match=r"3 broker\(s\), not secure"):
            services_up(asked)
    assert not services_status(ServicesSettings(state_dir=tmp_path, brokers=3)).running
    with pytest.raises(ServicesError, match="1 to 9"):
        services_up(ServicesSettings(state_dir=tmp_path / "new", brokers=10))


def test_a_directory_of_before_there_were_layouts_is_one_open_broker(tmp_path: Path) -> None:
    (tmp_path / "services.json").write_text(json.dumps({"kafka": {"ports": [1, 2], "process": None, "external": None}}))
    layout = StateFile(tmp_path).read_layout()
    assert layout is not None
    assert (layout.brokers, layout.secure) == (1, False)


def test_a_drill_needs_services(tmp_path: Path) -> None:
    with pytest.raises(ServicesError, match="no services are known"):
        Cluster(tmp_path)


def test_access_is_told_to_clients_of_secure_services_only(tmp_path: Path) -> None:
    StateFile(tmp_path / "open").directory.mkdir()
    open_info = services_status(ServicesSettings(state_dir=tmp_path / "open"))
    assert (kafka_access(open_info), redis_access(open_info)) == ({}, {})
    (tmp_path / "secure").mkdir()
    StateFile(tmp_path / "secure").write_layout(Layout(secure=True))
    info = services_status(ServicesSettings(state_dir=tmp_path / "secure"))
    files = secure_files(tmp_path / "secure")
    assert kafka_access(info) == {
        "security": "sasl_ssl",
        "credentials_dir": files.credentials,
        "ca_file": files.ca,
    }
    assert redis_access(info) == {"password_file": files.redis_password, "ca_file": files.ca}


@pytest.mark.parametrize("call", [services_up, services_status, services_down])
def test_an_address_with_a_password_is_refused_and_remembered_nowhere(
    tmp_path: Path, call: Callable[[ServicesSettings], object]
) -> None:
    settings = ServicesSettings(state_dir=tmp_path / "state", redis="redis://:s3cr3t@127.0.0.1:1/0")
    with pytest.raises(ServicesError, match="holds a password") as caught:
        call(settings)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))
    assert not settings.state_dir.exists()
