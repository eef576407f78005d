"""Drawing tokens, against a row-by-row reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pipeline.engines.sampling import SamplingRows, draw
from schemas.records import SamplingParams

CPU = torch.device("cpu")
MIXED = [
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(top_k=3),
    SamplingParams(top_p=0.7),
    SamplingParams(temperature=2.0, top_k=5, top_p=0.6),
    SamplingParams(temperature=0),
    SamplingParams(top_k=1),
    SamplingParams(top_p=1e-9),
    SamplingParams(top_k=1000),
]


def reference(logits: np.ndarray[tuple[int], np.dtype[np.float64]], params: SamplingParams) -> dict[int, float]:
    """Token -> probability, by the definition."""
    scaled = logits / params.temperature
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if params.top_k:
        order = order[: params.top_k]
    weights = {token: math.exp(scaled[token] - scaled[order[0]]) for token in order}
    total = sum(weights.values())
    kept: dict[int, float] = {}
    for token in order:
        if params.top_p < 1 and sum(kept.values()) / total >= params.top_p:
            break
        kept[token] = weights[token]
    return {token: weight / sum(kept.values()) for token, weight in kept.items()}


@pytest.mark.parametrize("params", [p for p in MIXED if p.temperature > 0], ids=str)
def test_frequencies_and_logprobs_follow_the_definition(params: SamplingParams) -> None:
    num_draws = 4000
    logits = np.random.default_rng(1).normal(scale=2, size=12)
    rows = SamplingRows.of([params] * num_draws, device=CPU)
    uniform = (torch.arange(num_draws, dtype=torch.float64) + 0.5) / num_draws
    batch = torch.from_numpy(logits).float().expand(num_draws, -1)
    tokens, logprobs = draw(batch, rows, uniform=uniform)
    expected = reference(logits, params)
    counts = np.bincount(tokens.numpy(), minlength=12)
    for token in range(12):
        assert abs(counts[token] - num_draws * expected.get(token, 0.0)) <= 1.01
    for token, logprob in set(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
        assert logprob == pytest.approx(math.log(expected[token]), abs=1e-5)


def test_a_row_is_drawn_the_same_alone_and_among_others() -> None:
    logits = torch.randn(len(MIXED), 50, generator=torch.Generator().manual_seed(0))
    uniform = torch.rand(len(MIXED), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tokens, logprobs = draw(logits, SamplingRows.of(MIXED, device=CPU), uniform=uniform)
    for row, params in enumerate(MIXED):
        one = SamplingRows.of([params], device=CPU)
        token, logprob = draw(logits[row : row + 1], one, uniform=uniform[row : row + 1])
        assert token[0] == tokens[row]
        assert logprob[0] == pytest.approx(float(logprobs[row]), abs=1e-6)


def test_greedy_reports_the_raw_logprob() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    rows = SamplingRows.of([SamplingParams(temperature=0, top_k=1)], device=CPU)
    tokens, logprobs = draw(logits, rows, uniform=torch.zeros(1, dtype=torch.float64))
    assert tokens.tolist() == [1]
    assert logprobs[0] == pytest.approx(float(torch.log_softmax(logits, -1)[0, 1]))


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_unit_interval_never_pick_an_impossible_token(uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 0.0, 1.0, -math.inf]]).repeat(1, 1)
    rows = SamplingRows.of([SamplingParams()], device=CPU)
    tokens, logprobs = draw(logits, rows, uniform=torch.tensor([uniform], dtype=torch.float64))
    assert tokens.tolist() == [1 if uniform == 0 else 2]
    assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e30])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    rows = SamplingRows.of([SamplingParams(temperature=temperature)], device=CPU)
    _, logprobs = draw(logits, rows, uniform=torch.tensor([0.5], dtype=torch.float64))
    assert torch.isfinite(logprobs).all()


def test_broken_logits_give_a_nan_logprob_in_their_row_only() -> None:
    logits = torch.zeros(2, 4)
    logits[0, 2] = math.nan
    rows = SamplingRows.of([SamplingParams()] * 2, device=CPU)
    tokens, logprobs = draw(logits, rows, uniform=torch.full((2,), 0.5, dtype=torch.float64))
    assert math.isnan(logprobs[0])
    assert 0 <= tokens[0] < 4
    assert logprobs[1] == pytest.approx(math.log(0.25))
