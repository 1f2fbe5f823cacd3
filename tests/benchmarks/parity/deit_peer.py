"""DeiT (Touvron et al. 2020, github.com/facebookresearch/deit) from a checkout of its repository, run on a CPU in fp32.

Its own code parses the recipe, makes the data's transforms and the sampler, and its own loop trains; timm, on which it
stands, gives the model, the optimizer, the schedule, mixup and the average of the weights, as its main.py asks. Nothing
of it is kept here. What its code needs from old versions of timm or from a GPU is stood in for at run time.
"""

import importlib
import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from backbones.spec import IMAGENET_MEAN, IMAGENET_STD
from tests.benchmarks.parity.checks import Batches, importing, normalised

MODULES = ("main", "engine", "losses", "samplers", "datasets", "models", "utils")

Batch = tuple[Tensor, Tensor]


class Peer:
    """The peer's modules, and its options as its own parser gives them, at the batch of its DeiT-S run.

    Attributes:
        args: its options; `lr` is the one it trains with.

    Raises:
        UserError: `checkout` is not the peer's repository.
    """

    def __init__(self, checkout: Path) -> None:
        self.modules = _import(checkout)
        self.args = self.modules["main"].get_args_parser().parse_args([])
        # main.py: the flag, times the batch of a GPU, times the GPUs, by 512; README_deit.md: 4 GPUs with 256 each
        self.args.lr *= 256 * 4 / 512

    def model(self, size: int, dim: int, depth: int, heads: int, classes: int) -> Any:
        """DeiT's model in another size."""
        return self.modules["models"].VisionTransformer(
            img_size=size, patch_size=16, embed_dim=dim, depth=depth, num_heads=heads, mlp_ratio=4, qkv_bias=True,
            norm_layer=partial(nn.LayerNorm, eps=1e-6), num_classes=classes,
            drop_rate=self.args.drop, drop_path_rate=self.args.drop_path,
        )  # fmt: skip

    def schedule(self) -> list[float]:
        """The rate in every epoch of the recipe, as its loop sets them."""
        optimizer, scheduler = self._optimizer(nn.Linear(2, 2))
        rates = []
        for epoch in range(self.args.epochs):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            scheduler.step(epoch)
        return rates

    def decays(self, model: nn.Module) -> dict[str, float]:
        """The weight decay of every parameter."""
        optimizer, _ = self._optimizer(model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        return {names[p]: float(group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}

    def train(
        self, model: nn.Module, classes: int, epochs: Sequence[Sequence[Batch]], before_step: Callable[[int], None]
    ) -> tuple[list[float], list[float], dict[str, Tensor]]:
        """Trains in place with the peer's own loop; the losses and rates of all steps, and the averaged weights.

        Args:
            epochs: the batches of each epoch: images in [0, 1], labels.
            before_step: called with the number of each step, from 1, when its batch is asked for.
        """
        import timm.utils
        from timm.data import Mixup
        from timm.loss import SoftTargetCrossEntropy

        args, losses, rates = self.args, list[float](), list[float]()
        optimizer, scheduler = self._optimizer(model)
        average = timm.utils.ModelEma(model, decay=args.model_ema_decay)
        mixup = Mixup(
            args.mixup, args.cutmix, args.cutmix_minmax, args.mixup_prob, args.mixup_switch_prob, args.mixup_mode,
            label_smoothing=args.smoothing, num_classes=classes,
        )  # fmt: skip
        criterion = self.modules["losses"].DistillationLoss(SoftTargetCrossEntropy(), None, "none", 0, 0)

        def noted(samples: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
            loss = criterion(samples, outputs, targets)
            losses.append(loss.item())
            rates.append(float(optimizer.param_groups[0]["lr"]))
            return loss

        loop, scaler = self.modules["engine"].train_one_epoch, timm.utils.NativeScaler()
        with mock.patch.object(torch.cuda, "synchronize"), redirect_stdout(io.StringIO()):
            for epoch, batches in enumerate(epochs):
                seen = [(normalised(images, IMAGENET_MEAN, IMAGENET_STD), labels) for images, labels in batches]
                loop(
                    model, noted, Batches(seen, before_step, len(losses) + 1), optimizer, torch.device("cpu"), epoch,
                    scaler, args.clip_grad, average, mixup, set_training_mode=args.train_mode, args=args,
                )  # fmt: skip
                scheduler.step(epoch)
        return losses, rates, average.ema.state_dict()

    def transform(self, *, erasing: bool) -> Any:
        """Its training transform, PIL image -> normalised tensor."""
        args = self.modules["main"].get_args_parser().parse_args([] if erasing else ["--reprob", "0"])
        return self.modules["datasets"].build_transform(True, args)

    def eval_transform(self) -> Any:
        """Its evaluation transform."""
        return self.modules["datasets"].build_transform(False, self.args)

    def epoch(self, images: int, ranks: int) -> list[list[int]]:
        """The images of one epoch, as indices, for each rank."""
        sampler = self.modules["samplers"].RASampler
        return [list(sampler(range(images), num_replicas=ranks, rank=rank, shuffle=True)) for rank in range(ranks)]

    def _optimizer(self, model: nn.Module) -> tuple[Any, Any]:
        main = self.modules["main"]
        optimizer = main.create_optimizer(self.args, model)
        return optimizer, main.create_scheduler(self.args, optimizer)[0]


def _import(checkout: Path) -> dict[str, Any]:
    # DeiT III's augmentation imports what timm no longer has; the recipe of DeiT does not use it.
    augment = ModuleType("augment")
    augment.new_data_aug_generator = None  # type: ignore[attr-defined]
    with importing(checkout, "samplers.py", "facebookresearch/deit", MODULES, {"augment": augment}):
        return {name: importlib.import_module(name) for name in MODULES}
