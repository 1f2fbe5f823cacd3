"""Re-identification: distances of features, ranked galleries with mAP, CMC and mINP, ties, and k-reciprocal re-ranking.

Training is in `tasks.reid`, data in `transfer.data.reid`; nothing here knows a model.
"""

from typing import TYPE_CHECKING

from transfer.core.lazy import lazy_names

if TYPE_CHECKING:
    from tasks.ranking.metrics import Ranking, rank, rank_distances

__all__ = ["Ranking", "rank", "rank_distances"]
# Reports read ranked lists by this room and have no need of torch, which `metrics` imports.
__getattr__ = lazy_names(__name__, {"tasks.ranking.metrics": __all__})
