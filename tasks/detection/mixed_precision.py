"""Where a detector computes in half precision, and where it does not.

Backbone, neck and the layers within heads follow autocast. What leaves a level or a head is float32, and with it all
that mmdetection makes of it, as it takes the type of anchors, regions and scores from these outputs: decoding,
proposals, targets, losses, suppression with its offset per class, probabilities of masks, the way back to the stored
image. At 1,000 pixels bf16 knows steps of 4 pixels only.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from backbones.runtime.finite import NotFinite
from tasks.detection.operator_dtype import operator_dtype


class FullPrecision(nn.Module):
    """A neck whose levels leave in float32, as mmdetection gives regions the type of the levels. Layers behind it
    compute in the run's precision all the same.
    """

    def __init__(self, neck: Any) -> None:
        super().__init__()
        self.neck = neck

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps of the backbone -> levels."""
        return tuple(widened(level) for level in self.neck(maps))


def widen_heads(detector: nn.Module) -> None:
    """Has the outputs of every head leave in float32 at least."""
    for head in heads(detector):
        head.register_forward_hook(_widened_output)


def heads(detector: nn.Module) -> list[nn.Module]:
    """What mmdetection names `..._head`, at any depth; of a cascade each of its stages."""
    found: list[nn.Module] = []
    for name, module in detector.named_modules():
        if name.endswith("_head"):
            found += module if isinstance(module, nn.ModuleList) else [module]
    return found


def _widened_output(head: nn.Module, inputs: Any, output: Any) -> Any:
    return widened(output)


def widened(value: Any) -> Any:
    """Floating-point tensors, in tuples, lists and dictionaries too, in float32 at least; all else as it is."""
    if isinstance(value, Tensor):
        return value.to(operator_dtype(value)) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: widened(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(widened(part) for part in value)
    return value


@contextmanager
def finite_outputs(detector: Any) -> Iterator[None]:
    """Within it a level or an output of a head that is not finite raises NotFinite.

    mmdetection would leave out a box whose score is no number, and score the image by the others.
    """

    def check(module: nn.Module, inputs: Any, output: Any) -> None:
        if not all(bool(part.isfinite().all()) for part in _tensors(output)):
            raise NotFinite

    handles = [part.register_forward_hook(check) for part in (detector.neck, *heads(detector))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor) and value.is_floating_point():
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)
