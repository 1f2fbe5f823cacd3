"""One optimizer step: forward and backward over micro-batches, once or twice, scaling, clipping, update."""

import math
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from transfer.core.errors import UsageError, shortened
from transfer.core.seeding import seed_torch
from transfer.engine import dist
from transfer.engine.context import Context
from transfer.engine.learner import Batch, Learner
from transfer.engine.optim import build_optimizer, freeze_others, perturbed, preserve_buffers, restore_tensors
from transfer.engine.options import FitOptions
from transfer.engine.schedule import Schedule

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


PARAMETER_CHECK = 50  # steps between checks of the parameters


class Stepper:
    """The model as trained: wrapped for its ranks, with optimizer, schedule and fp16 scaler."""

    def __init__(self, learner: Learner, options: FitOptions, context: Context):
        self.learner, self.options, self.context = learner.to(context.device), options, context
        freeze_others(learner, options.trainable)
        if context.ranks.token_ranks > 1:
            self._share_tokens()
        self.draws = dist.Draws(context.ranks.data, context.device)
        self.draws.replace_layers(learner)
        if options.compile:
            learner.compile()  # in place, so that names stay
        self.model: nn.Module = learner
        if context.ranks.world > 1:
            if options.sync_bn:
                dist.synchronise_batch_norm(learner, context.device)
            devices = [context.device] if context.device.type == "cuda" else None
            with warnings.catch_warnings():
                # torch 2.13 renamed the argument; earlier releases know this name alone
                warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
                self.model = DistributedDataParallel(learner, devices, broadcast_buffers=not options.sync_bn)
        self.frozen_norms = frozen_batch_norms(learner, learner.averages())
        if self.frozen_norms:
            names = shortened([*self.frozen_norms])
            context.note(f"batch norms of frozen parts normalise by their statistics, and keep them: {names}")
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=context.precision == "fp16")
        groups = learner.parameter_groups(options)
        self.optimizer = build_optimizer(groups, options, scaled=self.scaler.is_enabled())
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.schedule = Schedule(options)

    def _share_tokens(self) -> None:
        ranks, options = self.context.ranks.token_ranks, self.options
        if options.compile:
            raise UsageError(f"--sequence-parallel {ranks} has collectives within the model: train with --no-compile")
        if options.sam != "none" and not options.sam_sync:
            raise UsageError(f"--sequence-parallel {ranks}: ranks with a share of an image each need --sam-sync")
        self.learner.share_tokens(ranks)

    def step(
        self, number: int, time: float, batch: Batch, length: int | None = None
    ) -> tuple[dict[str, float], bool, bool]:
        """Train on this rank's part of a batch.

        Args:
            number: the step, from 1.
            time: fractional epoch for the schedule.
            length: steps of the epoch, for the schedule.

        Returns:
            Statistics (means over ranks; with loss, grad_norm, lr, and scale in fp16), whether the fp16 scaler skipped
            the update, and whether a signal asks any rank to stop. After non-finite numbers without a scaler nothing is
            updated. A step that the scaler skips moves nothing: neither parameters nor what follows them, nor buffers.
        """
        self.model.train()
        for norm in self.frozen_norms.values():
            norm.eval()
        rate = self.schedule.apply(self.optimizer, time, length)
        scaled = self.scaler.is_enabled()
        kept = [buffer.clone() for buffer in self.learner.buffers()] if scaled else []  # a forward pass moves them
        stats = self._gradient(number, self.learner.prepare(batch, self.context.device))
        self.scaler.unscale_(self.optimizer)
        self.learner.after_backward(number)
        stats["grad_norm"] = nn.utils.get_total_norm(self._gradients(), foreach=True)
        if number % PARAMETER_CHECK == 0:
            stats["parameter_norm"] = nn.utils.get_total_norm(self.parameters, foreach=True)
        numbers, stop = self._over_ranks(stats)
        broken = not all(math.isfinite(value) for value in numbers.values())
        made = self._update(number, stats["grad_norm"], broken) if scaled or not broken else False
        if scaled and not made:
            restore_tensors(list(self.learner.buffers()), kept)
        if scaled:
            numbers["scale"] = self.scaler.get_scale()
        return {**numbers, "lr": rate}, scaled and not made, stop

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def _gradient(self, number: int, batch: Batch) -> dict[str, Tensor]:
        """Leave the (scaled) gradient of the step in place, and return the statistics of its first pass."""
        options = self.options
        parts = self.learner.split(batch, options.grad_accum_steps) if options.grad_accum_steps > 1 else [batch]
        if options.sam == "none":
            return self._backward(number, parts)
        stats = self._backward(number, parts, over_ranks=options.sam_sync)
        if self.scaler.is_enabled():
            scale = self.scaler.scale(torch.ones((), device=self.context.device))
            torch._foreach_div_(self._gradients(), scale)
        adaptive = options.sam == "asam"
        with preserve_buffers(self.learner), perturbed(self.parameters, options.sam_rho, adaptive=adaptive) as norm:
            # 1, or nan after a first gradient that is not finite: then no rank's second one may look healthy.
            self._backward(number, parts, weight=1 + 0 * norm)
        return {**stats, "sam_norm": norm}

    def _backward(
        self, number: int, parts: list[Batch], *, over_ranks: bool = True, weight: Tensor | None = None
    ) -> dict[str, Tensor]:
        totals: dict[str, Tensor] = {}
        for index, part in enumerate(parts):
            # All chance within a step comes from this key, so resuming needs no generator states.
            seed_torch(self.context.seed, number, index, self.context.ranks.data.rank)
            self.draws.begin(self.learner.batch_size(part), self.context.seed, number, index)
            own = not (over_ranks and index == len(parts) - 1)  # each rank keeps its gradients
            with self.model.no_sync() if own and isinstance(self.model, DistributedDataParallel) else nullcontext():
                with self.context.autocast():
                    result = self.model(part, number)
                loss = result["loss"] / len(parts)
                self.scaler.scale(loss if weight is None else loss * weight).backward()
            for name, value in result.items():
                totals[name] = totals.get(name, 0) + value.detach().float() / len(parts)
        return totals

    def _over_ranks(self, stats: dict[str, Tensor]) -> tuple[dict[str, float], bool]:
        """Return means over ranks, and whether any rank got a signal; one collective, one transfer from the device."""
        asked = torch.tensor(float(self.context.stop_signal is not None), device=self.context.device)
        values = dist.mean_over_ranks(torch.stack([*(value.float() for value in stats.values()), asked])).tolist()
        return dict(zip(stats, values)), values[-1] > 0

    def _update(self, number: int, norm: Tensor, broken: bool) -> bool:
        """Update everything, or nothing where numbers are `broken` or the scaler finds a gradient that is not finite.

        The scaler checks all gradients, including those that `after_backward` removed.
        """
        before = self.scaler.get_scale()
        if not broken:
            if self.options.clip_grad is not None and self.options.clip_grad_per_param:
                clip_grad_per_param(self._gradients(), self.options.clip_grad)
            elif self.options.clip_grad is not None:
                nn.utils.clip_grads_with_norm_(self.parameters, self.options.clip_grad, norm, foreach=True)
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if broken or self.scaler.get_scale() < before:
            self.learner.after_skip(number)
            return False
        self.learner.after_step(number)
        return True

    def share_buffers(self) -> None:
        """Give every rank the first one's running statistics, which are the ones that are exported."""
        dist.broadcast_tensors(self.learner.buffers())

    def finite(self) -> bool:
        """Return whether all parameters and buffers are finite, on all ranks."""
        tensors = [*self.learner.parameters(), *(part for part in self.learner.buffers() if part.is_floating_point())]
        norms = torch.stack(torch._foreach_norm([tensor.detach().float() for tensor in tensors]))
        return math.isfinite(dist.mean_over_ranks(norms.sum()).item())

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        parts: dict[str, Any] = {"learner": self.learner, "optimizer": self.optimizer, "scaler": self.scaler}
        return {name: part.state_dict() for name, part in parts.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self.learner.load_state_dict(state["learner"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])


def clip_grad_per_param(gradients: list[Tensor], limit: float) -> None:
    """Scale each gradient whose norm n exceeds `limit`, in place, by limit / (n + 1e-6)."""
    norms = torch.stack(torch._foreach_norm(gradients))
    factors = (limit / (norms + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, list(factors.unbind()))
