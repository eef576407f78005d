"""Opens an engine over an inference server."""

from __future__ import annotations

from pathlib import Path

from pipeline.engines.http.api_key import read_key
from pipeline.engines.http.engine import HttpEngine
from pipeline.engines.http.host import Host
from pipeline.engines.http.loading import Loader, LoaderPlan
from pipeline.engines.http.probe import probe_prompts
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.http.stamps import Stamps
from pipeline.engines.vllm.facts import read_facts
from schemas.errors import EngineError


def open_http_engine(
    model_dir: Path,
    *,
    dtype: str = "float32",
    max_sequences: int,
    slot: int = 0,
    watch_pressure: bool = False,
    settings: HttpSettings,
) -> HttpEngine:
    """Find the server of this slot; its own weights are not served before a version is loaded.

    Args:
        model_dir: the policy's directory: tokenizer, shapes, and what a probe computes with.
        dtype: of the published weights.
        slot: number of this process among the replicas; it uses server number `slot`.
        watch_pressure: whether the server is asked how loaded it is.

    Raises:
        EngineError: the directory or a setting is at fault, or the server cannot be used.
    """
    if slot >= len(settings.base_urls):
        raise EngineError(
            f"rollout process {slot} has no server: rollout.http.base_urls names {len(settings.base_urls)}",
            hint="name one server for each of rollout.replicas",
        )
    facts = read_facts(model_dir, dtype=dtype, max_context_tokens=settings.max_context_tokens)
    prompts = probe_prompts(vocab_size=facts.vocab_size, context_tokens=facts.context_tokens)
    key = read_key(settings)
    host = Host(settings.base_urls[slot], key=key, settings=settings, prompts=prompts, watch_pressure=watch_pressure)
    try:
        host.start()
        stamps = Stamps()
        plan = LoaderPlan(
            model_dir=model_dir,
            folder=None if settings.update_dir is None else settings.update_dir / f"rollout-{slot}",
            dtype=dtype,
            ties=facts.ties,
            prompts=prompts,
            settings=settings,
        )
        loader = Loader(plan, host=host, stamps=stamps)
    except EngineError:
        host.close()
        raise
    return HttpEngine(facts, host=host, loader=loader, stamps=stamps, settings=settings, max_sequences=max_sequences)
