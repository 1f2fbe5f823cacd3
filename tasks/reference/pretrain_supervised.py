"""The last validation of a supervised pretraining anew."""

from tasks.reference.finetune import recompute

__all__ = ["recompute"]
