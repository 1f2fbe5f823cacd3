"""The classifier on top of a backbone: fresh, or found in the weights.

Shapes: B images, D channels, C classes.
"""

from collections.abc import Mapping
from typing import Any, Literal

from timm.layers import trunc_normal_
from torch import Tensor, nn

Classes = int | Literal["trained"] | None
SEPARATE_HEAD = "_classifier"
"prefix, among the tensors of a user's whole model, of the classifier that stands beside it"


class Head:
    """The classifier of one model: the model's own, or a linear layer beside a user's whole model.

    Attributes:
        linear: the layer beside the model; None where the model has its own.
        names: the names of the classifier's tensors in an export.
    """

    def __init__(self, model: Any, *, beside: bool) -> None:
        self.model = model
        self.beside = beside
        self.linear: nn.Linear | None = None
        without = set(model.state_dict())
        self.resize(1)
        separate = {f"{SEPARATE_HEAD}.weight", f"{SEPARATE_HEAD}.bias"}
        self.names = separate if beside else set(model.state_dict()) - without

    def resize(self, classes: int) -> None:
        """Replace the classifier by a new one of C outputs."""
        if self.beside:
            self.linear = nn.Linear(self.model.num_features, classes)
        else:
            self.model.reset_classifier(classes)

    def initialise(self, *, zeros: bool) -> None:
        """Initialise as DeiT (truncated normal, 0.02), or with zeros as big_vision; biases are zero in both."""
        layers = [self.linear] if self.linear is not None else self._layers()
        for layer in layers:
            if zeros:
                nn.init.zeros_(layer.weight)
            else:
                trunc_normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def classes_in(self, state: Mapping[str, Tensor]) -> int:
        """Return C of the classifier among the tensors of a file; 0 if it is missing or incomplete."""
        if not self.names <= state.keys():
            return 0
        weights = [state[name] for name in sorted(self.names) if name.endswith("weight")]
        return next((len(weight) for weight in weights if weight.ndim > 1), 0)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load the classifier's tensors of a file into the layer beside the model."""
        if self.linear is not None:
            self.linear.load_state_dict({name: state[f"{SEPARATE_HEAD}.{name}"] for name in ("weight", "bias")})

    def _layers(self) -> list[Any]:
        owners = [self.model.get_submodule(name.rpartition(".")[0]) for name in sorted(self.names)]
        return [layer for layer in dict.fromkeys(owners) if isinstance(layer, nn.Linear | nn.Conv2d)]
