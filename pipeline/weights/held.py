"""The state an engine was last given, kept as the base of the next delta.

Role: turns a fetched route into the tensors of a version, in place where a delta allows it.
Data in: a `Route` whose chunks are in the store. Data out: the tensors, as the engine's decoder makes them.
Invariants: `digest` names what the memory holds, or is None: then it is nobody's version and is never given out. The
tensors given out change with the next `advance`; an engine copies them before that.
Failure: `WeightsError`; the state is then gone if anything was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.delta_state import apply_delta, verify_state
from pipeline.weights.listing import open_route
from pipeline.weights.route import Route
from pipeline.weights.wire_state import WireState
from schemas.errors import WeightsError
from schemas.records import Manifest, TensorEntry

T = TypeVar("T")


class HeldState(Generic[T]):
    """See the module.

    Args:
        decode: a full anchor's chunks to tensors in plain memory: numpy arrays or torch tensors on the CPU.
        merge: makes whole models of adapters; None: who asks takes none, or takes them as they travel.
    """

    def __init__(
        self,
        decode: Callable[[Manifest, ChunkStore], Mapping[str, T]],
        *,
        merge: Callable[[Manifest, Mapping[str, T]], Mapping[str, T]] | None = None,
    ) -> None:
        self._decode = decode
        self._merge = merge
        self._tensors: Mapping[str, T] = {}
        self._entries: tuple[TensorEntry, ...] = ()
        self._state: WireState | None = None  # over the same memory as the tensors; made for the first delta
        self.digest: str | None = None

    def advance(self, target: Manifest, route: Route, *, store: ChunkStore) -> Mapping[str, T]:
        """Follow the route; the result is verified as a whole.

        Raises:
            WeightsError: a chunk, a base, a span or the result is not what the manifests say.
        """
        route = open_route(route, store=store)
        digest, self.digest = self.digest, None
        if route.anchor is not None:
            digest = self._begin(route.anchor, store=store)
        if digest is None:
            raise WeightsError(f"version {target.version} needs a base and there is none; it is not loaded")
        if route.deltas:
            digest = self._apply(route.deltas, digest=digest, store=store)
        if digest != target.state_digest:
            raise WeightsError(f"the way to version {target.version} ends at state {digest}; it is not loaded")
        self.digest = digest
        return self._tensors if self._merge is None else self._merge(target, self._tensors)

    def forget(self) -> None:
        """Free the memory; the next version begins with an anchor."""
        self._tensors, self._state, self.digest = {}, None, None

    def _begin(self, anchor: Manifest, *, store: ChunkStore) -> str:
        self.forget()  # before the next state is there: never two at a time
        self._tensors = self._decode(anchor, store)
        self._entries = anchor.tensors
        return anchor.state_digest

    def _apply(self, deltas: tuple[Manifest, ...], *, digest: str, store: ChunkStore) -> str:
        if self._state is None:
            self._state = WireState.over(self._entries, self._tensors)
        for delta in deltas:
            apply_delta(delta, state=self._state, state_digest=digest, store=store)
            digest = delta.state_digest
        verify_state(deltas[-1], state=self._state)
        return digest
