"""The rule by which scheduler and engines read a publish command."""

from __future__ import annotations

import pytest

from pipeline.waves import is_released, is_target

WAVES = (("a", "b"), ("c",), ("d",))


@pytest.mark.parametrize(
    ("wave", "released"),
    [(-5, ""), (-1, ""), (0, "ab"), (1, "abc"), (2, "abcde"), (99, "abcde")],
)
def test_a_wave_gives_leave_to_those_up_to_it_and_the_last_one_to_who_is_in_none(wave: int, released: str) -> None:
    assert "".join(name for name in "abcde" if is_released(name, targets=(), waves=WAVES, wave=wave)) == released


def test_without_waves_all_may_load() -> None:
    assert is_released("a", targets=(), waves=(), wave=0)


def test_who_is_no_target_may_not() -> None:
    assert is_target("a", targets=())
    assert not is_target("a", targets=("b",))
    assert not is_released("a", targets=("b",), waves=WAVES, wave=2)
    assert not is_released("a", targets=("b",), waves=(), wave=0)
    assert is_released("b", targets=("b",), waves=WAVES, wave=0)
