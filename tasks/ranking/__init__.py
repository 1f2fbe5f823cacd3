"""Re-identification: distances of features, ranked galleries with mAP, CMC and mINP, ties, and k-reciprocal re-ranking.

Training and the data of `reid` live in `tasks/reid.py` and `tasks/data`; nothing here knows a model.
"""

from tasks.ranking.metrics import Ranking, rank, rank_distances

__all__ = ["Ranking", "rank", "rank_distances"]
