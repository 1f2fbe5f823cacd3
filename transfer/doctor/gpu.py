"""`python -m transfer.doctor gpu`: what a GPU computes and how fast it trains, as a table for an issue.

A part that fails is a row of the table, and the next ones run. `PEAKS` has the dense bfloat16 operations a second that
NVIDIA states, by pages that quote it (unconfirmed): A100, H100, H200, A10 and L40S in the datasheet of each, with
sparsity, so twice as much, for Hopper (1,979, PCIe 1,513, NVL 1,671); RTX 3090, 4090 and 5090 in Appendix A of the
white paper of the Blackwell RTX architecture, with float32 accumulation.
"""

import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import count, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from backbones.flops import flops
from backbones.kernels.blocked import HEAD_DIMS
from backbones.kernels.functions import pointwise
from transfer.cli.command import read_command
from transfer.cli.entry import package_version
from transfer.cli.options import PretrainRunOptions, RunOptions
from transfer.cli.recipe import method_of, pretraining_recipe, task_recipe
from transfer.core.errors import UserError, print_safe
from transfer.core.machine_errors import in_one_line
from transfer.core.process import ALONE
from transfer.core.settings import as_flags, config_names
from transfer.doctor.options import GpuOptions, SpeedOptions
from transfer.doctor.speed import Timed, drawn_data, read_training
from transfer.engine.context import peak_mib
from transfer.engine.device import DTYPES, autocast, choose_device, choose_precision, device_name, driver
from transfer.engine.step import Stepper, Taken
from transfer.evaluation.environment import source_state
from transfer.evaluation.evaluate import evaluate_each
from transfer.evaluation.evaluator import make_context
from transfer.evaluation.weights_export import pretraining_task
from transfer.measure.steps import Step, in_turns
from transfer.run import checked_inputs
from transfer.task import load_task

PEAKS = {
    **{r"A100[- ]\S+( PCIe)?": 312e12, r"A10": 125e12, r"H100 80GB HBM3": 989e12, r"H100 PCIe": 756e12},
    **{r"H(1|2)00 NVL": 835e12, r"H200": 989e12, r"L40S": 362e12},
    **{r"GeForce RTX 3090": 71e12, r"GeForce RTX 4090": 165e12, r"GeForce RTX 5090": 209e12},
}
"""Dense bfloat16 operations a second by the card's name; a part of a card (MIG) has another one."""
TOLERANCES = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}
"""Largest norm of the kernels' difference to float64, by that of the result."""
TASKS = config_names("tasks")


def main(options: GpuOptions) -> int:
    """Run all parts, print the table, and return 1 if one failed. Raises UserError without a GPU."""
    device, rows, failed = choose_device("cuda", ALONE), ["| part | result |", "|---|---|"], 0
    folder = TemporaryDirectory(prefix="gpu-")
    parts: dict[str, Callable[[], str]] = {
        "software": partial(_software, device),
        "matrix product": partial(_matrix_product, device),
        "kernels": partial(_kernels, device),
        "NCCL, one process": partial(_nccl, device),
        "step of DeiT-S": partial(_step, "deit", options, device),
        "step of DINO-S": partial(_step, "dino", options, device),
        **{f"smoke of {n}": partial(_smoke, n, options, Path(folder.name)) for n in ("deit", "dino", "volo", *TASKS)},
    }
    for name, part in parts.items():
        print_safe(f"{name} ...", file=sys.stderr, flush=True)
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                found = part()
        except Exception as error:
            found, failed = f"FAILED: {in_one_line(error)}", failed + 1
        rows.append(f"| {name} | {found.replace('|', '/')} |")
    print_safe("\n".join(rows))
    folder.cleanup()
    return int(failed > 0)


def _software(device: torch.device) -> str:
    card = torch.cuda.get_device_properties(device)
    packages = (f"{name} {package_version(name)}" for name in ("torchvision", "triton", "timm", "vit-transfer"))
    commit, dirty = source_state()
    return (
        f"{device_name(device)}, {card.total_memory / 2**30:.0f} GiB, capability {card.major}.{card.minor}, "
        f"{driver()}; torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"{', '.join(packages)} {(commit or '')[:12]}{', modified' * bool(dirty)}"
    )


def card_peak(device: torch.device) -> float | None:
    """Return the card's dense bfloat16 operations a second by its maker; None of an unknown one, and of a CPU."""
    name = device_name(device).removeprefix("NVIDIA ") if device.type == "cuda" else ""
    return next((peak for card, peak in PEAKS.items() if re.fullmatch(card, name)), None)


def matrix_throughput(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product, the best of some."""
    for side in (512, 2048, 4096, 8192):
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        seconds = min(wall_time(device, partial(torch.mm, a, b), 1) for _ in range(6))
        if seconds > 0.02:
            break
    return 2 * float(side) ** 3 / seconds


def wall_time(device: torch.device, step: Step, times: int) -> float:
    """Return the seconds in which a device ends a number of calls of a step."""
    begin = time.perf_counter()
    for _ in range(times):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _matrix_product(device: torch.device) -> str:
    precision, peak = choose_precision("auto", device), card_peak(device)
    rate = matrix_throughput(device, DTYPES[precision])
    share = f", {rate / peak:.0%} of the datasheet's {peak / 1e12:.0f}" if peak and precision == "bf16" else ""
    return f"{rate / 1e12:.1f} T operations/s in {precision}{share}"


def _kernels(device: torch.device) -> str:
    """Compare results and gradients of point-wise attention with those in float64, in all precisions and widths."""
    half = ("bf16",) if choose_precision("auto", device) == "bf16" else ()
    worst = dict.fromkeys(("fp32", "fp16", *half), 0.0)
    generator = torch.Generator().manual_seed(0)

    def results(inputs: list[Tensor]) -> list[Tensor]:
        tracked = [x.requires_grad_() for x in inputs[:3]]
        out = pointwise(tracked[0], tracked[1], tracked[2], h="relu")
        return [x.detach().double().cpu() for x in (out, *torch.autograd.grad(out, tracked, inputs[3]))]

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for precision in worst:
            for width in HEAD_DIMS:
                drawn = [torch.randn(1, 2, 197, width, generator=generator).to(DTYPES[precision]) for _ in range(4)]
                exact = results([x.double() for x in drawn])
                for found, true in zip(results([x.to(device) for x in drawn]), exact):
                    worst[precision] = max(worst[precision], float((found - true).norm() / true.norm()))
    text = ", ".join(f"{precision} {error:.1e}" for precision, error in worst.items())
    if off := [precision for precision, error in worst.items() if not error <= TOLERANCES[precision]]:
        raise UserError(f"{', '.join(off)}: farther from float64 than {TOLERANCES}: {text}")
    return "; ".join([f"differ from float64 by {text}", *{str(warning.message) for warning in said}])


def _nccl(device: torch.device) -> str:
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(ones := torch.ones(8, device=device))
        assert ones.tolist() == [1.0] * 8
        dist.broadcast_object_list(["text"], src=0, device=torch.device("cpu"))
        return ".".join(map(str, torch.cuda.nccl.version()))
    finally:
        dist.destroy_process_group()


def _step(recipe: str, options: GpuOptions, device: torch.device) -> str:
    """Measure a training step of the suite on images that are ready, beside timm's model in plain torch."""
    given = SpeedOptions(backbone="vit_s", recipe=recipe, device="cuda", workers=0, batch_size=options.batch_size)
    command, method = read_training(given)
    if options.size:
        small = {"local_size": options.size // 2} if recipe == "dino" else {}
        command.options = replace(command.options, size=options.size, **small)
    context, trained = replace(make_context(command), progress=False, quiet=True), command.options
    with drawn_data(given, command) as data:
        spec = command.resolved(from_scratch=True)
        learner, loader = method.prepare_training(spec, data, trained, context)
        batch = next(loader.stream(0, 0, 1000))[1]
    stepper, numbers, begun = Stepper(learner, trained, context), count(25_001), list[Taken]()

    def ours() -> None:
        begun.append(stepper.step(next(numbers), 20.0, batch, 1250))
        if len(begun) > 1:
            begun.pop(0).read()  # as late as the training loop reads it

    clock = Timed(repeat(batch), options.seconds / 4, device)
    for _ in clock.stream():
        ours()
    torch.cuda.reset_peak_memory_stats(device)
    waits, memory = _synchronisations(ours), peak_mib(device)
    ratio = in_turns(_plain_step(recipe, trained, device), ours, partial(wall_time, device), options.seconds)
    rate = options.batch_size * clock.steps / clock.passed
    peak = card_peak(device) or matrix_throughput(device, DTYPES[context.precision])
    operations = 3e9 * context.cost.gflops  # a forward pass, and twice as much backward, of an image
    if recipe == "dino":  # two such views, which the teacher sees too, and smaller ones
        operations *= 8 / 3
        student: Any = learner.exported
        operations += 3 * trained.local_crops * flops(student, trained.local_size)["total"]
    return (
        f"{rate:,.0f} images/s, {ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times timm's, "
        f"{rate * operations / peak:.1%} of {peak / 1e12:.3g} T operations/s, {memory:,.0f} MiB, {context.precision}, "
        f"batch {options.batch_size}, synchronisations: {', '.join(f'{at} {n}' for at, n in waits.items()) or 'none'}"
    )


def _synchronisations(step: Step) -> Counter[str]:
    """Count by line of code where a step waits for the GPU."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return Counter(f"{Path(w.filename).name}:{w.lineno}" for w in found if "called a synchronizing" in str(w.message))


def _plain_step(recipe: str, options: Any, device: torch.device) -> Step:
    """Return a step of timm's ViT-S with a linear head, AdamW and the loss of the recipe in the recipe's precision."""
    local = [options.local_size] * options.local_crops if recipe == "dino" else []
    sides = [options.size] * 2 + local if local else [options.size]
    crops = [torch.rand(options.batch_size, 3, side, side, device=device) for side in sides]
    outputs = options.out_dim if local else 1000
    make = partial(timm.create_model, "vit_small_patch16_224", num_classes=outputs, dynamic_img_size=True)
    student, teacher = make(drop_path_rate=0.1).to(device).train(), make().to(device).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=True)
    labels = torch.randint(1000, (options.batch_size,), device=device)
    precision = choose_precision("auto", device)

    def loss() -> Tensor:
        if not local:
            return F.cross_entropy(student(crops[0]), labels)
        targets = (teacher(torch.cat(crops[:2])) / 0.04).softmax(-1).chunk(2)
        views = [*student(torch.cat(crops[:2])).chunk(2), *student(torch.cat(crops[2:])).chunk(len(local))]
        pairs = [(view / 0.1, target) for i, target in enumerate(targets) for j, view in enumerate(views) if i != j]
        return torch.stack([F.cross_entropy(view, target) for view, target in pairs]).mean()

    def step() -> None:
        with autocast(precision, device):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        if local:
            torch._foreach_lerp_([*teacher.parameters()], [p.detach() for p in student.parameters()], 0.004)

    return step


def _smoke(name: str, options: GpuOptions, folder: Path) -> str:
    """Run a task or a pretraining in small."""
    if name == "detect" and not (package_version("onedl-mmdetection") or package_version("mmdet")):
        return "not run: pip install -e '.[detection]'"
    given: dict[str, Any] = {"backbone": "volo_tiny" if name == "volo" else "tiny", "device": "cuda", "out": folder}
    given |= {"workers": options.workers} | ({"dataset": "toy_digits"} if name == "fewshot" else {})
    if name == "classify":
        given["weights"] = next(folder.glob("pretrain-supervised-*-tiny-*"), "random")
    recipe = task_recipe(name) if name in TASKS else pretraining_recipe(name)
    task = load_task(name if name in TASKS else method_of(recipe))
    given |= {} if name in TASKS else {"export_dir": folder}
    given |= {"epochs": 1} if "epochs" in task.options.__dataclass_fields__ else {}
    of_run = RunOptions if name in TASKS else PretrainRunOptions
    command = read_command(recipe, task.options, ["--smoke", *as_flags(given)], of_run)
    task = task if name in TASKS else pretraining_task(command, task, name)
    evaluation = evaluate_each(checked_inputs(command, task, say=False), task, progress=False)
    for failure in evaluation.failures:
        raise failure.error
    record = evaluation.records[0]
    if record.status in ("nonfinite", "diverged"):
        raise UserError(f"{record.status}: {record.reason}")
    scores = ", ".join(f"{key} {value:.3f}" for key, value in [*record.scores.items()][:2])
    return f"{record.status}, {scores}, {record.cost['device_hours'] * 3600:.0f} s, {record.cost['peak_mib']:.0f} MiB"
