"""Collectives: messages of any length, sums, limits."""

from __future__ import annotations

import pytest
import torch

from consumers.learner.ranks import group as group_module
from consumers.learner.ranks.group import RankGroup
from schemas.errors import RankLost
from tests.unit.consumers.learner.ranks.crew import together


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 300_000])
def test_what_rank_0_sends_arrives_whole(size: int) -> None:
    content = bytes(number % 251 for number in range(size))

    def work(group: RankGroup) -> bytes:
        if group.rank == 0:
            group.send(content)
            return content
        return group.receive()

    assert together(3, work) == [content] * 3


@pytest.mark.parametrize("sizes", [(0, 0, 0), (5, 0, 4088), (4089, 7, 0), (3, 200_000, 4090)])
def test_what_the_ranks_say_arrives_at_rank_0_in_order(sizes: tuple[int, ...]) -> None:
    contents = [bytes([rank + 1]) * size for rank, size in enumerate(sizes)]
    found = together(3, lambda group: group.gather(contents[group.rank]))
    assert found == [contents, [], []]


def test_a_message_beyond_the_limit_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "MAX_MESSAGE_BYTES", 10)

    def work(group: RankGroup) -> str:
        with pytest.raises(ValueError, match="at most 10"):
            group.gather(b"x" * 11)
        return "refused"

    assert together(2, work) == ["refused"] * 2


def test_a_length_beyond_the_limit_is_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(group: RankGroup) -> str:
        if group.rank == 0:
            slot = torch.zeros(4096, dtype=torch.uint8)
            slot[:8] = 255
            group._broadcast(slot, doing="lying", limit=None)
            return "lied"
        with pytest.raises(ValueError, match="at most"):
            group.receive()
        return "refused"

    assert together(2, work) == ["lied", "refused"]


def test_sums_are_in_float64_and_tensors_are_the_same_bits_everywhere() -> None:
    def work(group: RankGroup) -> tuple[list[float], torch.Tensor]:
        values = group.sum([2.0**53, float(group.rank), 1.0])
        tensor = torch.randn(10_001, generator=torch.Generator().manual_seed(group.rank))
        group.sum_tensor(tensor)
        return values, tensor

    found = together(3, work)
    assert {tuple(values) for values, _ in found} == {(3 * 2.0**53, 3.0, 3.0)}
    assert all(torch.equal(tensor, found[0][1]) for _, tensor in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_tensors_of_any_dtype_are_shared_bit_by_bit(dtype: torch.dtype) -> None:
    given = torch.arange(24).reshape(2, 3, 4).to(dtype)

    def work(group: RankGroup) -> torch.Tensor:
        tensor = given.clone() if group.rank == 0 else torch.zeros_like(given)
        group.share(tensor)
        scalar = torch.tensor(7.0) if group.rank == 0 else torch.tensor(0.0)
        group.share(scalar)
        assert scalar.item() == 7.0
        return tensor

    assert all(torch.equal(tensor, given) for tensor in together(3, work))


def test_a_rank_that_stays_away_ends_the_wait_of_the_others_and_nothing_goes_on_after_that() -> None:
    def work(group: RankGroup) -> str:
        if group.rank == 2:
            return "away"
        with pytest.raises(RankLost, match="summing"):
            group.sum([1.0])
        with pytest.raises(RankLost, match="before"):
            group.gather(b"")
        assert not group.send_last(b"")
        return "lost"

    assert together(3, work, limit_s=1.0) == ["lost", "lost", "away"]
