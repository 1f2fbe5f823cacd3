"""Statistics of the tokens of an image and of attention weights, as functions of tensors.

Shapes: B images, n tokens (rows), d channels, N queries, L keys, C channels of a norm.
Everything is computed in float64.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOKEN_FIELDS = ("similarity", "operator_norm", "smallest_norm", "bound", "norm", "effective_rank", "zero_rows")
ATTENTION_FIELDS = ("row_sum", "row_sum_smallest", "row_sum_largest", "entropy", "zero_rows")


def cosine_similarity(tokens: Tensor) -> Tensor:
    """Return the mean cosine of the angles between different tokens (arXiv 2109.03810, eq. 5), [..., n, d] -> [...].

    With U the rows of unit length it is (||sum_i U_i||^2 - n) / (n (n - 1)), which takes n d operations for n^2 d.
    Rows of zeros have no direction and are left out; NaN where fewer than two remain.
    """
    rows = tokens.double()
    norms = rows.norm(dim=-1, keepdim=True)
    units = torch.where(norms > 0, rows / norms, 0 * norms)
    n = (norms > 0).sum((-2, -1)).double()
    pairs = (n - 1).clamp_min(1)
    value = torch.minimum((units.sum(-2).square().sum(-1) - n) / (n.clamp_min(1) * pairs), torch.ones_like(n))
    return torch.where(n > 1, torch.maximum(value, -1 / pairs), torch.nan)  # within its bounds against rounding


def singular_values(tokens: Tensor) -> Tensor:
    """Return the singular values [..., min(n, d)], the largest last, of [..., n, d].

    They are roots of the smaller Gram matrix's eigenvalues: values below 1e-8 of the largest are lost in rounding,
    which does not matter to any quantity here.
    """
    rows = tokens.double()
    gram = rows @ rows.mT if rows.shape[-2] < rows.shape[-1] else rows.mT @ rows
    return torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()


def effective_rank(values: Tensor) -> Tensor:
    """Return exp of the entropy of the singular values' shares in their sum (Roy and Vetterli 2007), [..., r] -> [...].

    Between 1 and the rank; 0 for a matrix of zeros.
    """
    total = values.sum(-1, keepdim=True)
    rank = torch.special.entr(values / total.clamp_min(torch.finfo(torch.float64).tiny)).sum(-1).exp()
    return torch.where(total[..., 0] > 0, rank, 0)


def token_statistics(tokens: Tensor) -> Tensor:
    """Return the `TOKEN_FIELDS` of tokens [B, n, d] as [B, fields]; NaN for images with a token that is not finite.

    similarity, operator norm, norm of the smallest row, bound of the similarity, mean norm of the rows, effective
    rank, share of rows of zeros. Rows of zeros count only in this share and in the mean norm: similarity, smallest norm
    and bound are those of the other rows, NaN when fewer than two remain.

    The bound is (||B||_op^2 / min_i ||B_i||^2 - 1) / (n - 1) (arXiv 2109.03810, inequality 6, last form): with U the
    rows of unit length, ||U||_op <= ||B||_op / min_i ||B_i||. It is informative when below 1. The form before it in the
    paper holds only where no cosine is negative.
    """
    rows = tokens.double()
    finite = rows.isfinite().all(-1).all(-1)
    rows = torch.where(finite[:, None, None], rows, 0)
    norms = rows.norm(dim=-1)
    nonzero = norms > 0
    n = nonzero.sum(-1)
    values = singular_values(rows)
    largest = values[:, -1]
    smallest = torch.where(n > 1, norms.masked_fill(~nonzero, torch.inf).amin(-1), torch.nan)
    bound = (largest / smallest).square().sub(1) / (n.clamp_min(2) - 1)
    fields = [cosine_similarity(rows), largest, smallest, bound, norms.mean(-1), effective_rank(values)]
    fields.append((~nonzero).double().mean(-1))
    return torch.stack(fields, 1).masked_fill(~finite[:, None], torch.nan)


def attention_statistics(weights: Tensor) -> Tensor:
    """Return the `ATTENTION_FIELDS` of weights [B, heads, N, L] as [B, fields]; NaN when a weight is not finite.

    Mean, smallest and largest sum of a row; the mean over rows of the entropy, in nats, of the absolute weights
    divided by their sum (of softmax: of the weights), at most ln L; the share of rows without any weight, which
    have no entropy: NaN when there are no others.
    """
    weights = weights.double().flatten(1, 2)
    finite = weights.isfinite().all(-1).all(-1)
    weights = torch.where(finite[:, None, None], weights, 0)
    sums, sizes = weights.sum(-1), weights.abs().sum(-1)
    nonzero = sizes > 0
    shares = weights.abs() / torch.where(nonzero, sizes, 1)[..., None]
    entropy = torch.special.entr(shares).sum(-1).sum(-1) / nonzero.sum(-1)
    fields = [sums.mean(-1), sums.amin(-1), sums.amax(-1), entropy, (~nonzero).double().mean(-1)]
    return torch.stack(fields, 1).masked_fill(~finite[:, None], torch.nan)


def penalty_weights(scale: Tensor, shift: Tensor) -> Tensor:
    """Return sqrt(alpha^2 + beta^2) [C] of a norm's shift alpha and scale beta before a ReLU.

    l2 decay of alpha, beta and of the weights W_c behind the ReLU amounts to the penalty
    2 sum_c ||W_c||_2 sqrt(alpha_c^2 + beta_c^2), as the scales between the two are free (arXiv 2109.03810, theorem 1).
    The paper writes ||W_c||_1, which holds for a W_c with one entry alone.
    """
    return torch.hypot(scale.double(), shift.double())


def correlations(x: Tensor, y: Tensor) -> dict[str, float | None]:
    """Return Pearson's and Spearman's correlation of [C] with [C]; None for constants or values that are not finite."""
    a, b = x.double().cpu().numpy(), y.double().cpu().numpy()
    if len(a) < 2 or not np.isfinite([a, b]).all() or np.ptp(a) == 0 or np.ptp(b) == 0:
        return {"pearson": None, "spearman": None}
    from scipy import stats

    return {"pearson": float(stats.pearsonr(a, b).statistic), "spearman": float(stats.spearmanr(a, b).statistic)}


def layer_facts(layers: list[dict[str, Any]], places: list[NDArray[Any]]) -> list[dict[str, Any]]:
    """Describe every place as plain values: means over the images of fields [M, F], None if undefined for all, and the
    similarity's deviation.
    """
    facts = []
    for about, rows in zip(layers, places, strict=True):
        similarity = rows[:, TOKEN_FIELDS.index("similarity")]
        defined = similarity[np.isfinite(similarity)]
        deviation = float(defined.std(ddof=1)) if len(defined) > 1 else None
        facts.append({**about, **dict(zip(TOKEN_FIELDS, map(finite_mean, rows.T))), "similarity_sd": deviation})
    return facts


def attention_facts(shown: list[dict[str, Any]], attentions: list[NDArray[Any]]) -> list[dict[str, Any]]:
    """Describe every attention likewise from fields [M, G], but by the extremes of the smallest and largest row sum."""
    facts = []
    for about, rows in zip(shown, attentions, strict=True):
        means: dict[str, Any] = dict(zip(ATTENTION_FIELDS, map(finite_mean, rows.T)))
        smallest, largest = (rows[:, ATTENTION_FIELDS.index(f"row_sum_{which}")] for which in ("smallest", "largest"))
        extremes = {"row_sum_smallest": float(smallest.min()), "row_sum_largest": float(largest.max())}
        facts.append({**about, **means, **extremes})
    return facts


def finite_mean(values: NDArray[Any]) -> float | None:
    """Return the mean of the finite values; None when there are none."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else None
