"""Opens a vLLM engine over a model directory."""

from __future__ import annotations

from pathlib import Path

from pipeline.engines.vllm.engine import VllmEngine
from pipeline.engines.vllm.facts import read_facts
from pipeline.engines.vllm.host import Host, HostSettings
from pipeline.engines.vllm.settings import VllmSettings


def open_vllm_engine(
    model_dir: Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    max_sequences: int,
    num_threads: int = 1,
    watch_pressure: bool = False,
    settings: VllmSettings,
) -> VllmEngine:
    """Start vLLM; its own weights are not served before a version is loaded.

    Args:
        watch_pressure: whether it is to say how loaded it is.

    Raises:
        EngineError: the directory or a setting is at fault, or vLLM does not serve the model here.
    """
    facts = read_facts(model_dir, dtype=dtype, max_context_tokens=settings.max_context_tokens)
    wanted = HostSettings(
        model_dir=model_dir,
        device=device,
        dtype=dtype,
        max_sequences=max_sequences,
        context_tokens=facts.context_tokens,
        num_threads=num_threads,
        watch_pressure=watch_pressure,
        vllm=settings,
    )

    def start_host() -> Host:
        host = Host(wanted)
        host.start()
        return host

    return VllmEngine(facts, start_host=start_host, settings=settings, max_sequences=max_sequences)
