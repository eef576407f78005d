"""What decides the arithmetic of a learner's steps beside their data: kept in the ledger with every lineage.

Role: lets recorded mode compute what was computed (docs/design/0010).
Data in: settings, the trainer, this machine. Data out: plain texts by name, in `LineageStarted.facts`; and back.
Names: `settings`, JSON of `Arithmetic`; `initial_state`, digest of the weights as the model directory has them (only
where a history begins); `first_anchor`, digest of the run's first version, after cloning (once it is known);
`has_reference`, where samples are trained only with a reference score; all others describe the environment.
Invariants: no path and no plug-in name is kept, so nothing that a topic says leads to code or files; the environment
is compared, the settings are applied.
Failure: `RecordInvalid` for settings that this release does not understand.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import transformers
from blake3 import blake3
from pydantic import Field, ValidationError

from consumers.learner.algorithms import is_built_in, plugin_digest
from consumers.learner.lora_settings import LoraSettings
from consumers.learner.loss_settings import AlgorithmName, LossSettings
from consumers.learner.settings import CloningSettings, LearnerSettings, OptimizerSettings
from consumers.learner.trainer import Trainer
from pipeline.settings import ModelSettings, PositiveInt, Section, WeightsSettings
from pipeline.sources import SourceSettings
from schemas.errors import RecordInvalid
from schemas.references import HAS_REFERENCE

SETTINGS, INITIAL_STATE, FIRST_ANCHOR = "settings", "initial_state", "first_anchor"
MAX_THREADS, MAX_SEED = 4096, 2**63 - 1  # a record can say anything: more threads would end the process
_MAX_CHARS = 32 * 1024  # ten times what the settings of today have
_CPU_INFO = Path("/proc/cpuinfo")


class Arithmetic(Section):
    """The settings that enter the numbers."""

    seed: int = Field(ge=0, description="run.seed: of the order of samples, of dropout, of the cloning source.")
    ranks: PositiveInt = Field(description="learner.ranks.")
    threads: PositiveInt = Field(description="learner.threads.")
    micro_batch_tokens: PositiveInt = Field(description="learner.micro_batch_tokens.")
    device: str = Field(description="model.device.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(description="model.dtype.")
    wire_dtype: Literal["float32", "bfloat16", "float16"] | None = Field(description="weights.wire_dtype.")
    packing: bool = Field(default=False, description="learner.packing.")
    compute_dtype: Literal["model", "bfloat16"] = Field(default="model", description="learner.compute_dtype.")
    algorithm: AlgorithmName = Field(default="grpo", description="learner.algorithm.")
    advantage: str | None = Field(default=None, description="learner.advantage, where it is built in.")
    plugins: str = Field(default="", description="Digest of the names of advantage and loss plug-ins; empty: none.")
    has_reference: bool = Field(default=False, description="Whether a reference model scored the samples.")
    optimizer: OptimizerSettings = Field(description="[learner.optimizer].")
    loss: LossSettings = Field(description="[learner.loss], its function where it is built in.")
    lora: LoraSettings | None = Field(default=None, description="[learner.lora].")
    cloning: CloningSettings = Field(description="[learner.cloning], without its source.")
    cloning_source: str = Field(description="Digest of the settings of the cloning source; empty: none.")

    @classmethod
    def of(
        cls,
        settings: LearnerSettings,
        *,
        model: ModelSettings,
        weights: WeightsSettings,
        seed: int,
        has_reference: bool = False,
    ) -> Arithmetic:
        """Those of a run's settings."""
        source, loss = settings.cloning.source, settings.loss
        return cls(
            seed=seed,
            ranks=settings.ranks,
            threads=settings.threads,
            micro_batch_tokens=settings.micro_batch_tokens,
            device=model.device,
            dtype=model.dtype,
            wire_dtype=weights.wire_dtype,
            optimizer=settings.optimizer,
            has_reference=has_reference,
            packing=settings.packing,
            compute_dtype=settings.compute_dtype,
            algorithm=settings.algorithm,
            lora=settings.lora,
            advantage=settings.advantage if is_built_in(settings.advantage, loss=False) else None,
            plugins=plugin_digest(advantage=settings.advantage, loss=loss.function),
            loss=loss if is_built_in(loss.function, loss=True) else loss.model_copy(update={"function": None}),
            cloning=settings.cloning.model_copy(update={"source": None}),
            cloning_source="" if source is None else _digest_of(source),
        )


def _digest_of(source: SourceSettings) -> str:
    """Without what only a mix has: then it is the digest of releases that knew none."""
    left_out = set() if source.kind == "mix" else {"parts", "curriculum", "reward_groups"}
    return blake3(source.model_dump_json(exclude=left_out).encode()).hexdigest()


def facts_of(arithmetic: Arithmetic, trainer: Trainer, *, begins: bool, first_anchor: str) -> dict[str, str]:
    """What a lineage says of itself in the ledger.

    Args:
        begins: no checkpoint was restored, so the trainer holds what the model directory has.
        first_anchor: digest of the run's first version; empty: there is none yet.
    """
    facts = {SETTINGS: arithmetic.model_dump_json(), **environment_of(trainer)}
    if begins:
        facts[INITIAL_STATE] = trainer.initial_digest()
    if first_anchor:
        facts[FIRST_ANCHOR] = first_anchor
    if arithmetic.has_reference:
        facts[HAS_REFERENCE] = "true"
    return facts


def arithmetic_in(facts: Mapping[str, str]) -> Arithmetic | None:
    """The settings that a lineage was trained with; None: an older release kept none.

    Raises:
        RecordInvalid: they are not understood.
    """
    text = facts.get(SETTINGS)
    if text is None:
        return None
    if len(text) > _MAX_CHARS:  # the checks list everything that is wrong, which takes seconds for a longer text
        raise _not_understood(f"they have {len(text)} characters, at most {_MAX_CHARS} are read")
    try:
        found = Arithmetic.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _not_understood(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if found.threads > MAX_THREADS or found.seed > MAX_SEED:
        raise _not_understood(f"threads {found.threads} or seed {found.seed} is beyond {MAX_THREADS} or {MAX_SEED}")
    return found


def differences(facts: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """(recorded, here) of everything in which this environment is not the recorded one."""
    return {name: (facts[name], here) for name, here in environment.items() if facts.get(name, here) != here}


def environment_of(trainer: Trainer) -> dict[str, str]:
    """What else the numbers depend on: software, processor, switches of the library."""
    found = {
        "python": platform.python_version(),  # sums of rewards: `sum` differs between 3.11 and 3.12
        "numpy": np.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "attention": str(trainer.model.config._attn_implementation),
    }
    if trainer.device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(trainer.device)
        found["cuda"] = str(torch.version.cuda)
    return found


def _not_understood(why: str) -> RecordInvalid:
    return RecordInvalid(
        f"the settings that the ledger keeps are not understood: {why}",
        reason="facts",
        hint="use the release that trained the run, or a newer one",
    )


def _processor() -> str:
    """Name of the processor, as the kernel has it; empty where it has none."""
    try:
        lines = _CPU_INFO.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
