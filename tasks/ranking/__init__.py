"""Re-identification: distances of features, ranked galleries with mAP, CMC and mINP, ties, and k-reciprocal re-ranking.

Training is in `tasks.reid`, data in `transfer.data.reid`; nothing here knows a model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.ranking.metrics import Ranking, rank, rank_distances

__all__ = ["Ranking", "rank", "rank_distances"]


def __getattr__(name: str) -> Any:
    # Reports read ranked lists by this room and have no need of torch, which `metrics` imports.
    if name in __all__:
        return getattr(import_module("tasks.ranking.metrics"), name)
    raise AttributeError(f"module 'tasks.ranking' has no attribute {name!r}")
