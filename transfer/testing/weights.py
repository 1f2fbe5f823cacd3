"""Checks of parameters: gradients, sharing, and what a state dict holds."""

import io
from collections import defaultdict
from copy import deepcopy

import torch
from torch import Tensor

from backbones.errors import shortened
from transfer.testing.results import CheckFailed, CheckSkipped
from transfer.testing.subject import Subject, check_equal, train_without_noise


def gradients_reach_parameters(subject: Subject) -> str:
    """Every trainable parameter gets a gradient that is finite and not all zeros."""
    model = subject.backbone()
    train_without_noise(model)
    features = model(subject.images())
    if not features.requires_grad:
        raise CheckFailed("features have no gradient at all (detach(), .data, or no_grad() in the forward pass)")
    generator = torch.Generator().manual_seed(subject.seed + 4)
    (features * torch.randn(features.shape, generator=generator)).sum().backward()
    found = dict[str, list[str]]({"no gradient": [], "a gradient of zeros": [], "a gradient that is not finite": []})
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, parameter in trained:
        if parameter.grad is None:
            found["no gradient"].append(name.removeprefix("model."))
        elif not parameter.grad.isfinite().all():
            found["a gradient that is not finite"].append(name.removeprefix("model."))
        elif not parameter.grad.any():
            found["a gradient of zeros"].append(name.removeprefix("model."))
    problems = [f"{problem}: {shortened(names)}" for problem, names in found.items() if names]
    if problems:
        raise CheckFailed("; ".join(problems))
    return f"{len(trained)} parameters"


def own_parameters(subject: Subject) -> None:
    """No two parameters share memory: not two names of one model, nor two models that were made one after the other."""
    model, twin = subject.twins
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[_memory(parameter)].append(name.removeprefix("model."))
    if shared := [group for group in names.values() if len(group) > 1]:
        reason = "these names are one parameter: " + "; ".join(" = ".join(group) for group in shared[:3])
        if subject.kind == "timm":
            raise CheckSkipped(f"timm's {subject.source.spec.arch} is made so: {reason}")
        raise CheckFailed(reason)
    other = {_memory(parameter) for parameter in twin.parameters()}
    if between := [group[0] for memory, group in names.items() if memory in other]:
        raise CheckFailed(f"two models share the memory of {shortened(between)}")


def state_dict_round_trip(subject: Subject) -> str:
    """A state dict that was saved and loaded into another model gives the same features to the bit."""
    model = subject.backbone()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    try:
        state: dict[str, Tensor] = torch.load(file, weights_only=True)
    except Exception as error:
        raise CheckFailed(f"torch.load(weights_only=True) refuses it: {str(error).splitlines()[0]}") from error
    other = deepcopy(subject.of_other_seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    try:
        other.load_state_dict(state)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise CheckFailed(f"load_state_dict refuses it: {' '.join(lines[:2])}") from error
    with torch.no_grad():
        check_equal(
            other.pooled(subject.images()),
            model.pooled(subject.images()),
            0.0,
            "a model of another seed after load_state_dict",
        )
    return f"{len(state)} tensors"


def _memory(parameter: Tensor) -> tuple[int, int]:
    return parameter.untyped_storage().data_ptr(), int(parameter.storage_offset())
