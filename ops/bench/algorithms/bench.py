"""`rlweave bench algorithms`: every algorithm against its float64 reference, and on the demo task; packing.

Exactness: largest relative errors of loss and gradient, in float32 as trained, over made batches with one turn and
with several, without and with a reference model. Learning: mean sampled reward on the demo task at the start and at
the end, in one process, staleness 1, every algorithm from the same cloned weights. Packing: trained tokens per
processor second of forward and backward pass, packed beside padded, for samples of very different lengths.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from consumers.learner.forward import Forward
from consumers.learner.loss_settings import LossSettings
from consumers.learner.tensors import Rows, micro_batches, rows_of
from ops.bench import result
from ops.bench.algorithms.case import make_case
from ops.bench.algorithms.compare import Errors, compare, names
from ops.bench.algorithms.playground import Playground, Variant, demo_settings
from pipeline.engines.model_dir import load_model
from pipeline.engines.tiny import TinyShape, make_tiny_model
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import Sample, SamplingParams

_ENDS = 5  # steps at either end that rewards are averaged over
_CONTEXT_TOKENS = 32
VARIANTS = (
    Variant(name="grpo", algorithm="grpo", loss=LossSettings()),
    Variant(name="dr_grpo", algorithm="dr_grpo", loss=LossSettings()),
    Variant(name="rloo", algorithm="rloo", loss=LossSettings()),
    Variant(name="decoupled_ppo", algorithm="decoupled_ppo", loss=LossSettings(minibatches=2), note="2 minibatches"),
    Variant(name="tis_token", algorithm="tis_token", loss=LossSettings()),
    Variant(name="tis_sequence", algorithm="tis_sequence", loss=LossSettings()),
    Variant(name="gspo", algorithm="gspo", loss=LossSettings()),
    Variant(name="dpo", algorithm="dpo", loss=LossSettings(), has_reference=True, note="frozen reference"),
    Variant(name="sft", algorithm="sft", loss=LossSettings()),
    Variant(name="step_grpo", algorithm="step_grpo", loss=LossSettings(), note="one turn: as grpo"),
    Variant(
        name="grpo_kl",
        algorithm="grpo",
        loss=LossSettings(reference_kl=0.05),
        has_reference=True,
        note="grpo, KL 0.05 to the start",
    ),
)


@dataclass(frozen=True, kw_only=True)
class AlgorithmsSize:
    """How much is measured."""

    num_cases: int = 8
    num_steps: int = 40
    num_samples: int = 64  # of packing
    num_repeats: int = 3

    @classmethod
    def quick(cls) -> AlgorithmsSize:
        """Some seconds: few steps show nothing of learning."""
        return cls(num_cases=2, num_steps=3, num_samples=16, num_repeats=1)


def bench_algorithms(size: AlgorithmsSize, *, say: Callable[[str], None]) -> result.BenchResult:
    """Exactness, learning and packing."""
    noise = result.Noise()
    torch.set_num_threads(1)
    errors = {name: _worst(name, num_cases=size.num_cases) for name in names()}
    say(f"largest relative error of all gradients: {max(each.gradient for each in errors.values()):.1e}")
    values: dict[str, result.Number] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run_file = demo_settings(Path(folder))
        make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=_CONTEXT_TOKENS)
        playground = Playground(run_file)
        for variant in VARIANTS:
            began_s = time.monotonic()
            rewards = list(playground.learn(variant, num_steps=size.num_steps))
            ends = max(1, min(_ENDS, len(rewards) // 2))
            start, end = float(np.mean(rewards[:ends])), float(np.mean(rewards[-ends:]))
            error = errors[variant.algorithm]
            values |= {
                f"{variant.name}_loss_error": error.loss,
                f"{variant.name}_gradient_error": error.gradient,
                f"{variant.name}_reward_start": start,
                f"{variant.name}_reward_end": end,
                f"{variant.name}_learning_s": time.monotonic() - began_s,
            }
            cells = (f"{error.loss:.1e}", f"{error.gradient:.1e}", f"{start:.3f}", f"{end:.3f}", variant.note)
            rows.append((variant.name, *cells))
            say(f"{variant.name}: reward {start:.3f} -> {end:.3f}")
        packing = measure_packing(Path(folder), size)
    values |= packing
    return result.BenchResult(
        name="algorithms",
        table=result.Table(
            title=f"float32 against float64; demo task over {size.num_steps} steps of 32 x 16 samples",
            headers=("algorithm", "loss error", "gradient error", "reward start", "reward end", "note"),
            rows=tuple(rows),
        ),
        values=values,
        notes=(
            "errors: largest relative ones, of the sum of a loss's absolute terms, and of the largest derivative",
            f"packing: {packing['padded_tokens_per_cpu_s']:,.0f} tokens per processor second padded, "
            f"{packing['packed_tokens_per_cpu_s']:,.0f} packed, {packing['packing_speedup']:.2f}x; "
            f"{packing['padding_share']:.0%} of padded columns hold nothing",
        ),
        noise=noise.values(num_repeats=size.num_repeats),
    )


def measure_packing(folder: Path, size: AlgorithmsSize) -> dict[str, float]:
    """Trained tokens per processor second, forward and backward, of samples whose lengths are spread widely."""
    path = folder / "packed"
    make_tiny_model(path, seed=1, context_tokens=1024, shape=TinyShape(hidden_size=128, num_heads=4))
    model = load_model(path, device="cpu", dtype="float32")
    draw = np.random.default_rng(3)
    lengths = np.clip(draw.exponential(90, size.num_samples).astype(int), 4, 900)
    rows = rows_of([_sample(int(each), draw) for each in lengths], device=torch.device("cpu"))
    num_tokens = int(rows.loss_mask.sum().item())
    spent = {
        name: min(_pass_s(model_pass, rows, packing=name == "packed") for _ in range(size.num_repeats))
        for name, model_pass in (("padded", Forward(model)), ("packed", Forward(model, packing=True)))
    }
    return {
        "padded_tokens_per_cpu_s": num_tokens / spent["padded"],
        "packed_tokens_per_cpu_s": num_tokens / spent["packed"],
        "packing_speedup": spent["padded"] / spent["packed"],
        "padding_share": 1 - float(rows.attention.sum().item()) / rows.attention.numel(),
    }


def _pass_s(forward: Forward, rows: Rows, *, packing: bool) -> float:
    began_s = time.thread_time()
    for begin, end in micro_batches(rows, max_tokens=8192, packing=packing):
        forward.logprobs(rows.slice(begin, end)).sum().backward()  # type: ignore[no-untyped-call]
    return time.thread_time() - began_s


def _worst(name: str, *, num_cases: int) -> Errors:
    found: Sequence[Errors] = [
        compare(algorithm, make_case(seed=seed, has_turns=has_turns), with_reference=with_reference)
        for algorithm in names()
        if algorithm == name
        for seed in range(num_cases)
        for has_turns in (False, True)
        for with_reference in (False, True)
    ]
    return Errors(loss=max(each.loss for each in found), gradient=max(each.gradient for each in found))


def _sample(num_tokens: int, draw: np.random.Generator) -> Sample:
    return Sample(
        run="bench",
        group=0,
        member=0,
        attempt="a",
        producer="",
        prompt_tokens=pack_i32(draw.integers(4, 30, 16)),
        completion_tokens=pack_i32(draw.integers(4, 30, num_tokens)),
        logprobs=pack_f32(np.zeros(num_tokens, np.float32)),
        loss_mask=pack_u8(np.ones(num_tokens, np.uint8)),
        sampling=SamplingParams(),
        seed=0,
        started_unix_ms=0,
        finished_unix_ms=0,
    )
