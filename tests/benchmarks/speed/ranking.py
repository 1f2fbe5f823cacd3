"""Time and memory of ranking and re-ranking, beside the matrix product alone and beside torchreid's re-ranking.

python -m tests.benchmarks ranking [--skip-torchreid]
The sizes are those of Market-1501 and MSMT17, the features drawn: "trained" ones stand near their identity's centre,
"random" ones anywhere. torchreid's part takes some minutes and 10 GiB.

Needs torchreid and 10 GiB of memory, unless `--skip-torchreid` is given.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import normalize

from tasks.ranking.metrics import rank, rank_distances
from tasks.ranking.reranking import rerank
from tests.benchmarks.options import read
from tests.benchmarks.speed.timing import figure, fresh_peak, measure, peak, timed
from transfer.core.process import ALONE
from transfer.engine.device import choose_device

MARKET = {"queries": 3_368, "gallery": 15_913, "identities": 750, "distractors": 2_798, "cameras": 6, "dim": 768}
MSMT17 = {"queries": 11_659, "gallery": 82_161, "identities": 3_060, "distractors": 0, "cameras": 15, "dim": 384}


def draw_labels(sizes: dict[str, int]) -> tuple[np.ndarray, ...]:
    """Query ids, gallery ids, query cameras, gallery cameras."""
    rng = np.random.default_rng(0)
    queries, gallery, cameras = sizes["queries"], sizes["gallery"], sizes["cameras"]
    gallery_ids = rng.permutation(gallery) % sizes["identities"]
    gallery_ids[: sizes["distractors"]] = -1
    query_ids = rng.permutation(queries) % sizes["identities"]
    return query_ids, gallery_ids, rng.integers(0, cameras, queries), rng.integers(0, cameras, gallery)


def draw_features(sizes: dict[str, int], ids: tuple[np.ndarray, ...], noise: float | None) -> list[torch.Tensor]:
    """L2-normalised query and gallery features, `noise` times as far from centres as these from each other."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(sizes["identities"] + 1, sizes["dim"], generator=generator)
    drawn = []
    for some in ids:
        features = torch.randn(len(some), sizes["dim"], generator=generator)
        if noise is not None:
            features.mul_(noise).add_(centres[torch.from_numpy(some)])
        drawn.append(normalize(features))
    return drawn


def rank_beside_product(kind: str, noise: float | None) -> None:
    names = draw_labels(MARKET)
    query, gallery = draw_features(MARKET, names[:2], noise)
    device = choose_device("auto", ALONE)
    query, gallery = query.to(device), gallery.to(device)
    functions = {"product": lambda: query @ gallery.T, "rank": lambda: rank(query, gallery, *names)}
    times = {name: 1 / rate for name, rate in measure(functions, 5, 1, 1, device).items()}
    score = rank(query, gallery, *names).mAP
    figure(f"Market-1501, {kind} features", times["rank"], "s", f"mAP {score:.3f}")
    figure(f"{kind} features: rank / product", times["rank"] / times["product"], "fold")


def torchreid_rerank() -> None:
    from torchreid.reid.metrics import compute_distance_matrix
    from torchreid.reid.utils.rerank import re_ranking

    names = draw_labels(MARKET)
    query, gallery = draw_features(MARKET, names[:2], 2.0)
    pairs = ((query, gallery), (query, query), (gallery, gallery))

    def torchreids() -> np.ndarray:  # re_ranking squares what it is given
        return re_ranking(*(compute_distance_matrix(*pair).clamp_(min=0).sqrt_().numpy() for pair in pairs))

    (ours_seconds, ours), (theirs_seconds, theirs) = timed(lambda: rerank(query, gallery)), timed(torchreids)
    scores = [rank_distances(distances, *names).mAP for distances in (ours, theirs)]
    print(
        f"Market-1501: torchreid re-ranking {theirs_seconds:.1f} s, rerank {ours_seconds:.1f} s; "
        "distances differ by more than 1e-5 in "
        f"{(np.abs(ours - theirs) > 1e-5).mean():.1e} of the pairs, mAP {scores[0]:.6f} and {scores[1]:.6f}",
        flush=True,
    )
    figure("re-ranking: ours / torchreid", theirs_seconds / ours_seconds, "x")


def memory(name: str) -> None:
    """Time, and peak memory above the inputs."""
    sizes = MARKET if name == "rerank" else MSMT17
    names = draw_labels(sizes)
    query, gallery = (features.to(choose_device("auto", ALONE)) for features in draw_features(sizes, names[:2], None))
    before = fresh_peak()
    taken, _ = timed(lambda: rerank(query, gallery) if name == "rerank" else rank(query, gallery, *names))
    size = f"{sizes['queries']:,} x {sizes['gallery']:,} x {sizes['dim']}"
    figure(f"{name} of {size}", taken, "s", f"peak {peak() - before:.0f} MiB of the process above the inputs")


def main(argv: Sequence[str]) -> int:
    given = read(argv, __doc__, skip_torchreid=False)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, numpy {np.__version__}", flush=True)
    for name in ("rank", "rerank"):
        memory(name)
    for kind, noise in (("trained", 2.0), ("poorly trained", 4.0), ("random", None)):
        rank_beside_product(kind, noise)
    if not given.skip_torchreid:
        warnings.simplefilter("ignore")
        torchreid_rerank()
    return 0
