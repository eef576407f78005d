"""The way to a version: deltas from the state at hand, or the nearest anchor and the deltas after it.

Role: a pure plan over what is published; an engine that joins late, comes back or fell behind uses the same one.
Data in: the manifest wanted, the published ones, the digest of the state at hand. Data out: a `Route`.
Invariants: each delta's base is the result of what goes before it, by digest; nothing is fetched when the state at hand
is what is wanted already.
Failure: `WeightsError` when a base on the way is not published any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.weights.manifest import as_anchor, as_delta, transfer_bytes
from schemas.errors import WeightsError
from schemas.records import Manifest, Version


@dataclass(frozen=True, kw_only=True)
class Route:
    """What to fetch, in order."""

    anchor: Manifest | None  # None: begin with the state at hand
    deltas: tuple[Manifest, ...]

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """All of it."""
        return self.deltas if self.anchor is None else (self.anchor, *self.deltas)

    @property
    def num_bytes(self) -> int:
        """To be transferred, when nothing is there yet."""
        return sum(map(transfer_bytes, self.manifests))


def find_route(target: Manifest, *, published: Mapping[Version, Manifest], held_digest: str | None) -> Route:
    """The shortest way to `target`.

    Args:
        published: by version; bases that are not in it cannot be used.
        held_digest: state digest of what is at hand; None: nothing.

    Raises:
        WeightsError: there is no way.
    """
    anchored: Route | None = None
    deltas: list[Manifest] = []
    at: Manifest | None = target
    if target.state_digest == held_digest:
        return Route(anchor=None, deltas=())
    while at is not None:
        anchor, step = as_anchor(at), as_delta(at)
        if anchor is not None and anchored is None:
            anchored = Route(anchor=anchor, deltas=tuple(deltas[::-1]))
        if step is None:
            break
        deltas.append(step)
        if step.base_digest == held_digest:
            return _shorter(Route(anchor=None, deltas=tuple(deltas[::-1])), anchored)
        at = _base_of(step, published=published)
    if anchored is None:
        raise WeightsError(
            f"version {target.version} is a delta, and neither an anchor before it nor a way from the state at hand is "
            f"published (looked back {len(deltas)} versions); it is not fetched",
            hint="wait for the next anchor, or lower weights.anchor_every",
        )
    return anchored


def _base_of(step: Manifest, *, published: Mapping[Version, Manifest]) -> Manifest | None:
    base = None if step.base is None else published.get(step.base)
    if base is None or base.state_digest != step.base_digest or not base.version < step.version:
        return None
    return base


def _shorter(chain: Route, anchored: Route | None) -> Route:
    return chain if anchored is None or chain.num_bytes <= anchored.num_bytes else anchored
