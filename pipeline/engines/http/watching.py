"""A server's own metrics, as an engine's pressure.

Role: asks `/metrics` now and then while requests are in flight.
Data in: Prometheus text. Data out: the last `EnginePressure`.
Invariants: a server without metrics, or of a kind whose names are not known here, is asked no more; a failed question
leaves the last answer, which grows old. Where a server has several engines behind it their numbers are added up, and
the fullest cache counts.
Failure: none.

| | vLLM | SGLang |
| --- | --- | --- |
| KV cache | `vllm:kv_cache_usage_perc`, a share | `sglang:token_usage`, a share |
| queue | `vllm:num_requests_waiting` | `sglang:num_queue_reqs` |
| batch | `vllm:num_requests_running` | `sglang:num_running_reqs` |
| preempted | `vllm:num_preemptions_total` | it does not count them |
| tokens | `vllm:generation_tokens_total` | `sglang:generation_tokens_total` |
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping

from pipeline.engines.http.exchange import NoAnswer, Refusal
from pipeline.engines.http.wire import Wire
from pipeline.engines.pressure import EnginePressure
from schemas.errors import EngineError

EVERY_S = 1.0
NAMES: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "kv_use_share": "vllm:kv_cache_usage_perc",
        "queued": "vllm:num_requests_waiting",
        "running": "vllm:num_requests_running",
        "preemptions": "vllm:num_preemptions_total",
        "tokens": "vllm:generation_tokens_total",
    },
    "sglang": {
        "kv_use_share": "sglang:token_usage",
        "queued": "sglang:num_queue_reqs",
        "running": "sglang:num_running_reqs",
        "tokens": "sglang:generation_tokens_total",
    },
}
_LINE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})? +(\S+)(?: +\d+)?\Z")


class MetricsWatch:
    """See the module. Lives on the loop's thread; `latest` may be read on any.

    Args:
        is_busy: whether requests are in flight.
    """

    def __init__(self, wire: Wire, *, is_busy: Callable[[], bool]) -> None:
        self._wire = wire
        self._is_busy = is_busy
        self._task: asyncio.Task[None] | None = None
        self.latest: EnginePressure | None = None

    def begin(self, kind: str) -> None:
        """A server of this kind was found."""
        self._end()
        self.latest = None
        if kind in NAMES:
            self._task = asyncio.get_running_loop().create_task(self._keep_asking(kind))

    async def stop(self) -> None:
        """Ask no more."""
        task = self._end()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def _end(self) -> asyncio.Task[None] | None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    async def _keep_asking(self, kind: str) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            if not self._is_busy():
                continue
            asked_s = time.monotonic()  # not later than what the answer is of
            try:
                text = await self._wire.get("/metrics")
            except Refusal:
                return
            except (NoAnswer, EngineError):
                continue
            found = read(text, names=NAMES[kind], at_s=asked_s)
            if found is None:
                return
            self.latest = found


def read(text: bytes, *, names: Mapping[str, str], at_s: float) -> EnginePressure | None:
    """The pressure in a page of metrics; None: not one of the names is on it."""
    wanted = set(names.values())
    found: dict[str, list[float]] = {}
    for line in text.decode(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is not None and match[1] in wanted and (value := _number(match[2])) is not None:
            found.setdefault(match[1], []).append(value)
    if not found:
        return None
    values = {field: found[name] for field, name in names.items() if name in found}
    counts = {field: int(sum(each)) for field, each in values.items() if field != "kv_use_share"}
    shares = values.get("kv_use_share")
    return EnginePressure(
        measured_s=at_s,
        kv_use_share=None if shares is None else max(shares),
        queued=counts.get("queued"),
        running=counts.get("running"),
        preemptions=counts.get("preemptions"),
        tokens=counts.get("tokens"),
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
