"""Models on the meta device, of which only the shapes matter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_IN_PLACE = frozenset(
    getattr(Tensor, name)
    for name in ("normal_", "uniform_", "erfinv_", "mul_", "add_", "sub_", "div_", "clamp_", "fill_", "zero_")
)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Within this context modules are made on the meta device, and nothing is computed for their initial values.

    Drawing them takes three quarters of the time in which a ViT is made there, and there are no values to draw.
    """
    with torch.device("meta"), _NoValues():
        yield


class _NoValues(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return a tensor without values itself, in place of what would change them."""
        return args[0] if func in _IN_PLACE and args[0].is_meta else func(*args, **(kwargs or {}))
