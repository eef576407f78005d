"""The decisions of many hosts that fetch the same version, played through on a model of their links.

The model: every host and the source have one up- and one downlink; a chunk takes 50 ms on an otherwise idle link, and
transfers share their links fairly. News arrive at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from pipeline.weights.directory import PeerInfo
from pipeline.weights.news import Member, News
from pipeline.weights.peer_board import Fault, PeerBoard, Problem
from pipeline.weights.swarm import Ask, Swarm
from schemas.errors import WeightsError
from schemas.records import ChunkRef
from topics.clock import ManualClock

_SEED = "http://seed:1"
_CHUNK_S = 0.05
_DEAD = Problem(fault=Fault.DEAD, detail="gone")


def _chunks(num: int) -> list[ChunkRef]:
    rng = Random(7)
    return [ChunkRef(digest=f"{rng.getrandbits(256):064x}", num_bytes=1) for _ in range(num)]


@dataclass
class Host:
    """One host of the model."""

    url: str
    domain: str
    swarm: Swarm
    has: set[str] = field(default_factory=set)
    done_s: float | None = None
    alive: bool = True
    frozen: bool = False  # asks for nothing; its server goes on


@dataclass
class Transfer:
    """A chunk on its way."""

    to: Host
    ask: Ask
    left_s: float = _CHUNK_S


class World:
    """Hosts, one seed, and the chunks between them."""

    def __init__(self, *, hosts: int, chunks: int, domains: int = 1, slow: float = 1.0) -> None:
        self.clock = ManualClock()
        self.chunks = _chunks(chunks)
        self.slow = slow  # share of a link's rate between domains
        self.narrow: dict[str, float] = {}  # link -> share of a link's rate
        self.hosts = [self._host(number, domain=f"d{number * domains // hosts}") for number in range(hosts)]
        self.transfers: list[Transfer] = []
        self.sent: dict[str, int] = {}
        self.num_crossed = 0

    def _host(self, number: int, *, domain: str) -> Host:
        url = f"http://host{number}:1"
        swarm = Swarm(
            self.chunks,
            me=Member(url=url, domain=domain, swarm="1.1"),
            seeds=[_SEED],
            board=PeerBoard(clock=self.clock, backoff_s=0.5, max_backoff_s=2.0),
            clock=self.clock,
            parallel=16,
            rng=Random(number),
        )
        return Host(url=url, domain=domain, swarm=swarm)

    def join(self, host: Host) -> None:
        """The seed tells everybody of the host, and the host of everybody."""
        self._tell(host, _SEED, News(domain="d0"))
        for other in self.hosts:
            if other is not host and other.alive:
                self._tell(host, _SEED, News(joined=(self._member(other),)))
                self._tell(other, _SEED, News(joined=(self._member(host),)))
                self._tell(host, other.url, News(chunks=tuple(other.has)))

    def run(self, *, until: Callable[[], bool] | None = None, limit_s: float = 300.0) -> None:
        """Let time pass until every live host is done, or `until`."""
        while not (until() if until is not None else self.all_done):
            assert self.clock.now_s < limit_s, [host.swarm.num_missing for host in self.hosts]
            for host in self.hosts:
                while host.alive and not host.frozen and host.done_s is None and (ask := host.swarm.next()) is not None:
                    self.transfers.append(Transfer(to=host, ask=ask))
            self._pass_time()

    @property
    def all_done(self) -> bool:
        return all(host.done_s is not None for host in self.hosts if host.alive and not host.frozen)

    def kill(self, host: Host) -> None:
        host.alive = False
        self.transfers = [transfer for transfer in self.transfers if transfer.to is not host]
        cut = [transfer for transfer in self.transfers if transfer.ask.url == host.url]
        self.transfers = [transfer for transfer in self.transfers if transfer not in cut]
        for transfer in cut:
            transfer.to.swarm.report(transfer.ask, problem=_DEAD)
        for other in self.hosts:
            if other.alive:
                other.swarm.lost(host.url, _DEAD)
                self._tell(other, _SEED, News(left=(self._member(host),)))

    def _pass_time(self) -> None:
        rates = self._rates()
        step_s = min([_CHUNK_S / 4, *(transfer.left_s / rates[id(transfer)] for transfer in self.transfers)])
        self.clock.advance(step_s)
        for transfer in list(self.transfers):
            transfer.left_s -= rates[id(transfer)] * step_s
            if transfer.left_s <= 1e-9:
                self.transfers.remove(transfer)
                self._arrive(transfer)

    def _rates(self) -> dict[int, float]:
        """Max-min fair shares: the link with the least for each of its transfers is filled first."""
        links: dict[str, list[Transfer]] = {}
        for transfer in self.transfers:
            for link in self._links(transfer):
                links.setdefault(link, []).append(transfer)
        room = {link: self.slow if link.startswith("between") else self.narrow.get(link, 1.0) for link in links}
        rates: dict[int, float] = {}
        while len(rates) < len(self.transfers):
            open_on = {link: [t for t in on if id(t) not in rates] for link, on in links.items()}
            tightest = min((room[link] / len(on), link) for link, on in open_on.items() if on)
            for transfer in open_on[tightest[1]]:
                rates[id(transfer)] = max(tightest[0], 1e-9)
                for link in self._links(transfer):
                    room[link] -= tightest[0]
        return rates

    def _links(self, transfer: Transfer) -> list[str]:
        links = [f"up {transfer.ask.url}", f"down {transfer.to.url}"]
        crossing = f"between, to {transfer.to.domain}"
        return [*links, crossing] if self._crosses(transfer) else links

    def _crosses(self, transfer: Transfer) -> bool:
        return transfer.to.domain != self._domain_of(transfer.ask.url)

    def _domain_of(self, url: str) -> str:
        return next((host.domain for host in self.hosts if host.url == url), "d0")

    def _arrive(self, transfer: Transfer) -> None:
        host, digest = transfer.to, transfer.ask.chunk.digest
        self.sent[transfer.ask.url] = self.sent.get(transfer.ask.url, 0) + 1
        self.num_crossed += self._crosses(transfer)
        host.swarm.report(transfer.ask, problem=None)
        host.has.add(digest)
        for other in self.hosts:
            if other is not host and other.alive:
                self._tell(other, host.url, News(chunks=(digest,)))
        if host.swarm.num_missing == 0 and host.done_s is None:
            host.done_s = self.clock.now_s

    def _tell(self, host: Host, url: str, news: News) -> None:
        if url == _SEED or url in host.swarm._domains:
            host.swarm.heard(url, news)

    def _member(self, host: Host) -> Member:
        return Member(url=host.url, domain=host.domain, swarm="1.1")


def _joined(**sizes: int) -> World:
    world = World(**sizes)
    for host in world.hosts:
        world.join(host)
    return world


def test_eight_hosts_take_about_as_long_as_one_copy_and_the_source_sends_about_one() -> None:
    world = _joined(hosts=8, chunks=256)
    world.run()
    assert world.clock.now_s <= 1.05 * 256 * _CHUNK_S
    assert world.sent[_SEED] <= 1.02 * 256


def test_hosts_that_do_not_know_each_other_yet_hardly_double_anything() -> None:
    world = World(hosts=8, chunks=256)
    world.run(until=lambda: world.clock.now_s > 2 * _CHUNK_S)  # every host believes to be alone
    for host in world.hosts:
        world.join(host)
    world.run()
    assert world.sent[_SEED] <= 1.1 * 256


def test_one_copy_crosses_between_domains() -> None:
    world = World(hosts=8, chunks=128, domains=2, slow=0.25)
    for host in world.hosts:
        world.join(host)
    world.run()
    assert world.num_crossed <= 1.05 * 128
    assert world.clock.now_s <= 1.15 * 128 * _CHUNK_S / 0.25


def test_the_others_do_the_work_of_a_slow_host() -> None:
    world = _joined(hosts=8, chunks=256)
    slow, *others = world.hosts
    world.narrow[f"down {slow.url}"] = 0.25
    world.run(until=lambda: all(host.done_s is not None for host in others))
    assert world.clock.now_s <= 1.15 * 256 * _CHUNK_S
    assert world.sent[_SEED] <= 1.02 * 256


def test_a_host_that_knows_of_no_other_begins_with_few_requests() -> None:
    """Others may be about to come, and many large requests at once would all be slow."""
    world = World(hosts=1, chunks=64)
    (one,) = world.hosts
    asks = [ask for _ in range(16) if (ask := one.swarm.next()) is not None]
    assert len(asks) == 2
    one.swarm.report(asks[0], problem=None)
    assert sum(one.swarm.next() is not None for _ in range(16)) == 2
    world = World(hosts=1, chunks=64)
    world.run()
    assert world.clock.now_s <= 1.01 * 64 * _CHUNK_S


@pytest.mark.parametrize("victim", range(3))
def test_a_host_killed_half_way_costs_little(victim: int) -> None:
    world = _joined(hosts=8, chunks=256)
    world.run(until=lambda: len(world.hosts[victim].has) >= 128)
    world.kill(world.hosts[victim])
    world.run()
    assert world.clock.now_s <= 1.3 * 256 * _CHUNK_S
    assert world.sent[_SEED] <= 1.15 * 256


def test_a_host_that_stands_still_does_not_hold_up_the_others() -> None:
    world = _joined(hosts=4, chunks=128)
    world.run(until=lambda: len(world.hosts[0].has) >= 32)
    world.hosts[0].frozen = True
    world.run()
    assert world.clock.now_s <= 1.8 * 128 * _CHUNK_S
    assert world.sent[_SEED] <= 1.2 * 128


def test_a_late_host_takes_from_its_peers_and_hardly_from_the_source() -> None:
    world = World(hosts=5, chunks=128)
    late = world.hosts.pop()
    for host in world.hosts:
        world.join(host)
    world.run()
    from_source = world.sent[_SEED]
    world.hosts.append(late)
    world.join(late)
    world.run()
    assert world.sent[_SEED] - from_source <= 4


def test_the_rarest_chunk_is_taken_first() -> None:
    world = _joined(hosts=4, chunks=8)
    one, two, three, four = world.hosts
    rare, common = one.swarm._members.shares._digests[0], one.swarm._members.shares._digests[1:]
    for digest in common:
        for holder in (two, three):
            one.swarm.heard(holder.url, News(chunks=(digest,)))
    one.swarm.heard(four.url, News(chunks=(rare,)))
    ask = one.swarm.next()
    assert ask is not None
    assert (ask.chunk.digest, ask.url) == (rare, four.url)


def test_a_late_request_is_made_again_elsewhere() -> None:
    world = _joined(hosts=3, chunks=4)
    one, two, three = world.hosts
    for digest in one.swarm._members.shares._digests:
        one.swarm.heard(two.url, News(chunks=(digest,)))
    asks = [ask for _ in range(4) if (ask := one.swarm.next()) is not None]
    assert [ask.url for ask in asks] == [two.url, two.url, two.url, two.url][: len(asks)]
    world.clock.advance(1.0)
    one.swarm.report(asks[0], problem=None)
    stuck = asks[1]
    one.swarm.heard(three.url, News(chunks=(stuck.chunk.digest,)))
    world.clock.advance(20.0)
    again = [ask for _ in range(8) if (ask := one.swarm.next()) is not None]
    assert (stuck.chunk.digest, three.url, True) in [(ask.chunk.digest, ask.url, ask.again) for ask in again]


def test_without_peers_or_with_refusals_only_it_ends() -> None:
    clock = ManualClock()
    board = PeerBoard(clock=clock, backoff_s=1.0, max_backoff_s=1.0)
    chunks = _chunks(1)
    swarm = Swarm(chunks, me=None, seeds=[_SEED], board=board, clock=clock, parallel=2, rng=Random(0))
    ask = swarm.next()
    assert ask is not None
    swarm.report(ask, problem=Problem(fault=Fault.REFUSED, detail="401"))
    assert swarm.next() is None
    with pytest.raises(WeightsError, match=r"no peer is left .*refused: 401"):
        swarm.wait_s()


def test_a_listener_leaves_the_bringing_to_members() -> None:
    clock = ManualClock()
    board = PeerBoard(clock=clock, backoff_s=1.0, max_backoff_s=1.0)
    swarm = Swarm(_chunks(4), me=None, seeds=[_SEED], board=board, clock=clock, parallel=2, rng=Random(0))
    member = Member(url="http://host:1", domain="", swarm="1.1")
    assert swarm.heard(_SEED, News(joined=(member,))) == [PeerInfo(url="http://host:1")]
    assert swarm.next() is None
    swarm.heard(member.url, News(chunks=(_chunks(4)[2].digest,)))
    ask = swarm.next()
    assert ask is not None
    assert (ask.chunk, ask.url) == (_chunks(4)[2], member.url)


def test_beside_a_seed_everything_is_taken_from_it() -> None:
    clock = ManualClock()
    board = PeerBoard(clock=clock, backoff_s=1.0, max_backoff_s=1.0)
    me = Member(url=_SEED, domain="", swarm="1.1")
    swarm = Swarm(_chunks(4), me=me, seeds=[_SEED], board=board, clock=clock, parallel=8, rng=Random(0))
    swarm.heard(_SEED, News(joined=(Member(url="http://other:1", domain="", swarm="1.1"),)))
    asks = [ask for _ in range(5) if (ask := swarm.next()) is not None]
    assert [ask.url for ask in asks] == [_SEED] * 4
