"""One optimizer step: forward and backward over micro-batches, once or twice, scaling, clipping, update."""

import math
import warnings
from collections.abc import Iterable, Sequence
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
from transfer.engine.optim import FlatViews, build_optimizer, freeze_others, perturbed
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
    norms = dict[str, _BatchNorm]()
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.running_mean is not None and not _trains(module, name):
            norms[name] = part
    frozen = {id(part) for part in norms.values()}
    for average, followed in averages:
        counterparts = dict(followed.named_modules())
        for name, part in average.named_modules():
            if id(counterparts[name]) not in frozen:
                frozen.discard(id(part))
    return {name: part for name, part in norms.items() if id(part) in frozen}


def _trains(module: nn.Module, name: str) -> bool:
    while name and not list(module.get_submodule(name).parameters()):
        name = name.rpartition(".")[0]
    return any(parameter.requires_grad for parameter in module.get_submodule(name).parameters())


PARAMETER_CHECK = 50  # steps between checks of the parameters


class Taken:
    """The numbers of a step, on their way from the device.

    Args:
        names: of the statistics.
        values: whether a signal asks any rank to stop, whether the step is left out, the statistics.
        rate: the learning rate.
        scaled: the fp16 scaler may skip the step.
        watched: names of the values after the statistics, which decide nothing.
    """

    def __init__(self, names: Sequence[str], values: Tensor, rate: float, scaled: bool, watched: Sequence[str] = ()):
        self.names, self.rate, self.scaled, self.watched = names, rate, scaled, watched
        self.values = values.to("cpu", non_blocking=True)  # pinned where it comes from a GPU
        self.arrival = torch.cuda.Event() if values.is_cuda else None
        if self.arrival:
            self.arrival.record()

    def read(self) -> tuple[dict[str, float], bool, bool]:
        """Return, once they are there, statistics (means over ranks; with loss, grad_norm, lr, and scale in fp16),
        whether the fp16 scaler skipped the update, and whether a signal asks any rank to stop.
        """
        if self.arrival:
            self.arrival.synchronize()
        asked, left_out, *numbers = self.values.tolist()
        return dict(zip(self.names, numbers)) | {"lr": self.rate}, self.scaled and left_out > 0, asked > 0

    def read_watched(self) -> dict[str, float]:
        """Return the watched values, once the statistics are read."""
        return dict(zip(self.watched, self.values.tolist()[2 + len(self.names) :]))


class Stepper:
    """The model as trained: wrapped for its ranks, with optimizer, schedule and fp16 scaler."""

    def __init__(self, learner: Learner, options: FitOptions, context: Context):
        self.learner, self.options, self.context = learner.to(context.device), options, context
        freeze_others(learner, options.trainable)
        if (ranks := context.ranks.token_ranks) > 1:
            if options.compile:
                fault = "has collectives within the model: train with --no-compile"
                raise UsageError(f"--sequence-parallel {ranks} {fault}")
            if options.sam != "none" and not options.sam_sync:
                raise UsageError(f"--sequence-parallel {ranks}: ranks with a share of an image each need --sam-sync")
            learner.share_tokens(ranks)
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
                shared: Any = {"broadcast_buffers": not options.sync_bn, "gradient_as_bucket_view": True}
                self.model = DistributedDataParallel(learner, devices, **shared)
        self.frozen_norms = frozen_batch_norms(learner, learner.averages())
        if self.frozen_norms:
            names = shortened([*self.frozen_norms])
            context.note(f"batch norms of frozen parts normalise by their statistics, and keep them: {names}")
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=context.precision == "fp16")
        scaled = self.scaler.is_enabled()
        self.optimizer = build_optimizer(learner.parameter_groups(options), options, scaled=scaled)
        self.parameters = list[nn.Parameter]()
        for group in self.optimizer.param_groups:
            self.parameters += group["params"]
        self.schedule = Schedule(options)
        untrained = [part for part in learner.parameters() if not part.requires_grad]
        # found here, as it takes time in every step
        self.followers = FlatViews(untrained if type(learner).after_step is not Learner.after_step else ())
        self.buffers = FlatViews(learner.buffers())
        self.broken = torch.zeros((), dtype=torch.bool, device=context.device)
        self.watch = context.watch(learner) if context.watch else None
        if self.watch and options.compile:
            context.say("--watch blocks: gradient norms only, since --compile hides the attention logits")
        self.begin()

    @property
    def late(self) -> bool:
        """Whether the host learns a step's numbers after it has begun the next: to wait for them leaves a GPU idle."""
        return self.context.on_gpu

    @property
    def undoes(self) -> bool:
        """Whether what a step has moved goes back where it is left out; else nothing moves once a number is broken."""
        return self.late or self.scaler.is_enabled()

    def begin(self) -> None:
        """Set the modes of the model's parts to those of training, at its start and after each validation."""
        self.model.train()
        for norm in self.frozen_norms.values():
            norm.eval()

    def step(self, number: int, time: float, batch: Batch, length: int | None = None) -> Taken:
        """Train on this rank's part of a batch, without waiting for the device if that is a GPU.

        After non-finite numbers without a scaler nothing is updated, in this step and all later ones. A step that the
        scaler skips moves nothing: neither parameters nor what follows them, nor buffers.

        Args:
            number: the step, from 1.
            time: fractional epoch for the schedule.
            length: steps of the epoch, for the schedule.
        """
        rate = self.schedule.apply(self.optimizer, time, length)
        scaled = self.scaler.is_enabled()
        before = self.buffers.values() if self.undoes else {}  # a forward pass moves them
        watch = self.watch if number == 1 or number % self.options.watch_every == 0 else None
        with watch.forward_passes() if watch and not self.options.compile else nullcontext():
            stats = self._gradient(number, self.learner.prepare(batch, self.context.device))
        self.scaler.unscale_(self.optimizer)
        self.learner.after_backward(number)
        stats["grad_norm"] = nn.utils.get_total_norm(self._gradients(), foreach=True)
        if number % PARAMETER_CHECK == 0:
            stats["parameter_norm"] = nn.utils.get_total_norm(self.parameters, foreach=True)
        watched = watch.values() if watch else {}
        asked = torch.full((), float(self.context.stop_signal is not None), device=self.context.device)
        # one collective: whether any rank got a signal (above 0), and means over ranks
        means = dist.mean_over_ranks(torch.stack([asked, *(value.float() for value in stats.values())]))
        left_out = self._left_out(means[1:])
        self._update(number, stats["grad_norm"], left_out)
        if self.undoes:
            self.buffers.restore(before, left_out)
        scale = [self.scaler.scale(torch.ones_like(asked))] if scaled else []
        numbers = torch.stack([means[0], left_out.float(), *means[1:], *scale, *watched.values()])
        return Taken([*stats, *["scale"] * scaled], numbers, rate, scaled, [*watched])

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
        self.learner.after_backward(number)
        adaptive = options.sam == "asam"
        with self.buffers.kept(), perturbed(self.parameters, options.sam_rho, adaptive=adaptive) as norm:
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
            shares = over_ranks and index == len(parts) - 1  # else each rank keeps its gradients
            with (
                self.model.no_sync()
                if isinstance(self.model, DistributedDataParallel) and not shares
                else nullcontext()
            ):
                with self.context.autocast():
                    result = self.model(part, number)
                loss = result["loss"] / len(parts)
                self.scaler.scale(loss if weight is None else loss * weight).backward()
            for name, value in result.items():
                totals[name] = totals.get(name, 0) + value.detach().float() / len(parts)
        return totals

    def _left_out(self, values: Tensor) -> Tensor:
        """Return whether the step moves nothing: numbers are not finite, or with a scaler any gradient.

        The scaler checks all gradients, including those that `after_backward` removed.
        """
        broken = ~values.isfinite().all()
        if self.scaler.is_enabled():
            overflows = self.scaler._found_inf_per_device(self.optimizer).values()
            return torch.stack([broken, *(overflow > 0 for overflow in overflows)]).any()
        self.broken = self.broken | broken  # what the host does not know yet holds for the next step, too
        return self.broken

    def _update(self, number: int, norm: Tensor, left_out: Tensor) -> None:
        """Update everything, or nothing of a step that is `left_out`."""
        if self.options.clip_grad is not None and self.options.clip_grad_per_param:
            clip_grad_per_param(self._gradients(), self.options.clip_grad)
        elif self.options.clip_grad is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.options.clip_grad, norm, foreach=True)
        fused = self.late and getattr(self.optimizer, "_step_supports_amp_scaling", False)
        if fused:  # it looks at the flag on the device
            self.optimizer.found_inf, self.optimizer.grad_scale = left_out.float(), None  # type: ignore[attr-defined]
        if fused or not left_out:
            self.optimizer.step()
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.undoes:
            before = self.followers.values()
            self.learner.after_step(number)
            self.followers.restore(before, left_out)
        elif not left_out:
            self.learner.after_step(number)

    def share_buffers(self) -> None:
        """Give every rank the first one's running statistics, which are the ones that are exported."""
        dist.broadcast_tensors(self.learner.buffers())

    def finite(self) -> bool:
        """Return whether all parameters and statistics of batch norms are finite, on all ranks; masks may not be."""
        buffers = self.learner.named_buffers()
        statistics = [part for name, part in buffers if name.endswith(("running_mean", "running_var"))]
        tensors = [*self.learner.parameters(), *statistics]
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
