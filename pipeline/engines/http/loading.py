"""Loading a version into a server, and knowing whether it took.

Role: the order of one load, on the engine's side: stage, probe, swap, probe, accept or put back.
Data in: versions and their tensors. Data out: the `Stamp` under which the server's tokens are of that version.
Order: (1) stage, and work out what the published weights say of the probe's prompts, while the server generates;
(2) ask the server the same, before; (3) swap; (4) ask again, after; (5) accept the label, or reject it and put the old
version back.
Invariants: a label is accepted only when the version is whole and nothing speaks against it (promise 9). `verified`
says whether anything speaks for it: the plug-in compared the weights, or a probe agreed.
Failure: `SwapRefused` with nothing changed; `NotLoaded` when the old version was put back; `SwapBroken` else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pipeline.engines.base import StateTensor
from pipeline.engines.http.exchange import HttpHost, Scored
from pipeline.engines.http.probe import Reference
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.http.staging import Staged, clear_folders, own_arrays, stage_folder, stage_sealed
from pipeline.engines.http.stamps import Stamp, Stamps
from pipeline.engines.http.verdict import TOLERANCES, Before, Logprobs, problem
from pipeline.engines.vllm.exchange import SwapBroken, SwapRefused
from schemas.errors import EngineError
from schemas.records import Version

PROBE_HINT = (
    "the server loads something else than it is given, or its numbers differ more than "
    "rollout.http.probe_tolerance allows"
)


class NotLoaded(EngineError):
    """The new version did not take; the old one was put back and is served."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """What the server has."""

    stamp: Stamp
    staged: Staged | None  # None: its weights are its own
    reference: Logprobs | None  # what the published weights say of the prompts; None: not worked out
    own_label: str | None = None  # of a server that is not updated: the label of the weights that the probe saw


@dataclass(frozen=True, kw_only=True)
class LoaderPlan:
    """What a loader works with."""

    model_dir: Path
    folder: Path | None  # of this process under `update_dir`
    dtype: str
    ties: Mapping[str, str]
    prompts: list[list[int]]
    settings: HttpSettings


class Loader:
    """See the module."""

    def __init__(self, plan: LoaderPlan, *, host: HttpHost, stamps: Stamps) -> None:
        self._plan = plan
        self._host = host
        self._stamps = stamps
        self._reference = Reference(plan.model_dir)
        wanted = plan.settings.probe_tolerance
        self._tolerance = TOLERANCES[plan.dtype] if wanted is None else wanted
        if plan.folder is not None:
            clear_folders(plan.folder)

    def stage(self, version: Version, state: Mapping[str, StateTensor]) -> tuple[Staged | None, Logprobs | None]:
        """(1) Nothing of the server is changed.

        Raises:
            EngineError: the state cannot be staged, or not computed in torch.
        """
        own = own_arrays(state, ties=self._plan.ties)
        reference = self._reference.logprobs(own, self._plan.prompts) if self._probes else None
        return self._staged(version, own), reference

    def load(
        self, version: Version, staged: Staged | None, *, reference: Logprobs | None, old: Served | None
    ) -> Served:
        """(2) to (5).

        Args:
            old: what is served and stays so if this one does not take.

        Raises:
            EngineError: see the module; an error of the host passes through.
        """
        if staged is None:
            return self._looked_at(version, reference=reference)
        before = self._before(reference, old=old)
        try:
            return self._swap(version, staged, reference=reference, before=before)
        except SwapBroken as error:
            if old is None or old.staged is None:
                raise
            try:
                self._swap(old.stamp.version, old.staged, reference=old.reference, before=None)
            except EngineError:
                raise error from None
            raise NotLoaded(
                f"version {version} was not loaded: {error.message}; {old.stamp.version} was put back, the old version "
                "is still served",
                hint=error.hint,
            ) from error

    def _before(self, reference: Logprobs | None, *, old: Served | None) -> Before | None:
        if reference is None or old is None or old.reference is None:
            return None
        try:
            scored = self._host.scores(self._plan.prompts)
        except EngineError as error:
            raise SwapRefused(f"{error.message}; the old version is still served", hint=error.hint) from error
        return None if scored is None else Before(server=_logprobs(scored), reference=old.reference)

    def _swap(self, version: Version, staged: Staged, *, reference: Logprobs | None, before: Before | None) -> Served:
        label = self._stamps.new_label(version)
        try:
            self._host.swap(staged.source, label=label)
            verified = self._check(reference, before=before)
        except SwapRefused:
            raise
        except EngineError:
            self._stamps.reject(label)
            raise
        stamp = Stamp(version=version, verified=verified)
        self._stamps.accept(label, stamp)
        return Served(stamp=stamp, staged=staged, reference=reference)

    def _check(self, reference: Logprobs | None, *, before: Before | None) -> bool:
        """Whether anything speaks for the load.

        Raises:
            SwapBroken: something speaks against it.
        """
        checked = self._host.facts.checks_weights
        scored = None if reference is None else self._host.scores(self._plan.prompts)
        if reference is None or scored is None:
            return checked
        wrong = problem(_logprobs(scored), reference=reference, tolerance=self._tolerance, before=before)
        if wrong is not None:
            raise SwapBroken(f"the server took the weights and computes with others: {wrong}", hint=PROBE_HINT)
        return True

    def _looked_at(self, version: Version, *, reference: Logprobs | None) -> Served:
        """A server whose weights are its own: whether they happen to be this version's."""
        scored = None if reference is None else self._host.scores(self._plan.prompts)
        verified, label = False, None
        if reference is not None and scored is not None:
            wrong = problem(_logprobs(scored), reference=reference, tolerance=self._tolerance, before=None)
            verified, label = wrong is None, scored[0].label
        stamp = Stamp(version=version, verified=verified)
        return Served(stamp=stamp, staged=None, reference=reference, own_label=label)

    @property
    def _probes(self) -> bool:
        wanted = self._plan.settings.probe
        return wanted == "always" or (wanted == "auto" and not self._host.facts.checks_weights)

    def _staged(self, version: Version, own: Mapping[str, Tensor]) -> Staged | None:
        update = self._host.facts.update
        if update == "plugin":
            return stage_sealed(own, version=version, ties=self._plan.ties)
        if update == "disk" and self._plan.folder is not None:
            return stage_folder(own, version=version, model=self._plan.model_dir, parent=self._plan.folder)
        return None


def _logprobs(scored: list[Scored]) -> Logprobs:
    return [each.logprobs for each in scored]
