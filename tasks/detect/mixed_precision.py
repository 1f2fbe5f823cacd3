"""Which parts of a detector compute in half precision.

Backbone, neck and the layers within heads follow autocast. Levels of the pyramid and outputs of heads are float32, and
so is all that mmdetection derives from them, since anchors, regions and scores take the type of these outputs:
decoding, proposals, targets, losses, suppression with its offset per class, probabilities of masks, boxes in the stored
image. At 1,000 pixels bf16 resolves steps of 4 pixels only.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tasks.detect.mmlab.operators import operator_dtype
from transfer.engine.extract import NotFinite


class FullPrecision(nn.Module):
    """A neck whose levels are float32, mmdetection's type of regions. Later layers follow autocast."""

    def __init__(self, neck: Any) -> None:
        super().__init__()
        self.neck = neck

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the pyramid's levels, in float32 at least, of the backbone's maps."""
        return tuple(widened(level) for level in self.neck(maps))


def widen_heads(detector: nn.Module) -> None:
    """Make every head return its outputs in float32 at least."""
    for head in heads(detector):
        head.register_forward_hook(lambda head, inputs, output: widened(output))


def heads(detector: nn.Module) -> list[nn.Module]:
    """Return the modules that mmdetection names `..._head`, at any depth; each stage of a cascade."""
    modules: list[nn.Module] = []
    for name, module in detector.named_modules():
        if name.endswith("_head"):
            modules += module if isinstance(module, nn.ModuleList) else [module]
    return modules


def widened(value: Any) -> Any:
    """Return floating-point tensors, within containers too, in float32 at least; all else unchanged."""
    return tree_map(lambda x: x.to(operator_dtype(x)) if _is_float(x) else x, value)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


@contextmanager
def finite_outputs(detector: Any) -> Iterator[None]:
    """Raise NotFinite within the block when a level or an output of a head is not finite.

    mmdetection would drop a box whose score is nan, and the image would be scored by the others.
    """

    def check(module: nn.Module, inputs: Any, output: Any) -> None:
        if not all(bool(leaf.isfinite().all()) for leaf in tree_leaves(output) if _is_float(leaf)):
            raise NotFinite

    with ExitStack() as hooks:
        for module in (detector.neck, *heads(detector)):
            hooks.callback(module.register_forward_hook(check).remove)
        yield
