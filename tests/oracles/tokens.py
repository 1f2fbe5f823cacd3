"""How alike and how large the tokens of one image are, and its attention weights (arXiv 2109.03810, section 3).

Shapes: n tokens of d channels, N queries, L keys.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def similarity(tokens: NDArray[Any]) -> float:
    """Return the mean cosine over all pairs of non-zero tokens [n, d]; nan with fewer than two."""
    units = np.array([token / np.sqrt((token**2).sum()) for token in tokens if token.any()])
    if len(units) < 2:
        return float("nan")
    return float((units @ units.T)[np.triu_indices(len(units), 1)].mean())


def token_facts(tokens: NDArray[Any]) -> dict[str, float]:
    """Measure tokens [n, d]: operator norm, smallest row, bound (6), mean norm, effective rank, share of zero rows."""
    norms = np.array([np.sqrt((token**2).sum()) for token in tokens])
    there = norms[norms > 0]
    values = np.linalg.svd(tokens, compute_uv=False)
    shares = values[values > 0] / max(values.sum(), np.finfo(float).tiny)
    smallest = there.min() if len(there) > 1 else np.nan
    return {
        "operator_norm": float(values.max()),
        "smallest_norm": float(smallest),
        "bound": float(((values.max() / smallest) ** 2 - 1) / max(len(there) - 1, 1)),
        "norm": float(norms.mean()),
        "effective_rank": float(np.exp(-(shares * np.log(shares)).sum())) if values.sum() else 0.0,
        "zero_rows": float((norms == 0).mean()),
    }


def attention_facts(weights: NDArray[Any]) -> dict[str, float]:
    """Measure weights [heads, N, L]: row sums, entropy of the normalised absolute rows, fraction of zero rows."""
    sums, entropies, empty = [], [], 0
    for row in weights.reshape(-1, weights.shape[-1]):
        sums.append(row.sum())
        size = np.abs(row).sum()
        empty += not size
        if size:
            shares = np.abs(row[row != 0]) / size
            entropies.append(-(shares * np.log(shares)).sum())
    return {
        "row_sum": float(np.mean(sums)),
        "row_sum_smallest": float(min(sums)),
        "row_sum_largest": float(max(sums)),
        "entropy": float(np.mean(entropies)) if entropies else np.nan,
        "zero_rows": empty / len(sums),
    }
