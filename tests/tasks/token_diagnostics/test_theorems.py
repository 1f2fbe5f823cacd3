"""The theorems of "Scaled ReLU Matters for Training Vision Transformers" (arXiv 2109.03810), in the forms that hold.

Letters: n tokens, d channels of a token, C channels of a norm, a its shift, b its scale; alpha, beta of theorem 1.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tasks.token_diagnostics.statistics import (
    correlations,
    cosine_similarity,
    penalty_weights,
    singular_values,
    token_statistics,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scaled_relu(x: Tensor, a: float, b: float) -> Tensor:
    return b * (x + a).clamp_min(0)


# --- theorem 1: scale and shift of a norm before a ReLU, and the weights behind it -----------------------------------


def behind_relu(x: Tensor, shift: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
    """sum_c ReLU(b_c x_c + a_c) W_c of x [n, C], weights [C, d]."""
    return torch.relu(x * scale + shift) @ weights


def l2(n: Tensor, s: Tensor, norm: Tensor) -> Tensor:
    """The l2 penalty of one channel whose scale and shift, of length s, are multiplied by n, and its W_c divided."""
    return n**2 * s**2 + norm**2 / n**2


def test_outputs_do_not_change_when_a_channel_is_rescaled() -> None:
    x, shift, scale, weights = normal(20, 6), normal(6, seed=1), normal(6, seed=2), normal(6, 4, seed=3)
    n = normal(6, seed=4).exp()
    before = behind_relu(x, shift, scale, weights)
    assert torch.allclose(behind_relu(x, n * shift, n * scale, weights / n[:, None]), before)
    turned = behind_relu(x, -n * shift, -n * scale, -weights / n[:, None])
    assert not torch.allclose(turned, before), "a ReLU is no odd function: n must be positive"


def test_batch_norm_and_relu_is_the_scaled_relu_of_the_normalised_input() -> None:
    norm = nn.BatchNorm1d(3).double()
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias, -1, 1)
    x = normal(50, 3)
    plain = (x - x.mean(0)) / (x.var(0, correction=0) + norm.eps).sqrt()
    a, b = norm.bias.tolist(), norm.weight.tolist()
    columns = [scaled_relu(plain[:, c], a[c] / b[c], b[c]) for c in range(3)]
    assert torch.allclose(torch.relu(norm(x)), torch.stack(columns, 1))


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


def test_the_bound_with_the_l1_norm_as_printed_is_false() -> None:
    weights, s = torch.tensor([3.0, 4.0]).double(), torch.tensor(1.0).double()
    smallest = l2((weights.norm() / s).sqrt(), s, weights.norm())
    assert smallest == pytest.approx(2 * 5)
    assert smallest < 2 * weights.abs().sum() * s
    single = torch.tensor([0.0, -4.0]).double()
    assert l2((single.norm() / s).sqrt(), s, single.norm()) == pytest.approx((2 * single.abs().sum() * s).item())


def trained(decay: float, steps: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Theorem 1's setting without anything between: SGD with l2 decay on scale, shift and W. Their s_c and ||W_c||."""
    x, shift, scale = normal(64, 8, seed=seed), torch.zeros(8).double(), torch.ones(8).double()
    weights, target = 0.3 * normal(8, 3, seed=seed + 1), normal(64, 3, seed=seed + 2)
    parameters = [value.requires_grad_() for value in (shift, scale, weights)]
    optimizer = torch.optim.SGD(parameters, lr=0.05, weight_decay=decay)
    for _ in range(steps):
        optimizer.zero_grad()
        (behind_relu(x, shift, scale, weights) - target).square().mean().backward()
        optimizer.step()
    return penalty_weights(scale, shift).detach(), weights.detach().norm(dim=1)


def test_l2_decay_brings_weights_and_penalty_weights_together() -> None:
    s, norms = trained(decay=0.02, steps=6000)
    assert (s > 1e-3).any()
    assert torch.allclose(s, norms, atol=1e-3)
    assert correlations(norms, s)["pearson"] > 0.99


def test_without_decay_the_difference_of_their_squares_stays() -> None:
    start_s, start_norms = trained(decay=0, steps=0)
    s, norms = trained(decay=0, steps=500)
    assert not torch.allclose(s, start_s, atol=0.05)
    assert torch.allclose(s**2 - norms**2, start_s**2 - start_norms**2, atol=0.02)


# --- theorem 2 and inequality (6) ------------------------------------------------------------------------------------


def intermediate(rows: Tensor) -> float:
    """The last but one expression of (6): (e'BB'e - sum_i ||B_i||^2) / (n (n - 1) min_i ||B_i||^2)."""
    n, squares = len(rows), rows.square().sum(1)
    return float((rows.sum(0).square().sum() - squares.sum()) / (n * (n - 1) * squares.min()))


signed = st.tuples(st.integers(2, 8), st.integers(1, 6), st.integers(0, 2**31), st.floats(-2, 2), st.floats(0.01, 10))


@given(signed)
@settings(max_examples=200, deadline=None)
def test_similarity_is_below_the_final_form_of_the_inequality(drawn: tuple[int, int, int, float, float]) -> None:
    n, d, seed, mean, scale = drawn
    rows = scale * (normal(n, d, seed=seed) + mean)
    similarity, _, _, bound, *_ = token_statistics(rows[None])[0].tolist()
    assert similarity <= bound + 1e-9 * max(1, bound)


def test_the_line_before_it_is_no_bound_for_signed_matrices() -> None:
    cases = [normal(4, 3, seed=seed) for seed in range(200)]
    violated = [float(cosine_similarity(rows)) > intermediate(rows) + 1e-9 for rows in cases]
    assert 20 < sum(violated) < 180
    for rows in cases:
        assert float(cosine_similarity(rows.abs())) <= intermediate(rows.abs()) + 1e-9


def test_the_bound_is_informative_for_rows_of_one_length_and_not_for_a_short_row() -> None:
    rows = normal(40, 400)
    assert token_statistics(rows[None])[0, 3] < 0.2
    rows[0] *= 0.01
    assert token_statistics(rows[None])[0, 3] > 1


def moments(a: float, b: float, s: float) -> tuple[float, float]:
    """Mean and variance of b ReLU(x + a) for normal x of standard deviation s."""
    density = math.exp(-((a / s) ** 2) / 2) / math.sqrt(2 * math.pi)
    below = (1 + math.erf(a / s / math.sqrt(2))) / 2
    mean = b * (s * density + a * below)
    return mean, b**2 * ((a**2 + s**2) * below + a * s * density) - mean**2


def test_closed_forms_for_normal_entries() -> None:
    mean, variance = moments(0, 1, 1)
    assert (mean, variance) == pytest.approx((0.398942, 0.340845), abs=1e-6)
    for a, b, s in ((0.5, 2.0, 1.0), (-0.7, 0.3, 2.0)):
        entries = scaled_relu(s * normal(400_000), a, b)
        mean, variance = moments(a, b, s)
        assert entries.mean().item() == pytest.approx(mean, rel=0.02)
        assert entries.var().item() == pytest.approx(variance, rel=0.02)


@pytest.mark.parametrize("a", [0.0, 0.8])
def test_norms_of_relu_of_a_normal_matrix(a: float) -> None:
    """Operator norm near sqrt(n d mu^2 + sigma^2 (n + d)), below the triangle's bound; rows as the second moment."""
    n = d = 400
    rows, (mean, variance) = scaled_relu(normal(n, d), a, 1.0), moments(a, 1.0, 1.0)
    largest = singular_values(rows)[-1].item()
    assert largest == pytest.approx(math.sqrt(n * d * mean**2 + variance * (n + d)), rel=0.01)
    assert largest < math.sqrt(n * d) * mean + math.sqrt(variance) * (math.sqrt(n) + math.sqrt(d))
    assert (rows.square().sum(1) / d).mean().item() == pytest.approx(mean**2 + variance, rel=0.02)
    centred = singular_values(rows - mean)[-1].item()
    assert centred == pytest.approx(math.sqrt(variance) * (math.sqrt(n) + math.sqrt(d)), rel=0.05)


def test_b_scales_the_norms_and_leaves_similarity_and_bound() -> None:
    matrix = normal(30, 20)
    one, three = (token_statistics(scaled_relu(matrix, 0.2, b)[None])[0].tolist() for b in (1.0, 3.0))
    for place, factor in enumerate((1, 3, 3, 1, 3, 1, 1)):
        assert three[place] == pytest.approx(factor * one[place])


def test_relu_of_independent_entries_makes_rows_more_alike_not_less() -> None:
    """The paper concludes the opposite; here similarity goes from 0 to mu^2 / (mu^2 + sigma^2) = 1 / pi."""
    matrix = normal(400, 400)
    assert abs(float(cosine_similarity(matrix))) < 1e-3
    assert float(cosine_similarity(torch.relu(matrix))) == pytest.approx(1 / math.pi, abs=0.005)
    mean, variance = moments(0, 1, 1)
    assert mean**2 / (mean**2 + variance) == pytest.approx(1 / math.pi)
