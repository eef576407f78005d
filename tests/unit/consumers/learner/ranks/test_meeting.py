"""How ranks find each other: in any order, after a crash, with other settings, twice, not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from consumers.learner.ranks.backends import serve_store
from consumers.learner.ranks.group import RankGroup
from consumers.learner.ranks.meeting import PLACE_FILE, Seat, digest_of, host, join
from consumers.learner.settings import LearnerSettings
from pipeline.settings import RunSettings
from pipeline.stage import StageContext, make_context
from schemas.errors import LeaseHeld, RankLost, SettingsError
from topics.clock import Deadline
from topics.memory import MemoryLog


@dataclass
class Place:
    """A run's folder, and the ranks that meet in it."""

    folder: Path
    num_ranks: int = 2
    port: int = 0
    log: MemoryLog = field(default_factory=lambda: MemoryLog(run="r", data_partitions=4))
    contexts: dict[int, StageContext] = field(default_factory=dict)  # the newest of each rank

    def context(self, rank: int, *, name: str = "") -> StageContext:
        run = RunSettings(name="r", dir=self.folder, heartbeat_s=0.2)
        made = make_context(self.log, run=run, stage="learner", instance=name or f"learner.{rank}-host-1-ab")
        self.contexts[rank] = made
        return made

    def seat(self, rank: int, *, digest: str = "same") -> Seat:
        settings = LearnerSettings(ranks=self.num_ranks, rendezvous_port=self.port, collective_limit_s=5.0)
        return Seat(rank=rank, settings=settings, digest=digest, on_gpu=False)

    def come(self, rank: int, *, limit_s: float = 15.0, digest: str = "same", name: str = "") -> RankGroup | None:
        meet = host if rank == 0 else join
        return meet(self.context(rank, name=name), self.seat(rank, digest=digest), deadline=Deadline.after(limit_s))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def in_thread(pool: ThreadPoolExecutor, work: Callable[[], RankGroup | None]) -> Future[RankGroup | None]:
    return pool.submit(work)


def check_connected(futures: list[Future[RankGroup | None]]) -> None:
    """All of them are in one group, which works."""
    groups = [future.result(timeout=30) for future in futures]
    with ThreadPoolExecutor(len(groups)) as pool:
        sums = list(pool.map(lambda group: group.sum([1.0]), [group for group in groups if group is not None]))
    assert sums == [[float(len(futures))]] * len(futures)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_ranks_meet_whoever_comes_first(place: Place, order: tuple[int, ...]) -> None:
    place.num_ranks = 3
    with ThreadPoolExecutor(3) as pool:
        check_connected([pool.submit(place.come, rank) for rank in order])


def test_bytes_of_gradients_are_counted_by_how_far_they_come(place: Place) -> None:
    """Three ranks in a ring, two of them on one host: each receives 2/3 of the gradients twice."""
    place.num_ranks, names = 3, ("learner.0-a-b-1-f", "learner.1-a-b-2-f", "learner.2-c-1-f")
    with ThreadPoolExecutor(3) as pool:
        come = [pool.submit(place.come, rank, name=name) for rank, name in enumerate(names)]
        groups = [future.result(timeout=30) for future in come]
        list(pool.map(lambda group: group and group.sum_tensor(torch.ones(300)), groups))
    scopes = ("same_domain", "same_host", "same_domain")
    for rank, scope in enumerate(scopes):
        snapshot = place.contexts[rank].metrics.snapshot()
        assert snapshot[f"network_bytes{{traffic=gradients,scope={scope}}}"] == 4 * 300 * 2 * 2 / 3


def test_they_meet_at_a_fixed_port_without_the_file(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        place.port = free.getsockname()[1]
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(place.come, 1)
        check_connected([pool.submit(place.come, 0), late])


def test_only_the_loopback_address_is_listened_on() -> None:
    store = serve_store("127.0.0.1", 0)
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", store.port), timeout=2):
        pass
    with socket.create_connection(("127.0.0.1", store.port), timeout=2):
        pass


def test_the_address_of_an_earlier_set_is_tried_and_left(place: Place) -> None:
    """Nobody listens at the old address any more; the file then says a new one."""
    path = place.folder / "r" / PLACE_FILE
    path.parent.mkdir()
    path.write_text('{"host": "127.0.0.1", "port": 9, "session": "old"}')
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(place.come, 1)
        check_connected([pool.submit(place.come, 0), late])


def test_ranks_that_have_begun_are_not_joined(place: Place) -> None:
    """A rank that was started anew waits for a rank 0 that gathers, and does not end as if it were one too many."""
    with ThreadPoolExecutor(2) as pool:
        check_connected([pool.submit(place.come, rank) for rank in (0, 1)])
        with pytest.raises(RankLost, match="rank 1 waited 1 s for a rank 0 that gathers"):
            place.come(1, limit_s=1.0)


def test_a_rank_that_does_not_come_is_named(place: Place) -> None:
    place.num_ranks = 4
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(place.come, rank, limit_s=3.0) for rank in (0, 2)]
        with pytest.raises(RankLost, match=r"rank\(s\) 1, 3 of 4"):
            others[0].result(timeout=20)
        with pytest.raises(RankLost, match="rank 2 waited"):
            others[1].result(timeout=20)


def test_other_settings_are_refused_on_both_sides(place: Place) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(place.come, 0), pool.submit(place.come, 1, digest="other")]
        with pytest.raises(SettingsError, match=r"rank 1 .* other settings"):
            both[0].result(timeout=20)
        with pytest.raises(SettingsError, match="different settings"):
            both[1].result(timeout=20)


def test_of_two_processes_of_one_rank_one_takes_part(place: Place) -> None:
    place.num_ranks = 3
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(place.come, 0)
        twins = [pool.submit(place.come, 1, name=f"learner.1-{name}-1-ab") for name in "ab"]
        wait_for_file(place)
        third = pool.submit(place.come, 2)
        outcomes = [twin.exception(timeout=30) for twin in twins]
        (refused,) = [each for each in outcomes if each is not None]
        assert isinstance(refused, LeaseHeld | RankLost), "the latter when it came after all were gathered"
        check_connected([first, third, *(twin for twin, failed in zip(twins, outcomes, strict=True) if failed is None)])


def wait_for_file(place: Place) -> None:
    deadline = Deadline.after(10)
    while not (place.folder / "r" / PLACE_FILE).exists():
        deadline.check("rank 0 to say where it listens")
        threading.Event().wait(0.01)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_ends_the_wait(place: Place, rank: int) -> None:
    context = place.context(rank)
    context.stop.request("test")
    meet = host if rank == 0 else join
    assert meet(context, place.seat(rank), deadline=Deadline.after(30)) is None


def test_a_port_that_is_taken_is_a_wrong_setting(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place.port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match="cannot be listened on"):
            place.come(0)


def test_a_digest_is_of_content() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})
