"""Functions that people call with tensors on a GPU: they answer there, as on the CPU; run by `test_calls.py`."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from backbones.pretrain.knn import weighted_knn
from backbones.pretrain.supervised.token_labels import crop_targets
from tasks.probes import LeastSquares, Logistic, Neighbours, best_strength, ridge, standardise
from tasks.ranking import Ranking, rank, rank_distances
from tasks.ranking.reranking import rerank
from tasks.reid.losses import batch_hard_triplet
from transfer.data.loading.images import erased

GPU = torch.device("cuda")
generator = torch.Generator().manual_seed(0)
QUERY, GALLERY = (torch.randn(rows, 8, generator=generator) for rows in (20, 50))
LABELS = [torch.arange(rows) % count for count, rows in ((5, 20), (5, 50), (2, 20), (3, 50))]
JUNK = [torch.zeros(20), torch.zeros(50), torch.arange(20) > 0, torch.zeros(50)]
"""The first query's whole gallery is of its identity and camera."""


def same(found: Any, expected: Any) -> None:
    """Both are equal; a tensor is on the GPU."""
    if isinstance(found, Tensor):
        assert found.is_cuda
        found, expected = found.cpu().numpy(), expected.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-12)


def same_ranking(found: Ranking, expected: Ranking) -> None:
    for name, values in vars(expected).items():
        same(getattr(found, name), values)


for labels in (LABELS, [part.long() for part in JUNK]):
    copies = [torch.cat([part, part]) for part in (QUERY, GALLERY)], [torch.cat([part, part]) for part in labels]
    for features, names in (((QUERY, GALLERY), labels), copies):
        expected = rank(*features, *names, keep=5)
        same_ranking(rank(*(part.to(GPU) for part in features), *names, keep=5), expected)
        same_ranking(rank(*(part.to(GPU) for part in (*features, *names)), keep=5), expected)
    distances = torch.cdist(QUERY, GALLERY)
    expected = rank_distances(distances, *labels, keep=5)
    same_ranking(rank_distances(distances.to(GPU), *labels, keep=5), expected)
    same_ranking(rank_distances(distances.numpy(), *labels, keep=5, device=GPU), expected)
same(rerank(QUERY.to(GPU), GALLERY.to(GPU), k1=5, k2=3), rerank(QUERY, GALLERY, k1=5, k2=3))

query_ids, gallery_ids = LABELS[:2]
voted = weighted_knn(GALLERY, gallery_ids, QUERY, k=[3, 5], temperature=0.07, classes=5)
for train, known in ((GALLERY, gallery_ids), (GALLERY.to(GPU), gallery_ids.to(GPU))):
    found = weighted_knn(train, known, QUERY.to(GPU), k=[3, 5], temperature=0.07, classes=5)
    same(found[5], voted[5])
x, y, test, true = (part.to(GPU) for part in (GALLERY, gallery_ids, QUERY, query_ids))
same(standardise(x, test)[1], standardise(GALLERY, QUERY)[1])
same(ridge(x, y, l2=1.0, classes=5), ridge(GALLERY, gallery_ids, l2=1.0, classes=5))
for fit in (LeastSquares, Logistic, lambda *given: Neighbours(*given, temperature=0.1)):
    probe, on_cpu = fit(x, y, 5), fit(GALLERY, gallery_ids, 5)
    same(probe.predict(test, 2.0), on_cpu.predict(QUERY, 2.0))
    assert best_strength(probe, test, true, [1, 2, 3]) == best_strength(on_cpu, QUERY, query_ids, [1, 2, 3])
same(Logistic(x, torch.full_like(y, 4), 5).predict(test, 1.0), torch.full((20,), 4))

same(batch_hard_triplet(x, y), batch_hard_triplet(GALLERY, gallery_ids))
batch = torch.full((2, 3, 8, 8), 7, dtype=torch.uint8), torch.tensor([[0, 0, 0, 0], [1, 2, 3, 5]]), torch.rand(45)
same(erased(batch[0].to(GPU), batch[1], batch[2].to(GPU)), erased(*batch))
maps = torch.rand(2, 2, 3, 6, 6)
maps[:, 1] = maps[:, 1].mul(9).floor()
crops = torch.tensor([[0.0, 0, 1, 1, 0], [0.1, 0.1, 0.9, 0.9, 1]])
same(crop_targets(maps.to(GPU), crops.to(GPU), 10, (3, 3))[1], crop_targets(maps, crops, 10, (3, 3))[1])
