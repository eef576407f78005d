"""The devices that settings name, held against those of this machine.

Role: behind `ops.named_checks`.
Data in: a `RunFile` and the stages that run here. Data out: nothing, or an error.
Invariants: torch is imported only when a device other than the CPU is named.
Failure: `SettingsError` naming the setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ops.run_file import RunFile
from schemas.errors import ModelUnusable, SettingsError

_LOCAL_ENGINES = ("torch", "vllm")  # those that compute in a process of the run


def check_devices(run_file: RunFile, *, stages: Sequence[str]) -> None:
    """See that the devices named for these stages are there.

    Raises:
        SettingsError: one is not.
    """
    for setting, name in _devices(run_file, stages=stages):
        if name == "cpu":
            continue
        from pipeline.engines.model_dir import parse_device  # noqa: PLC0415 - heavy

        try:
            parse_device(name)
        except ModelUnusable as error:
            raise SettingsError(f"{setting}: {error.message}", hint=error.hint) from error


def _devices(run_file: RunFile, *, stages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Settings and the devices they name, of what computes with a model here."""
    reference, evaluator = run_file.reference, run_file.evaluator
    if "learner" in stages or ("rollout" in stages and run_file.rollout.engine in _LOCAL_ENGINES):
        yield "model.device", run_file.model.device
    if "reference" in stages and reference is not None:
        yield _own_or_model("reference.device", reference.device, model=run_file.model.device)
    if "evaluator" in stages and run_file.evaluation and evaluator.engine in _LOCAL_ENGINES:
        yield _own_or_model("evaluator.device", evaluator.device, model=run_file.model.device)


def _own_or_model(setting: str, own: str | None, *, model: str) -> tuple[str, str]:
    return ("model.device", model) if own is None else (setting, own)
