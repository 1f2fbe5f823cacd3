"""Checks of what a model computes: the same features again, alone, in training mode, in bf16; types and inputs kept."""

import torch
from torch import Tensor, nn

from backbones.build import pooled_features
from backbones.errors import first_line
from transfer.testing.results import CheckFailed, CheckSkipped
from transfer.testing.subject import Subject, check_equal, difference, train_without_noise

ROUNDING = 1e-3
"""Largest difference of two ways to compute the same in float32, as a share of the largest feature."""
BF16_ROUNDING = 0.1
"""The same for bf16 autocast, as the norm of the difference by the norm of the features."""


def eval_is_deterministic(subject: Subject) -> None:
    """In evaluation mode the same images give the same features to the bit."""
    model, images = subject.backbone(), subject.images()
    with torch.no_grad():
        check_equal(model.pooled(images), model.pooled(images), 0.0, "the same images twice in evaluation mode")


def batch_independence(subject: Subject) -> None:
    """In evaluation mode an image's features do not depend on the other images of the batch."""
    model, images = subject.backbone(), subject.images(3)
    with torch.no_grad():
        together = model.pooled(images)
        alone = torch.cat([model.pooled(images[index : index + 1]) for index in range(3)])
    check_equal(together, alone, ROUNDING / 10, "a batch of 3 images against each alone")


def train_equals_eval(subject: Subject) -> None:
    """Without dropout and stochastic depth, and with batch norm's statistics fixed, training mode gives the features
    of evaluation mode.
    """
    model, images = subject.backbone(), subject.images()
    with torch.no_grad():
        in_evaluation = model.pooled(images)
        in_training = train_without_noise(model)(images)
    check_equal(in_training, in_evaluation, ROUNDING, "training mode without noise against evaluation mode")


def eval_keeps_state(subject: Subject) -> None:
    """A forward pass in evaluation mode changes no parameter and no buffer."""
    model = subject.backbone()
    before = {name: value.clone() for name, value in _tensors(model).items()}
    with torch.no_grad():
        model.pooled(subject.images())
    for name, value in _tensors(model).items():
        if name in before and not torch.equal(before[name], value):
            raise CheckFailed(f"a forward pass in evaluation mode changes {name}")


def input_is_kept(subject: Subject) -> None:
    """The model does not write into its input."""
    model = subject.backbone()
    inputs = model.normalised(subject.images())
    before, version = inputs.clone(), inputs._version
    with torch.no_grad():
        pooled_features(model.model, inputs)
    if not torch.equal(inputs, before) or inputs._version != version:
        raise CheckFailed("the tensor of images that the model got is written to in its forward pass")


def stays_float32(subject: Subject) -> None:
    """Weights and features are float32."""
    model = subject.backbone()
    for name, tensor in _tensors(model).items():
        if tensor.dtype == torch.float64:
            raise CheckFailed(f"{name} is float64")
    with torch.no_grad():
        features = model.pooled(subject.images())
    if features.dtype != torch.float32:
        raise CheckFailed(f"features of float32 images are {features.dtype}")


def bf16_autocast(subject: Subject) -> str:
    """Under bf16 autocast features are finite and near those of float32, and gradients are finite."""
    model, images = subject.backbone(), subject.images()
    with torch.no_grad():
        reference = model.pooled(images)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            features = model.pooled(images)
        features.float().square().mean().backward()
    except Exception as error:
        raise CheckFailed(f"under bf16 autocast: {first_line(error)}") from error
    if not features.isfinite().all():
        raise CheckFailed("features under bf16 autocast are not finite")
    bad = [
        name for name, weight in model.named_parameters() if not (weight.grad is None or weight.grad.isfinite().all())
    ]
    if bad:
        raise CheckFailed(f"gradients under bf16 autocast are not finite: {', '.join(bad[:3])}")
    features = features.detach()
    apart = float((features.float() - reference).norm() / reference.norm().clamp_min(1e-12))
    if apart > BF16_ROUNDING:
        raise CheckFailed(f"features under bf16 autocast differ by {apart:.0%} in norm (allowed: {BF16_ROUNDING:.0%})")
    return f"differs by {apart:.1%} in norm, {difference(features, reference):.1%} at most"


def other_seed(subject: Subject) -> str:
    """Two models made with one seed have equal weights, with two seeds different ones."""
    if not subject.source.is_reinitialized:
        raise CheckSkipped("a module with weights of its own is not initialized again")
    first, again = (twin.state_dict() for twin in subject.twins)
    other = subject.of_other_seed.state_dict()
    for name, value in first.items():
        if not torch.equal(value, again[name]):
            raise CheckFailed(f"{name} differs between two models made with the same seed")
    same = [name for name, value in first.items() if torch.equal(value, other[name])]
    if len(same) == len(first) and first:
        raise CheckFailed("models made with two different seeds have equal weights: the initialisation is fixed")
    return f"{len(first) - len(same)} of {len(first)} tensors differ with the seed"


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
