"""The theorems of "Scaled ReLU Matters for Training Vision Transformers" (arXiv 2109.03810), in the forms that hold.

Letters: n tokens, d channels of a token, C channels of a norm, a its shift, b its scale; alpha, beta of theorem 1.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tasks.token_diagnostics.statistics import (
    penalty_weights,
    token_statistics,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scaled_relu(x: Tensor, a: float, b: float) -> Tensor:
    return b * (x + a).clamp_min(0)


# --- theorem 1: scale and shift of a norm before a ReLU, and the weights behind it -----------------------------------


def l2(n: Tensor, s: Tensor, norm: Tensor) -> Tensor:
    """The l2 penalty of one channel whose scale and shift, of length s, are multiplied by n, and its W_c divided."""
    return n**2 * s**2 + norm**2 / n**2


@given(st.floats(0.05, 20), st.floats(-5, 5), st.floats(0.05, 20))
def test_smallest_l2_penalty_over_the_rescalings_is_the_closed_form(scale: float, shift: float, norm: float) -> None:
    s, w = penalty_weights(torch.tensor([scale]), torch.tensor([shift]))[0], torch.tensor(norm).double()
    best = (w / s).sqrt()
    grid = best * torch.linspace(0.2, 5, 4001).double()
    values = l2(grid, s, w)
    assert (values >= 2 * w * s * (1 - 1e-12)).all()
    assert values.min() == pytest.approx((2 * w * s).item(), rel=1e-5)
    assert grid[values.argmin()] == pytest.approx(best.item(), rel=2e-3)
    assert l2(best, s, w) == pytest.approx((2 * w * s).item())


# --- theorem 2 and inequality (6) ------------------------------------------------------------------------------------


signed = st.tuples(st.integers(2, 8), st.integers(1, 6), st.integers(0, 2**31), st.floats(-2, 2), st.floats(0.01, 10))


@given(signed)
@settings(max_examples=200, deadline=None)
def test_similarity_is_below_the_final_form_of_the_inequality(drawn: tuple[int, int, int, float, float]) -> None:
    n, d, seed, mean, scale = drawn
    rows = scale * (normal(n, d, seed=seed) + mean)
    similarity, _, _, bound, *_ = token_statistics(rows[None])[0].tolist()
    assert similarity <= bound + 1e-9 * max(1, bound)


def test_b_scales_the_norms_and_leaves_similarity_and_bound() -> None:
    matrix = normal(30, 20)
    one, three = (token_statistics(scaled_relu(matrix, 0.2, b)[None])[0].tolist() for b in (1.0, 3.0))
    for place, factor in enumerate((1, 3, 3, 1, 3, 1, 1)):
        assert three[place] == pytest.approx(factor * one[place])
