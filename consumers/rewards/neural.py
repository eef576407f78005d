"""A neural reward model: any sequence classifier of `transformers` in a local folder.

Role: samples in batches to a model on a device of its own (`pipeline.engines.reward_model`).
Invariants: torch is imported where the plug-in runs, in a process of its own, of which there is one however many
workers are asked for; a text the model cannot take whole is a failure, never scored cut.
Failure: `PluginError` when the folder holds no such model, or there is no such device.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from consumers.rewards.api import Sample
from schemas.errors import EngineError, PluginError


class NeuralReward:
    """What the model gives: its only output, or with several labels the probability of one.

    Args:
        path: folder with `config.json`, safetensors weights and a tokenizer.
        device: "cpu", "cuda" or "cuda:<n>".
        label: output to take when there are several.
        template: the text it reads; `{prompt}` and `{completion}` are put in.

    Raises:
        PluginError: see the module.
        ValueError: the template lacks `{completion}`.
    """

    name = "neural"
    max_workers = 1

    def __init__(
        self,
        *,
        path: str,
        device: str = "cpu",
        dtype: str = "float32",
        label: int = 0,
        template: str = "{prompt}{completion}",
        threads: int = 1,
    ) -> None:
        from pipeline.engines.reward_model import RewardModel  # noqa: PLC0415 - torch, where it is used only

        if "{completion}" not in template:
            raise ValueError("template must hold {completion}")
        self._parts = template.split("{completion}")
        try:
            self._model = RewardModel(Path(path), device=device, dtype=dtype, label=label, threads=threads)
        except EngineError as error:
            raise PluginError(error.message, hint=error.hint) from error
        self.version = f"1+{self._model.digest[:12]}"

    def score_batch(self, samples: Sequence[Sample]) -> list[object]:
        """One value per sample, or the error of it."""
        return list(self._model.score([self._text(sample) for sample in samples]))

    def _text(self, sample: Sample) -> str:
        parts = [part.replace("{prompt}", sample.prompt_text) for part in self._parts]
        return sample.completion_text.join(parts)
