"""The split of chunks among hosts: even, the same everywhere, and hardly another one when a host comes or goes."""

from __future__ import annotations

from random import Random

import pytest

from pipeline.weights.shares import Shares

HOSTS = [f"http://host{number}:1" for number in range(8)]


def _digests(num: int) -> list[str]:
    rng = Random(5)
    return [f"{rng.getrandbits(256):064x}" for _ in range(num)]


def _shares(digests: list[str], *, me: str, others: list[str]) -> Shares:
    shares = Shares(digests, me=me)
    for url in others:
        shares.add(url)
    return shares


def _all(digests: list[str], hosts: list[str]) -> dict[str, Shares]:
    """Every host's own view; each heard of the others in another order."""
    rng = Random(1)
    return {me: _shares(digests, me=me, others=rng.sample(hosts, len(hosts))) for me in hosts}


@pytest.mark.parametrize("num_chunks", [0, 1, 7, 8, 100, 256])
def test_every_chunk_has_one_owner_and_shares_are_even(num_chunks: int) -> None:
    digests = _digests(num_chunks)
    views = _all(digests, HOSTS)
    shares = [view.mine() for view in views.values()]
    assert sorted(digest for share in shares for digest in share) == sorted(digests)
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1


def test_all_hosts_agree_on_the_owner() -> None:
    digests = _digests(100)
    views = _all(digests, HOSTS)
    for me, view in views.items():
        assert all(view.owner(digest) == me for digest in view.mine())
    for digest in digests:
        assert len({view.owner(digest) for view in views.values()}) == 1


def test_a_host_that_leaves_moves_little_but_its_own_share() -> None:
    digests = _digests(800)
    view = _shares(digests, me=HOSTS[0], others=HOSTS[1:])
    before = {digest: view.owner(digest) for digest in digests}
    assert view.remove(HOSTS[3])
    moved = [digest for digest in digests if view.owner(digest) != before[digest]]
    assert sum(owner == HOSTS[3] for owner in before.values()) == 100
    assert len(moved) <= 200


def test_a_host_begins_with_what_it_owns_whoever_else_is_there() -> None:
    digests = _digests(256)
    alone = Shares(digests, me=HOSTS[0]).mine()
    with_others = _shares(digests, me=HOSTS[0], others=HOSTS[1:]).mine()
    assert set(alone[:8]) <= set(with_others)
    assert with_others == [digest for digest in alone if digest in set(with_others)]


def test_a_chunk_to_spare_is_offered_to_one_host_only_and_never_the_next_of_its_owner() -> None:
    digests = _digests(64)
    views = _all(digests, HOSTS)
    slow = HOSTS[2]
    left = views[slow].mine()[-6:]
    offered = [view.spare(left, num_kept=2) for me, view in views.items() if me != slow]
    taken = [digest for digest in offered if digest is not None]
    assert taken
    assert len(taken) == len(set(taken))
    assert not set(taken) & set(left[:2])


def test_nothing_is_spared_of_what_its_owner_is_at() -> None:
    digests = _digests(64)
    views = _all(digests, HOSTS)
    left = views[HOSTS[2]].mine()[-2:]
    assert [view.spare(left, num_kept=2) for view in views.values()] == [None] * 8
    assert views[HOSTS[0]].spare([], num_kept=2) is None
