"""`python -m tests.gpu tests.gpu.functions`: what people import gives on the GPU what it gives on the CPU."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from backbones.kernels.functions import normalised_pointwise, pointwise, softmax
from backbones.pretrain.accuracy import weighted_knn
from tasks.probes import LeastSquares, Logistic, Neighbours, best_strength, standardise
from tasks.ranking.metrics import rank, rank_distances
from tasks.ranking.reranking import rerank
from tasks.reid.training import batch_hard_triplet

Place = Callable[[Tensor], Tensor]
DRAW = torch.Generator().manual_seed(0)
QUERY, GALLERY, HEADS = (torch.randn(size, generator=DRAW) for size in ((20, 8), (50, 8), (2, 2, 9, 16)))
IDS, CAMERAS = (torch.arange(20) % 5, torch.arange(50) % 5), (torch.arange(20) % 2, torch.arange(50) % 3)
KNN: Any = {"k": [3, 5], "temperature": 0.07, "classes": 5}
LABELS = (*IDS, *CAMERAS)
JUNK = (torch.zeros(20).long(), torch.zeros(50).long(), (torch.arange(20) > 0).long(), torch.zeros(50).long())
"""All of the gallery is junk to the first query."""


def triplet(on: Place) -> Any:
    """Return the gradient of the loss."""
    features = on(GALLERY).requires_grad_()
    batch_hard_triplet(features, on(IDS[1])).backward()
    return features.grad


def probed(kind: Any, on: Place, strengths: list[Any], **how: Any) -> Any:
    """Return the best strength and predictions of a probe."""
    probe = kind(on(GALLERY), on(IDS[1]), 5, **how)
    return best_strength(probe, on(QUERY), on(IDS[0]), strengths), probe.predict(on(QUERY), strengths[0])


CALLS: dict[str, Callable[[Place], Any]] = {
    "rank": lambda on: rank(on(QUERY), on(GALLERY), *LABELS, keep=5).ap,
    "rank by labels on the device": lambda on: rank(on(QUERY), on(GALLERY), *map(on, LABELS), keep=5).ap,
    "rank with a query of nothing but junk": lambda on: rank(on(QUERY), on(GALLERY), *JUNK, keep=5).ap,
    "rank_distances": lambda on: rank_distances(on(torch.cdist(QUERY, GALLERY)), *LABELS, keep=5).ap,
    "rerank": lambda on: rerank(on(QUERY), on(GALLERY), k1=5, k2=3),
    "weighted_knn": lambda on: weighted_knn(on(GALLERY), on(IDS[1]), on(QUERY), **KNN)[5],
    "standardise": lambda on: standardise(on(GALLERY), on(QUERY)),
    "LeastSquares": lambda on: probed(LeastSquares, on, [1.0, 2.0]),
    "Logistic": lambda on: probed(Logistic, on, [1.0, 2.0]),
    "Neighbours": lambda on: probed(Neighbours, on, [1, 3], temperature=0.1),
    "batch_hard_triplet": triplet,
    "pointwise": lambda on: pointwise(on(HEADS), on(HEADS), on(HEADS), alpha=on(torch.tensor(1.0))),
    "normalised_pointwise": lambda on: normalised_pointwise(on(HEADS), on(HEADS), on(HEADS)),
    "softmax": lambda on: softmax(on(HEADS), on(HEADS), on(HEADS)),
}


def main() -> int:
    """Compare all, up to the first that differs or fails."""
    for name, call in CALLS.items():
        ours, exact = call(lambda x: x.to("cuda")), call(lambda x: x)
        for one, other in zip(*(found if isinstance(found, tuple) else (found,) for found in (ours, exact))):
            assert not isinstance(other, Tensor) or one.is_cuda, f"{name}: the result is on the CPU"
            host = one.cpu() if isinstance(one, Tensor) else one
            assert_close(
                np.asarray(host), np.asarray(other), equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
