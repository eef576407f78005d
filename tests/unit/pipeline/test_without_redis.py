"""What stands on Redis when there is none: a warning, never an exception, never a password in a message."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pipeline.lease import Lease, LeaseState
from pipeline.redis_client import RedisClient, safe_address
from pipeline.weights.directory import PeerDirectory, PeerInfo
from schemas.errors import RedisUnavailable, SettingsError

_PEER = PeerInfo(url="http://127.0.0.1:1")


@pytest.fixture
def client() -> Iterator[RedisClient]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: a connection is refused
        client = RedisClient(f"redis://me:hunter2@127.0.0.1:{unused.getsockname()[1]}/0", timeout_s=0.5)
        yield client
        client.close()


def test_the_address_is_named_and_the_password_is_not(client: RedisClient) -> None:
    with pytest.raises(RedisUnavailable, match=r"Redis at redis://127\.0\.0\.1:\d+/0 did not answer PING") as caught:
        client.ping()
    assert "hunter2" not in str(caught.value) + str(caught.value.__cause__) + client.address


@pytest.mark.parametrize("url", ["http://:hunter2@h", "redis://h:hunter2", "hunter2"])
def test_a_url_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read") as caught:
        RedisClient(url)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://u:p@host:6379/1", "redis://host:6379/1"),
        ("unix:///run/r.sock", "unix:///run/r.sock"),
        ("redis://:p@host", "redis://host"),
        ("redis://host/0?password=p", "redis://host/0"),
    ],
)
def test_safe_address(url: str, address: str) -> None:
    assert safe_address(url) == address


def test_a_lease_is_unknown_with_a_warning(client: RedisClient) -> None:
    lease = Lease(client, key="k", owner="me", ttl_s=5)
    for result in (lease.acquire(), lease.renew(), lease.release()):
        assert result.state is LeaseState.UNKNOWN
        assert "did not answer" in result.warning


def test_the_directory_is_empty_with_a_warning(client: RedisClient) -> None:
    directory = PeerDirectory(client, run="r")
    assert "is not in the directory" in directory.announce("i", _PEER)
    assert directory.withdraw("i") != ""
    found = directory.peers()
    assert (found.peers, "only the manifest's seeds" in found.warning) == ((), True)


def test_a_run_without_redis_has_an_empty_directory() -> None:
    directory = PeerDirectory(None, run="r")
    assert (directory.announce("i", _PEER), directory.withdraw("i")) == ("", "")
    assert (directory.peers().peers, directory.peers().warning) == ((), "")
