"""An engine that makes no effort: sequences take the time that the script says, half as much to half as much again.

Role: what the rollout producers of `bench elastic` serve with; all else of them is real.
Data in and out: see `pipeline.engines.base.Engine`; versions are fetched and verified as by any other engine.
Invariants: tokens come evenly over a sequence's time, each with the version that was served when it was due; the time
is that of the script when the sequence was taken.
Failure: as `pipeline.engines.scripted`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from ops.bench.elastic.script import Prompter
from pipeline.engines.backends import Backend, BackendSettings
from pipeline.engines.base import (
    FINISH_LENGTH,
    PROCESSED,
    EngineState,
    Generation,
    GenerationRequest,
    PromptTokens,
    StateTensor,
    version_runs,
)
from pipeline.engines.checks import check_ready
from pipeline.engines.scripted import ScriptedEngine
from pipeline.weights.state import decode_arrays
from schemas.errors import EngineError
from schemas.records import PromptGroup, Version

TOKEN = 4  # of the tiny model's alphabet, after the special ones
_NAP_S = 0.01  # a step's time


def paced(folder: Path) -> Callable[[BackendSettings], Backend]:
    """The plug-in: engines that follow the script in a folder."""

    def backend(settings: BackendSettings) -> Backend:
        engine = PacedEngine(Prompter(folder), max_sequences=settings.max_sequences)
        return Backend(engine=engine, decode=decode_arrays)

    return backend


class PacedEngine(ScriptedEngine):
    """See the module."""

    def __init__(self, prompter: Prompter, *, max_sequences: int) -> None:
        super().__init__(max_concurrent_sequences=max_sequences)
        self._prompter = prompter
        self._spans: dict[str, tuple[float, float]] = {}  # request -> begin and length

    def encode_prompt(self, group: PromptGroup) -> PromptTokens:
        """One token; what is asked does not matter."""
        return PromptTokens(text=str(group.group), tokens=np.array([TOKEN], dtype=np.int32))

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `base.Engine.submit`."""
        super().submit(requests)
        now_s, mean_s = time.monotonic(), self._prompter.now().sequence_s
        self._spans |= {request.request_id: (now_s, mean_s * _factor(request.request_id)) for request in requests}

    def step(self) -> list[Generation]:
        """See `base.Engine.step`."""
        check_ready(self._state, closed=self._closed)
        version = self._version
        if version is None:
            raise EngineError("the engine serves no version")
        time.sleep(_NAP_S)
        done, self._aborted = self._aborted, []
        now_s = time.monotonic()
        for request_id, sequence in list(self._held.items()):
            begin_s, length_s = self._spans[request_id]
            num_new = int(min(1.0, (now_s - begin_s) / length_s) * sequence.limit) - len(sequence.tokens)
            sequence.tokens += [TOKEN] * num_new
            sequence.versions += [version] * num_new
            if len(sequence.tokens) == sequence.limit:
                done.append(_made(request_id, sequence.versions))
                del self._held[request_id]
        self._spans = {request_id: self._spans[request_id] for request_id in self._held}
        return done

    def load(self, version: Version, state: Mapping[str, StateTensor]) -> None:
        """Tokens are of this version from now on; what its tensors hold does not matter."""
        if not state:
            raise EngineError("a state has tensors")
        self._version, self._state = version, EngineState.SERVING


def _factor(request_id: str) -> float:
    """0.5 to 1.5: sequences that all took one time would begin and end together for ever."""
    return 0.5 + crc32(request_id.encode()) / 2**32


def _made(request_id: str, versions: Sequence[Version]) -> Generation:
    return Generation(
        request_id=request_id,
        tokens=np.full(len(versions), TOKEN, dtype=np.int32),
        text="1",
        logprobs=np.full(len(versions), -np.log(32.0), dtype=np.float32),
        logprobs_kind=PROCESSED,
        version_runs=version_runs(versions),
        finish_reason=FINISH_LENGTH,
    )
