"""Of each step those samples are kept on which trainer and sampler agree least, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch

from consumers.learner.furthest import Furthest
from consumers.learner.losses import TokenTerms
from consumers.learner.outcomes import OutcomeDraft, with_gaps
from consumers.learner.team import Team
from schemas.packed import unpack_f16
from schemas.reasons import Result
from schemas.records import MemberOutcome

NAN = float("nan")


def terms(rows: Sequence[Sequence[float]], *, masks: Sequence[Sequence[float]] | None = None) -> TokenTerms:
    """Rows of gaps: the trainer's log-probabilities are the sampler's plus these."""
    sizes = [len(row) for row in rows]
    gaps = torch.tensor([gap for row in rows for gap in row])
    sampled = torch.full_like(gaps, -1.0)
    return TokenTerms(
        new_logprobs=sampled,
        proximal_logprobs=sampled + gaps,
        behaviour_logprobs=sampled,
        advantages=torch.zeros_like(gaps),
        mask=torch.ones_like(gaps) if masks is None else torch.tensor([each for row in masks for each in row]),
        rows=torch.arange(len(rows)).repeat_interleave(torch.tensor(sizes)),
    )


def test_the_furthest_of_all_micro_batches_are_kept_with_the_gap_of_each_token() -> None:
    furthest = Furthest(2)
    furthest.add(terms([[0.5, -0.5], [0.25], [-2.0, 0.0, 0.0]]), ids=[(4, 0), (4, 1), (5, 0)])
    furthest.add(terms([[0.0], [1.0, -0.5]]), ids=[(6, 0), (6, 3)])
    gaps = {ids: unpack_f16(packed).tolist() for ids, packed in furthest.gaps().items()}
    assert gaps == {(5, 0): [-2.0, 0.0, 0.0], (6, 3): [1.0, -0.5]}


def test_what_is_not_trained_neither_counts_nor_has_a_gap() -> None:
    furthest = Furthest(1)
    furthest.add(terms([[9.0, 0.5], [1.0, 1.0]], masks=[[0.0, 1.0], [1.0, 1.0]]), ids=[(0, 0), (0, 1)])
    furthest.add(terms([[3.0, 9.0, NAN]], masks=[[1.0, 0.0, 0.0]]), ids=[(1, 0)])
    [(ids, packed)] = furthest.gaps().items()
    assert ids == (1, 0)
    np.testing.assert_array_equal(unpack_f16(packed), [3.0, NAN, NAN])


def test_what_is_not_finite_is_furthest() -> None:
    furthest = Furthest(1)
    furthest.add(terms([[100.0], [-torch.inf], [NAN]]), ids=[(0, 0), (0, 1), (0, 2)])
    assert set(furthest.gaps()) < {(0, 1), (0, 2)}


def test_without_a_limit_nothing_is_kept() -> None:
    furthest = Furthest(0)
    furthest.add(terms([[1.0]]), ids=[(0, 0)])
    assert furthest.gaps() == {}


class Three:
    """Rank 1 of three; the others have said what they hold."""

    rank, num_ranks = 1, 3

    def __init__(self, *others: float) -> None:
        self._others = others

    def sum(self, values: Sequence[float]) -> list[float]:
        return [own + other for own, other in zip(values, self._others, strict=True)]


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ((0.5, -1.0, 0.0, 0.0, 0.25, -1.0), {(0, 0), (0, 2)}),
        ((2.5, 0.5, 0.0, 0.0, 3.5, -1.0), {(0, 0)}),
        ((3.0, 0.5, 0.0, 0.0, 3.5, 3.0), set()),  # of equal ones that of the lower rank
        ((torch.inf, torch.inf, 0.0, 0.0, torch.inf, -1.0), set()),
    ],
)
def test_a_rank_keeps_those_of_its_own_that_are_among_the_furthest_of_all(
    others: tuple[float, ...], kept: set[tuple[int, int]]
) -> None:
    furthest = Furthest(2)
    furthest.add(terms([[3.0], [1.0], [2.0]]), ids=[(0, 0), (0, 1), (0, 2)])
    assert set(furthest.gaps(cast("Team", Three(*others)))) == kept


def test_a_rank_without_samples_says_so_and_keeps_nothing() -> None:
    assert Furthest(2).gaps(cast("Team", Three(1.0, -1.0, 0.0, 0.0, -1.0, -1.0))) == {}


def test_only_the_outcome_of_a_trained_sample_tells_its_gap() -> None:
    trained, dropped = (
        OutcomeDraft(
            group=group,
            result=result,
            reason=None,
            attempt="try",
            members=tuple(MemberOutcome(member=member, result=result) for member in range(2)),
        )
        for group, result in ((3, Result.TRAINED), (4, Result.DROPPED))
    )
    told = with_gaps([trained, dropped], {(3, 1): b"gap1", (4, 0): b"gap2"})
    assert [[member.logprob_gap for member in draft.members] for draft in told] == [[None, b"gap1"], [None, None]]
