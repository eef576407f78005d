"""Leases and the peer directory on a real Valkey or Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pytest
from redis import Redis

from pipeline.lease import Lease, LeaseState
from pipeline.redis_client import MAX_MEMBERS, MAX_VALUE_BYTES, RedisClient
from pipeline.weights.directory import PeerDirectory, PeerInfo
from schemas.errors import LeaseHeld
from topics.clock import Deadline

pytestmark = pytest.mark.integration


class _Services(Protocol):
    redis_url: str


@pytest.fixture
def client(services: _Services) -> Iterator[RedisClient]:
    client = RedisClient(services.redis_url, timeout_s=20.0)
    yield client
    client.close()


@pytest.fixture
def admin(services: _Services) -> Iterator[Redis]:
    admin = Redis.from_url(services.redis_url)
    yield admin
    admin.close()


def _wait_until_absent(client: RedisClient, key: str) -> None:
    deadline = Deadline.after(10)
    while client.get_many([key]) != [None]:
        deadline.check(f"key {key} to expire")
        deadline.clock.wait(0.01)


def test_one_owner_at_a_time_and_the_holder_is_named(client: RedisClient, run_name: str) -> None:
    first = Lease(client, key=f"rlweave:{run_name}:lease", owner="learner-a", ttl_s=60)
    second = Lease(client, key=f"rlweave:{run_name}:lease", owner="learner-b", ttl_s=60)
    assert first.acquire().token == 1
    with pytest.raises(LeaseHeld, match=r"is held by learner-a for another [1-9]\d?\.\d s"):
        second.acquire()
    lost = second.renew()
    assert (lost.state, lost.holder) == (LeaseState.LOST, "learner-a")
    assert second.release().state is LeaseState.LOST
    assert first.release().state is LeaseState.HELD
    assert second.acquire().token == 2


def test_a_repeat_by_the_same_owner_answers_yours(client: RedisClient, run_name: str) -> None:
    """Case 18."""
    lease = Lease(client, key=f"rlweave:{run_name}:lease", owner="a", ttl_s=60)
    results = [lease.acquire(), lease.acquire(), lease.renew()]
    assert {(result.state, result.token) for result in results} == {(LeaseState.HELD, 1)}


def test_an_ended_lease_goes_to_a_successor_with_a_higher_token(client: RedisClient, run_name: str) -> None:
    key = f"rlweave:{run_name}:lease"
    stopped = Lease(client, key=key, owner="a", ttl_s=0.2)
    successor = Lease(client, key=key, owner="b", ttl_s=60)
    stopped.acquire()
    deadline = Deadline.after(10)
    while True:
        try:
            result = successor.acquire()
            break
        except LeaseHeld:
            deadline.check("the lease to end")
            deadline.clock.wait(0.02)
    assert result.token == 2
    revived = stopped.renew()
    assert (revived.state, revived.holder) == (LeaseState.LOST, "b")


def test_a_stalled_server_gives_unknown_and_the_claim_is_still_ours(own_redis: str, run_name: str) -> None:
    """Case 18."""
    lease = Lease(RedisClient(own_redis, timeout_s=0.3), key=f"rlweave:{run_name}:lease", owner="a", ttl_s=60)
    with Redis.from_url(own_redis) as admin:
        admin.client_pause(120_000, all=False)  # of writes: with all of them it would not hear of its end either
        assert lease.acquire().state is LeaseState.UNKNOWN
        admin.client_unpause()
    deadline = Deadline.after(20)
    while (result := lease.acquire()).state is LeaseState.UNKNOWN:
        deadline.check("the server to go on")
    assert (result.state, result.token) == (LeaseState.HELD, 1)


def test_what_is_too_long_or_too_much_is_not_read(client: RedisClient, admin: Redis, run_name: str) -> None:
    long, short, many = (f"rlweave:{run_name}:{name}" for name in ("long", "short", "many"))
    admin.set(long, b"x" * (MAX_VALUE_BYTES + 1), ex=60)
    admin.set(short, b"x" * MAX_VALUE_BYTES, ex=60)
    assert client.get_many([long, short, "absent"]) == [None, "x" * MAX_VALUE_BYTES, None]
    admin.sadd(many, "a", b"x" * (MAX_VALUE_BYTES + 1))
    assert client.members(many) == ["a"]
    admin.sadd(many, *range(MAX_MEMBERS))
    assert client.members(many) == []
    admin.delete(many)


def test_peers_are_listed_until_they_withdraw_or_expire(client: RedisClient, run_name: str) -> None:
    directory = PeerDirectory(client, run=run_name, ttl_s=60)
    brief = PeerDirectory(client, run=run_name, ttl_s=0.1)
    one, two = PeerInfo(url="http://10.0.0.1:7", domain="rack-1"), PeerInfo(url="http://10.0.0.2:7")
    assert (directory.announce("one", one), directory.announce("two", two)) == ("", "")
    assert directory.peers().peers == (one, two)
    directory.withdraw("one")
    assert directory.peers().peers == (two,)
    brief.announce("two", two)
    _wait_until_absent(client, f"rlweave:{run_name}:peers:two")
    assert directory.peers().peers == ()


@pytest.mark.parametrize("value", ["{", "[]", '{"url": 1}', '{"url": "file:///x"}', '{"url": "http://h", "domain": 2}'])
def test_a_malformed_entry_is_left_out(client: RedisClient, run_name: str, value: str) -> None:
    directory = PeerDirectory(client, run=run_name, ttl_s=60)
    good = PeerInfo(url="http://10.0.0.1:7")
    directory.announce("good", good)
    client.set(f"rlweave:{run_name}:peers:other", value, ttl_s=60)
    client.add_to_set(f"rlweave:{run_name}:peers", "other", ttl_s=60)
    assert directory.peers().peers == (good,)


def test_a_flushed_directory_fills_again_with_the_next_announce(
    client: RedisClient, admin: Redis, run_name: str
) -> None:
    directory = PeerDirectory(client, run=run_name, ttl_s=60)
    peer = PeerInfo(url="http://10.0.0.1:7")
    directory.announce("one", peer)
    for key in admin.scan_iter(f"rlweave:{run_name}:*"):
        admin.delete(key)
    assert directory.peers().peers == ()
    directory.announce("one", peer)
    assert directory.peers().peers == (peer,)
