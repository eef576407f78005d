"""Which published tensors each parameter of a vLLM model is made of.

Role: the map under loading and checking: vLLM fuses tensors (q, k, v into one; gate and up into one) and renames some.
Data in: parameter names of the model, published names, ties. Data out: parameter -> its parts, in order.
Invariants: every published tensor is a part of something and every parameter has parts, or it is an error.
Failure: `TraceError`, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

Placed: TypeAlias = "tuple[str, object] | None"  # parameter and which part of it; None: vLLM ignores the tensor

SHARD_ORDER = {"q": 0, "k": 1, "v": 2}


class TraceError(Exception):
    """A parameter or a published tensor has no counterpart."""


def trace(
    parameters: Iterable[str],
    published: Iterable[str],
    *,
    ties: Mapping[str, str],
    place: Callable[[str], Placed],
    packed: Mapping[str, Sequence[str]],
) -> dict[str, tuple[str, ...]]:
    """Map each parameter to published names.

    Args:
        parameters: of the vLLM model, aliases of tied ones included.
        ties: published alias -> published owner.
        place: vLLM's own renaming: published name -> (parameter, part).
        packed: fused module -> modules it is made of, as vLLM declares it.

    Raises:
        TraceError: naming what has no counterpart.
    """
    wanted = set(parameters)
    found: dict[str, list[tuple[int, str]]] = {}
    lost: list[str] = []
    for name in [*sorted(published), *sorted(ties)]:
        spot = _spot(name, wanted=wanted, place=place, packed=packed)
        if spot is not None:
            found.setdefault(spot[0], []).append((spot[1], ties.get(name, name)))
        elif name not in ties:  # a tie that vLLM has no parameter of its own for is the same tensor there too
            lost.append(name)
    bare = sorted(wanted - set(found))
    if lost or bare:
        raise TraceError(
            f"published and not in the engine: {_some(lost)}; in the engine and not published: {_some(bare)}"
        )
    return {name: tuple(part for _, part in sorted(parts)) for name, parts in found.items()}


def _spot(
    name: str, *, wanted: set[str], place: Callable[[str], Placed], packed: Mapping[str, Sequence[str]]
) -> tuple[str, int] | None:
    placed = place(name)
    if placed is None:
        return None
    target, shard = placed
    if target in wanted:
        return target, _index(shard)
    module, _, leaf = target.rpartition(".")
    prefix, _, last = module.rpartition(".")
    for fused, parts in packed.items():
        whole = ".".join(each for each in (prefix, fused, leaf) if each)
        if last in parts and whole in wanted:
            return whole, list(parts).index(last)
    return None


def _index(shard: object) -> int:
    if isinstance(shard, str):
        return SHARD_ORDER.get(shard, 0)
    return shard if isinstance(shard, int) else 0


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"
