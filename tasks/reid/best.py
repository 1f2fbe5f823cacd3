"""The state of a training at its best validation (`--keep best`)."""

import math
from typing import Any

from torch import Tensor, nn


class Best(nn.Module):
    """Keeps the state with the highest validation mAP, the first of several, as a part of the learner.

    Hence checkpoints have it. It has no parameters or buffers, which DDP would broadcast with every step.

    Attributes:
        epoch: of the state (1-based); 0 before the first validation.
        mAP: of that validation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch, self.mAP, self.tensors = 0, -math.inf, dict[str, Tensor]()

    def update(self, learner: nn.Module, epoch: int, score: float) -> None:
        """Keep the learner's state on the CPU if the score is the highest so far."""
        if score > self.mAP:
            states = {name: value for name, value in learner.state_dict().items() if isinstance(value, Tensor)}
            self.epoch, self.mAP = epoch, score
            self.tensors = {name: value.detach().cpu().clone() for name, value in states.items()}

    def get_extra_state(self) -> dict[str, Any]:
        """Return what a resumed training needs."""
        return {"epoch": self.epoch, "mAP": self.mAP, "tensors": self.tensors}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_extra_state`."""
        self.epoch, self.mAP, self.tensors = state["epoch"], state["mAP"], state["tensors"]
