"""Recompute the last validation of a supervised pretraining."""

from tasks.reference.finetune import recompute

__all__ = ["recompute"]
