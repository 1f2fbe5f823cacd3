"""Parameter groups and optimizers."""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from transfer.core.errors import UsageError, did_you_mean
from transfer.core.grouped import grouped_by
from transfer.engine.options import FitOptions

NORM = "norm:"  # begins a pattern of `no_decay` that means norm layers alone


def freeze_others(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Freeze all trained parameters but those whose names match a shell pattern.

    Raises:
        UsageError: a pattern matches none of them.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for pattern in patterns:
        if not fnmatch.filter(trained, pattern):
            words = ".".join(trained).split(".")
            near = did_you_mean(pattern, [*trained, *(f"*{word}*" for word in words)])
            parts = dict.fromkeys(re.sub(r"\.\d+\..*|\.(weight|bias)$", ".*", name) for name in trained)
            fix = f"use patterns of its components: {' '.join(parts)}"
            raise UsageError(f"--trainable {pattern!r} matches no trainable parameter{near or ';'} {fix}")
    for name, parameter in trained.items():
        parameter.requires_grad_(any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def parameter_groups(
    model: nn.Module, options: FitOptions, backbone: Any = None, inside: str = "backbone."
) -> list[dict[str, Any]]:
    """Return groups for torch's optimizers of parameters that share a rate and a decay.

    Each group holds `peak` (its rate after warm-up), `scale` (its layer decay, a factor of the whole schedule) and
    `decay` (the factor of the weight decay).

    Args:
        model: whose parameters train; those without gradient are skipped.
        backbone: the part with layers, as `backbones.backbone.Backbone` has `depth` and `layer_of`; all else comes
            after them. None: there is none.
        inside: what the names of the backbone's parameters begin with.

    Raises:
        UsageError: a layer decay, and a backbone without layers.
    """
    if options.layer_decay != 1 and (backbone is None or not backbone.depth):
        why = "what trains here has no layers (of a learner: `layered`)"
        raise UsageError(f"--layer-decay {options.layer_decay:g} has no effect: {why}")
    norms = _parameters_of_norms(model)
    groups: dict[tuple[float, float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_bias = name.rpartition(".")[2] == "bias"
        peak = options.lr * (options.bias_lr_factor if is_bias else 1.0)
        # d^(depth + 1 - layer), as in timm, MAE and ViTDet: d for the last block, 1 for all after the backbone. The
        # final norm counts with the last block, as in timm; MAE gives it 1, ViTDet has none.
        above = 0
        if backbone is not None and name.startswith(inside):
            above = backbone.depth + 1 - backbone.layer_of(name.removeprefix(inside))
        scale = options.layer_decay**above
        # AdamW multiplies its decay by the learning rate.
        decay = 1 / peak if options.decay_scale == "schedule" else 1.0
        if _without_decay(name, parameter, options, is_norm=parameter in norms):
            decay = 0.0
        group = {"params": [], "peak": peak, "scale": scale, "decay": decay, "lr": 0.0}
        group["weight_decay"] = decay * options.weight_decay
        groups.setdefault((peak, scale, decay), group)["params"].append(parameter)
    return list(groups.values())


def _parameters_of_norms(model: nn.Module) -> set[nn.Parameter]:
    """Return scales and shifts of the norm layers, torch's, timm's, ours and users', found by their class's name."""
    of_norms: set[nn.Parameter] = set()
    for module in model.modules():
        parameters = set(module.parameters(recurse=False))
        if "norm" in type(module).__name__.lower() and all(parameter.ndim <= 1 for parameter in parameters):
            of_norms |= parameters
    return of_norms


def _without_decay(name: str, parameter: nn.Parameter, options: FitOptions, *, is_norm: bool) -> bool:
    """Return whether one of the patterns in `no_decay` means this parameter."""
    is_vector = parameter.ndim <= 1 or name.endswith(".bias")
    if "1d" in options.no_decay and is_vector and not (is_norm and options.decay_norm):
        return True
    patterns = options.no_decay
    if is_norm:
        patterns = tuple(pattern.removeprefix(NORM) for pattern in patterns)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def build_optimizer(
    groups: list[dict[str, Any]], options: FitOptions, *, scaled: bool = False
) -> torch.optim.Optimizer:
    """Return SGD or AdamW over the groups, in torch's fused form.

    Args:
        scaled: an fp16 scaler drives the steps. The fused form has to skip overflows itself then, which it does on GPUs
            alone; elsewhere torch chooses the form.
    """
    parameters = list[nn.Parameter]()
    for group in groups:
        parameters += group["params"]
    fused = True if all(parameter.is_cuda for parameter in parameters) or not scaled else None
    if options.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, fused=fused)
        for parameter in parameters if options.momentum else ():
            # a first step that is left out would leave torch's fused form with uninitialised memory
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.999), fused=fused)


TINY = 1e-12  # added to the norm


@contextmanager
def perturbed(parameters: Sequence[nn.Parameter], rho: float, *, adaptive: bool) -> Iterator[Tensor]:
    """Move parameters by `rho` along their gradients, which are used up; restore them to the bit on exit.

    Parameters without gradient stay where they are.

    Yields:
        The norm of the gradient ([]; scaled by the weights if `adaptive`). When it is not finite, neither are the
        moved parameters.
    """
    moved: list[Tensor] = [parameter for parameter in parameters if parameter.grad is not None]
    with FlatViews(moved).kept():
        with torch.no_grad():
            steps = [weight.grad for weight in moved if weight.grad is not None]
            sizes = tuple(torch._foreach_abs(moved)) if adaptive else ()
            if adaptive:
                torch._foreach_mul_(steps, sizes)
            norm = nn.utils.get_total_norm(steps, foreach=True)
            if adaptive:
                torch._foreach_mul_(steps, sizes)
            torch._foreach_mul_(steps, rho / (norm + TINY))
            torch._foreach_add_(moved, tuple(steps))
        for weight in moved:
            weight.grad = None
        yield norm


class FlatViews:
    """Views of contiguous tensors, one after the other by their type: few operations for any number of tensors."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        for tensor in (parts := [*tensors]):
            tensor.data = tensor.data.contiguous()
        self.views = grouped_by((tensor.detach().view(-1) for tensor in parts), lambda tensor: tensor.dtype)

    def values(self) -> dict[torch.dtype, Tensor]:
        """Return the values as they are now, by type."""
        return {kind: torch.cat(same) for kind, same in self.views.items()}

    def restore(self, before: dict[torch.dtype, Tensor], flag: Tensor | None = None) -> None:
        """Copy what `values` returned into the tensors; with a flag [] on their device, if it is set."""
        for kind, same in self.views.items():
            values = before[kind] if flag is None else torch.where(flag, before[kind], torch.cat(same))
            torch._foreach_copy_(same, values.split([tensor.numel() for tensor in same]))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the present values on exit, to the bit."""
        before = self.values()
        try:
            yield
        finally:
            self.restore(before)


def changed_share(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """Return the norm of the change of tensors over their norm before. Those that are equal, as frozen ones, are left
    out, and those that were 0, to which any change is large.
    """
    starts, changes = list[Tensor](), list[Tensor]()
    for name, tensor in after.items():
        start = before[name].float()
        change = tensor.detach().cpu().float() - start
        if start.any() and change.any():
            starts.append(start)
            changes.append(change)
    return float(nn.utils.get_total_norm(changes) / nn.utils.get_total_norm(starts)) if changes else 0.0
