"""Batch norms that do not train keep their statistics too, so that frozen parts stay what they were, to the bit."""

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Pair = tuple[nn.Module, nn.Module]


def frozen_batch_norms(module: nn.Module, averages: Iterable[Pair] = ()) -> dict[str, _BatchNorm]:
    """Return by name the batch norms that keep running statistics while none of their own parameters trains.

    A norm without parameters goes with the module that holds it: it is frozen where nothing in there trains.

    Args:
        averages: parts that do not train but follow others, each with the one that it follows. A norm in there is
            frozen where its counterpart is: a teacher's normalises by its batch as long as its student's does.
    """
    frozen = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, _BatchNorm) and part.running_mean is not None and not _trains(module, name)
    }
    kept = {id(part) for part in frozen.values()}
    for average, followed in averages:
        counterparts = dict(followed.named_modules())
        for name, part in average.named_modules():
            if id(counterparts[name]) not in kept:
                kept.discard(id(part))
    return {name: part for name, part in frozen.items() if id(part) in kept}


def _trains(module: nn.Module, name: str) -> bool:
    while name and not list(module.get_submodule(name).parameters()):
        name = name.rpartition(".")[0]
    return any(parameter.requires_grad for parameter in module.get_submodule(name).parameters())
