"""Which version a token is of, told from the label that the server put on it.

Role: gives every load a label of its own and turns a server's spans into version runs.
Data in: versions loaded; spans of an answer. Data out: `VersionRun`s with `verified` as it was found.
Invariants: a label belongs to one load of this engine object and is never given twice, so a server that was restarted,
or updated by somebody else, cannot pass for one of ours (promises 6 and 9). The label of a load whose check failed is
remembered as bad.
Failure: `BadAnswer` for tokens of bad weights; `ForeignWeights` for a label nobody here gave.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.engines.http.exchange import BadAnswer
from schemas.errors import EngineError
from schemas.records import Version, VersionRun


class ForeignWeights(EngineError):
    """The server has weights that this engine did not load."""


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """A version, and whether it was seen that the server computes with it."""

    version: Version
    verified: bool

    def run(self, num_tokens: int) -> VersionRun:
        """A stretch of tokens of it."""
        return VersionRun(num_tokens=num_tokens, version=self.version, verified=self.verified)


class Stamps:
    """See the module."""

    def __init__(self) -> None:
        self._prefix, self._serial = secrets.token_hex(4), 0
        self._known: dict[str, Stamp] = {}
        self._bad: set[str] = set()

    def new_label(self, version: Version) -> str:
        """A label for a load that is about to happen."""
        self._serial += 1
        return f"rlweave-{self._prefix}-{self._serial}-{version}"

    def accept(self, label: str, stamp: Stamp) -> None:
        """The load of this label is whole."""
        self._known[label] = stamp

    def reject(self, label: str) -> None:
        """The load of this label cannot be trusted."""
        self._known.pop(label, None)
        self._bad.add(label)

    def runs(self, spans: Sequence[tuple[str, int]], *, num_tokens: int) -> tuple[VersionRun, ...]:
        """Version runs of the tokens of one answer.

        Raises:
            BadAnswer: the spans do not cover the tokens, or some were made by weights that failed their check.
            ForeignWeights: a label that was not given here.
        """
        covered = sum(length for _, length in spans)
        if covered != num_tokens:
            raise BadAnswer(f"the server says of {covered} tokens which weights made them and gave {num_tokens}")
        runs: list[VersionRun] = []
        for label, length in spans:
            if label in self._bad:
                raise BadAnswer("tokens were made by weights that failed their check after the load")
            if label not in self._known:
                raise ForeignWeights(
                    f"the server's weights are {label!r}, which this engine did not load",
                    hint="it was restarted, or another process loads weights into it: one rollout process per server",
                )
            if length:
                runs.append(self._known[label].run(length))
        return tuple(runs)
