"""`check_backbone` and `backbone_checks`; every check in the order in which they run, and those of what a model
computes and of its weights.

The same features again, alone, in training mode, in bf16; types and inputs kept; gradients, sharing, and what a state
dict holds.
"""

import inspect
import io
import warnings
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backbones.backbone import FEATURE_ROUNDING
from backbones.build import pooled_features
from transfer.core.errors import UsageError, UserError, first_line, shortened, unknown
from transfer.core.grouped import values_by_key
from transfer.testing import CheckFailed, CheckSkipped, Report, Result, State, sizes
from transfer.testing.subject import Factory, Subject, check_equal, difference, spec_of, train_without_noise

BF16_ROUNDING = 0.1
"""The same for bf16 autocast, as the norm of the difference by the norm of the features."""


def eval_is_deterministic(subject: Subject) -> None:
    """In evaluation mode the same images give the same features to the bit.

    Hint: draw random numbers only `if self.training`
    """
    model, images = subject.backbone(), subject.images()
    check_equal(model.pooled(images), model.pooled(images), 0.0, "the same images twice in evaluation mode")


def batch_independence(subject: Subject) -> None:
    """In evaluation mode an image's features do not depend on the other images of the batch.

    Hint: reduce over tokens or channels, never over dimension 0; batch norm needs track_running_stats
    """
    model, images = subject.backbone(), subject.images(3)
    together = model.pooled(images)
    alone = torch.cat([model.pooled(images[index : index + 1]) for index in range(3)])
    check_equal(together, alone, FEATURE_ROUNDING / 10, "a batch of 3 images against each alone")


def train_equals_eval(subject: Subject) -> None:
    """Without dropout and stochastic depth, and with batch norm's statistics fixed, training mode gives the features
    of evaluation mode.

    Hint: let only dropout, stochastic depth and batch norm depend on self.training
    """
    model, images = subject.backbone(), subject.images()
    in_evaluation = model.pooled(images)
    in_training = train_without_noise(model)(images)
    check_equal(in_training, in_evaluation, FEATURE_ROUNDING, "training mode without noise against evaluation mode")


def eval_keeps_state(subject: Subject) -> None:
    """A forward pass in evaluation mode changes no parameter and no buffer.

    Hint: update running statistics only `if self.training`
    """
    model = subject.backbone()
    before = {name: value.clone() for name, value in _tensors(model).items()}
    model.pooled(subject.images())
    for name, value in _tensors(model).items():
        if name in before and not torch.equal(before[name], value):
            raise CheckFailed(f"a forward pass in evaluation mode changes {name}")


def input_is_kept(subject: Subject) -> None:
    """The model does not write into its input.

    Hint: write x = x + y, not x += y or x.add_(y), and ReLU without inplace on the input
    """
    model = subject.backbone()
    inputs = model.normalised(subject.images())
    before, version = inputs.clone(), inputs._version
    pooled_features(model.model, inputs)
    if not torch.equal(inputs, before) or inputs._version != version:
        raise CheckFailed("the tensor of images that the model got is written to in its forward pass")


def stays_float32(subject: Subject) -> None:
    """Weights and features are float32.

    Hint: make constants in the dtype of their input: x.new_tensor(...), torch.as_tensor(a, dtype=x.dtype)
    """
    model = subject.backbone()
    for name, tensor in _tensors(model).items():
        if tensor.dtype == torch.float64:
            raise CheckFailed(f"{name} is float64")
    features = model.pooled(subject.images())
    if features.dtype != torch.float32:
        raise CheckFailed(f"features of float32 images are {features.dtype}")


def bf16_autocast(subject: Subject) -> str:
    """Under bf16 autocast features are finite and near those of float32, and gradients are finite.

    Hint: cast to x.dtype, not to float32, what meets activations; sum and exponentiate in float32
    """
    model, images = subject.backbone(), subject.images()
    reference = model.pooled(images)
    with torch.enable_grad():
        with torch.autocast("cpu", torch.bfloat16):
            features = model.pooled(images)
        features.float().square().mean().backward()
    if not features.isfinite().all():
        raise CheckFailed("features under bf16 autocast are not finite")
    trained = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    if bad := [name for name, gradient in trained.items() if not gradient.isfinite().all()]:
        raise CheckFailed(f"gradients under bf16 autocast are not finite: {shortened(bad)}")
    features = features.detach()
    apart = float((features.float() - reference).norm() / reference.norm().clamp_min(1e-12))
    if apart > BF16_ROUNDING:
        raise CheckFailed(f"features under bf16 autocast differ by {apart:.0%} in norm (allowed: {BF16_ROUNDING:.0%})")
    return f"differs by {apart:.1%} in norm, {difference(features, reference):.1%} at most"


def other_seed(subject: Subject) -> str:
    """Two models made with one seed have equal weights, with two seeds different ones.

    Hint: initialise with torch's generator, which the seed sets, and without a seed of your own
    """
    if not subject.is_reinitialized:
        raise CheckSkipped("a module with weights of its own is not initialized again")
    first, again = subject.made().state_dict(), subject.made(again=True).state_dict()
    other = subject.made(other_seed=True).state_dict()
    for name, value in first.items():
        if not torch.equal(value, again[name]):
            raise CheckFailed(f"{name} differs between two models made with the same seed")
    same = [name for name, value in first.items() if torch.equal(value, other[name])]
    if len(same) == len(first) and first:
        raise CheckFailed("models made with two different seeds have equal weights: the initialisation is fixed")
    return f"{len(first) - len(same)} of {len(first)} tensors differ with the seed"


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def gradients_reach_parameters(subject: Subject) -> str:
    """Every trainable parameter gets a gradient that is finite and not all zeros.

    Hint: remove detach(), .data, .item() and no_grad(); delete unused layers or set requires_grad=False
    """
    model = subject.backbone()
    train_without_noise(model)
    with torch.enable_grad():
        features = model(subject.images())
        if not features.requires_grad:
            raise CheckFailed("features have no gradient at all (detach(), .data, or no_grad() in the forward pass)")
        generator = torch.Generator().manual_seed(subject.seed + 4)
        (features * torch.randn(features.shape, generator=generator)).sum().backward()
    trained = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    names_by_fault = values_by_key((_fault(grad), name.removeprefix("model.")) for name, grad in trained.items())
    if problems := [f"{fault}: {shortened(names)}" for fault, names in names_by_fault.items() if fault]:
        raise CheckFailed("; ".join(problems))
    return f"{len(trained)} parameters"


def _fault(gradient: Tensor | None) -> str:
    if gradient is None:
        return "no gradient"
    if not gradient.isfinite().all():
        return "a gradient that is not finite"
    return "" if gradient.any() else "a gradient of zeros"


def own_parameters(subject: Subject) -> None:
    """No two parameters share memory: not two names of one model, nor two models that were made one after the other.

    Hint: make a module for each place (copy.deepcopy of one), and parameters in __init__, not in the class
    """
    model, twin = subject.made(), subject.made(again=True)
    parameters = model.named_parameters(remove_duplicate=False)
    names = values_by_key((_memory(parameter), name.removeprefix("model.")) for name, parameter in parameters)
    if shared := [group for group in names.values() if len(group) > 1]:
        reason = "these names are one parameter: " + "; ".join(" = ".join(group) for group in shared[:3])
        if subject.spec.kind == "timm":
            raise CheckSkipped(f"timm's {subject.spec.arch} is made so: {reason}")
        raise CheckFailed(reason)
    other = {_memory(parameter) for parameter in twin.parameters()}
    if between := [group[0] for memory, group in names.items() if memory in other]:
        raise CheckFailed(f"two models share the memory of {shortened(between)}")


def state_dict_round_trip(subject: Subject) -> str:
    """A state dict that was saved and loaded into another model gives the same features to the bit.

    Hint: register what the output depends on as a parameter or a persistent buffer
    """
    model = subject.backbone()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state: dict[str, Tensor] = torch.load(file, weights_only=True)
    other = deepcopy(subject.made(other_seed=True))
    for parameter in other.parameters():
        parameter.zero_()
    try:
        other.load_state_dict(state)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise CheckFailed(f"load_state_dict rejects it: {' '.join(lines[:2])}") from error
    images = subject.images()
    check_equal(other.pooled(images), model.pooled(images), 0.0, "a model of another seed after load_state_dict")
    return f"{len(state)} tensors"


def dynamic_export(subject: Subject) -> None:
    """`torch.export` takes the model with any number of images, and its program gives the same features.

    Hint: write x.shape[0], not len(x), and let no value of a tensor decide what runs
    """
    model = subject.backbone()
    batch = torch.export.Dim("batch", min=1, max=64)
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.export.export(model, (subject.images(2),), dynamic_shapes=({0: batch},)).module()
    except Exception as error:
        reason = f"torch.export rejects it: {first_line(error)}"
        raise (CheckSkipped if subject.spec.kind == "timm" else CheckFailed)(reason) from error
    for images in map(subject.images, (1, 7)):
        check_equal(
            program(images), model.pooled(images), FEATURE_ROUNDING, f"the exported program of {len(images)} images"
        )


def _memory(parameter: Tensor) -> tuple[int, int]:
    return parameter.untyped_storage().data_ptr(), int(parameter.storage_offset())


Check = Callable[[Subject], str | None]
"""Raises CheckFailed or CheckSkipped; returns what it measured, or nothing. It runs without gradients."""
CHECKS: tuple[Check, ...] = (
    *(sizes.builds, sizes.single_image, sizes.other_sizes, sizes.one_model_all_sizes),
    *(sizes.maps, sizes.token_grid, sizes.memory_formats, input_is_kept),
    *(stays_float32, eval_is_deterministic, other_seed, batch_independence),
    *(train_equals_eval, eval_keeps_state, bf16_autocast, gradients_reach_parameters),
    *(own_parameters, state_dict_round_trip, sizes.another_device, dynamic_export),
)
CATALOGUE = {check.__name__: check for check in CHECKS}
"""The checks by name, in their order. The docstring of each ends in the way in which its failure is usually mended."""


def check_backbone(factory: Factory, *, on_result: Callable[[Result], None] | None = None, **options: Any) -> Report:
    """Run the conformance test of a backbone, or of a part inside one, on the CPU.

    Args:
        factory: a name, a YAML file or `file.py:Class`, as `--backbone` takes them; a live `nn.Module`; or a class or
            function without required parameters that returns one. Names get random weights; a module is copied.
        on_result: called with each result when its check ends.
        options: those of `backbone_checks`.

    Returns:
        The report; `report.ok`, `report.raise_if_failed()`, `print(report)`.

    Raises:
        UsageError: an unknown name of a backbone, a field or a check.
    """
    checks = backbone_checks(factory, **options)
    results: list[Result] = []
    for check in checks:
        broken = bool(results) and results[0].name == "builds" and results[0].state == "failed"
        result = Result(check.name, "skipped", "the model does not build") if broken else check.result()
        results.append(result)
        if on_result is not None:
            on_result(result)
    return Report(checks[0].subject.spec.name, tuple(results))


def backbone_checks(
    factory: Factory,
    *,
    size: int | None = None,
    divisor: int | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    seed: int = 0,
    **parts: Any,
) -> "list[BackboneCheck]":
    """Return the checks of a backbone as values for `pytest.mark.parametrize`; nothing is built before the first call.

    Example:
        @pytest.mark.parametrize("check", backbone_checks(MyModel))
        def test_my_model(check):
            check()

    Args:
        factory: see `check_backbone`.
        size: side of the square image in pixels. By default 4 patches; 224 where the patch is not known.
        divisor: what heights and widths must be multiples of, where the model does not say so.
        only: names of the checks to run, by default all.
        skip: names of checks to leave out.
        seed: of weights and images.
        parts: the backbone's fields, as `stem="my_stem.py:MyStem"`, `attention=`, `ffn=`, `depth=2`.

    Raises:
        UsageError: see `check_backbone`.
    """
    for name in (*only, *skip):
        if name not in CATALOGUE:
            raise unknown("check", name, CATALOGUE)
    names = [name for name in CATALOGUE if name in {*(only or CATALOGUE)} - {*skip}]
    if not names:
        raise UsageError("only and skip leave no check to run")
    subject = Subject(spec_of(factory, parts), size, divisor, seed)
    return [BackboneCheck(name, subject) for name in names]


@dataclass(frozen=True)
class BackboneCheck:
    """One check of one backbone, to be called in a test.

    Attributes:
        name: of the check, which pytest shows.
    """

    name: str
    subject: Subject

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Run the check.

        Raises:
            CheckFailed: the reason and the hint.
            CheckSkipped: it has nothing to look at.
        """
        result = self.result()
        if result.state == "failed":
            raise CheckFailed(f"{result.name}: {result.reason}\nhint: {result.hint}")
        if result.state == "skipped":
            raise CheckSkipped(result.reason)

    def result(self) -> Result:
        """Run the check and return its result. The random numbers and the mode of the caller stay as they are."""
        run = CATALOGUE[self.name]
        state: State = "failed"
        hint = " ".join((inspect.getdoc(run) or "").partition("Hint: ")[2].split())
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad():
            try:
                state, reason = "passed", run(self.subject) or ""
            except CheckSkipped as skipped:
                state, reason = "skipped", str(skipped)
            except (CheckFailed, UserError) as failed:
                reason = str(failed)
            except Exception as error:
                reason = first_line(error)
        return Result(self.name, state, reason, hint)
