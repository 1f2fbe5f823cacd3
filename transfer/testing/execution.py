"""Checks of how a model is run: compiled, exported, in DDP; its operations and its speed."""

import sys
import time
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, distributed, nn

from backbones.backbone import Backbone, create
from backbones.engine.flops import flops
from backbones.spec import override, resolve
from transfer.testing.results import CheckFailed, CheckSkipped
from transfer.testing.subject import Subject, check_equal, first_line, text, train_without_noise

_REFERENCE = "deit_s16"  # patchify, beside what has no stem to exchange
_PASSES = 5


def compiles(subject: Subject) -> str:
    """`torch.compile` gives the same features and gradients that are finite, in one graph where possible."""
    if not subject.compile:
        raise CheckSkipped("not asked for (compile=True)")
    model, images = subject.backbone(), subject.images()
    backend = subject.compile if isinstance(subject.compile, str) else "inductor"
    with torch.no_grad():
        reference = model.pooled(images)
    torch._dynamo.reset()
    try:
        explanation = torch._dynamo.explain(model)(images)
        torch._dynamo.reset()
        features = torch.compile(model, backend=backend)(images)
        features.square().mean().backward()
    except Exception as error:
        raise CheckFailed(f"torch.compile with {backend}: {first_line(error)}") from error
    check_equal(features.detach(), reference, 1e-3, "torch.compile against eager")
    return f"{explanation.graph_count} graphs, {explanation.graph_break_count} breaks"


def exports(subject: Subject) -> None:
    """`torch.export` takes the model, and the exported program gives the same features."""
    if not subject.export:
        raise CheckSkipped("not asked for (export=True)")
    model, images = subject.backbone(), subject.images()
    try:
        with torch.no_grad():
            program = torch.export.export(model, (images,), strict=False)
    except Exception as error:
        raise CheckFailed(f"torch.export: {first_line(error)}") from error
    with torch.no_grad():
        check_equal(program.module()(images), model.pooled(images), 1e-3, "the exported program against eager")


def distributed_data_parallel(subject: Subject) -> None:
    """DistributedDataParallel trains two steps in one process, without `find_unused_parameters`."""
    if not distributed.is_available():
        raise CheckSkipped("this torch has no distributed package")
    if distributed.is_initialized():
        raise CheckSkipped("this process belongs to a process group already")
    model = subject.backbone()
    train_without_noise(model)
    excepthook = sys.excepthook  # the process group puts one of its own before every traceback, and leaves it there
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        for _ in range(2):
            parallel(subject.images()).square().mean().backward()
    except RuntimeError as error:
        unused = "Expected to have finished reduction" in str(error)
        reason = "some parameters took no part in the loss of the first step" if unused else first_line(error)
        raise CheckFailed(f"DistributedDataParallel: {reason}") from error
    finally:
        distributed.destroy_process_group()
        sys.excepthook = excepthook


def flops_are_counted(subject: Subject) -> str:
    """Operations are counted, and grow with the image."""
    model = subject.backbone()
    counts = flops(model, subject.square)
    if not counts["total"] > 0:
        raise CheckFailed(f"0 operations are counted for an image of {text(subject.square)} pixels")
    return f"{counts['total'] / 1e9:.4g} GFLOPs per image of {text(subject.square)} pixels ({counts['method']})"


def speed(subject: Subject) -> str:
    """Measures forward passes beside a patchify stem; it passes whatever the figures are."""
    name, reference = _patchify(subject)
    model, images = subject.backbone(), subject.images(4)
    side = -(-subject.square[0] // 16) * 16
    reference_images = images if name != _REFERENCE else subject.images(4, (side, side))
    seconds = _seconds_per_image(model, images), _seconds_per_image(reference, reference_images)
    return (
        f"{1e3 * seconds[0]:.2f} ms per image on the CPU, {seconds[0] / seconds[1]:.2f} times as long as {name} "
        f"({1e3 * seconds[1]:.2f} ms)"
    )


def _patchify(subject: Subject) -> tuple[str, Backbone]:
    """Return the same backbone with a patchify stem, or ViT-S/16 where the stem cannot be exchanged, with its name."""
    spec = subject.source.spec
    if spec.stem is not None and subject.kind == "ours":
        files = {part: digest for part, digest in spec.files.items() if part != "stem"}
        spec = override(replace(spec, files=files), stem="patchify", weights="random")
        return f"{spec.name} with the patchify stem", create(spec, img_size=subject.square).eval()
    side = -(-subject.square[0] // 16) * 16
    return _REFERENCE, create(resolve(_REFERENCE, weights="random"), img_size=side).eval()


def _seconds_per_image(model: nn.Module, images: Tensor) -> float:
    seconds = []
    with torch.inference_mode():
        model(images)
        for _ in range(_PASSES):
            start = time.perf_counter()
            model(images)
            seconds.append(time.perf_counter() - start)
    return median(seconds) / len(images)
