"""A ranking from pairs: strengths that are known, and orders that agree or not."""
# ruff: noqa: N806 - tensors carry their shape

import pytest
import torch

from jobs.workloads.pair_sequence.ranking import bradley_terry, rank_correlation


def test_strengths_that_made_the_games_are_found_again() -> None:
    log_M = torch.tensor([1.5, 0.5, -0.5, -1.5], dtype=torch.float64)
    wins_MM = 1000 * torch.sigmoid(log_M[:, None] - log_M[None, :])
    wins_MM.fill_diagonal_(0)
    assert torch.allclose(bradley_terry(wins_MM), log_M, atol=1e-2)


def test_one_who_always_wins_is_first_and_stays_finite() -> None:
    wins_MM = torch.ones(5, 5).triu(1)
    strength_M = bradley_terry(wins_MM)
    assert strength_M.isfinite().all()
    assert strength_M.argsort(descending=True).tolist() == [0, 1, 2, 3, 4]
    assert float(strength_M.mean()) == pytest.approx(0, abs=1e-9)


def test_those_who_are_even_are_equal() -> None:
    assert bradley_terry(torch.full((3, 3), 0.5)).tolist() == pytest.approx([0, 0, 0])


@pytest.mark.parametrize(
    ("other", "expected"),
    [([10.0, 20.0, 30.0, 99.0], 1.0), ([4.0, 3.0, 2.0, 1.0], -1.0), ([7.0, 7.0, 7.0, 7.0], 0.0)],
)
def test_orders_agree_or_not(other: list[float], expected: float) -> None:
    assert rank_correlation(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(other)) == pytest.approx(
        expected
    )


def test_equal_values_share_their_rank() -> None:
    one, other = torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(one, other) == pytest.approx(0.948683)  # as scipy.stats.spearmanr
