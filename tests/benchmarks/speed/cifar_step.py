"""Where the time of a laptop's training step goes: the CIFAR recipe's, by operation, and its products beside the limit.

    python -m tests.benchmarks cifar_step --images DATA.yaml [--backbone cifar_ti4_convstem] [--batch 64]

Profiles steps by the recipe `cifar_deit` on the CPU, with real images. Operations are summed by what they are; matrix
products are held against the machine's rate for large ones, in the precision of the training.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from backbones.data.classification import open_classification
from backbones.data.spec import resolve_dataset
from backbones.engine.step import Stepper
from backbones.pretrain.method import load_method
from tests.benchmarks.speed.timing import matrix_throughput
from transfer.cli.command import pretraining_recipe, read_command
from transfer.cli.options import PretrainRunOptions
from transfer.evaluation.evaluator import make_context

STEPS = 10
KINDS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm"),
    "convolutions": ("mkldnn_convolution", "convolution_backward", "_slow_conv2d_forward"),
    "copies and casts": ("copy_", "_to_copy", "cat", "clone"),
    "norms": ("native_layer_norm", "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward"),
    "activations": ("gelu", "gelu_backward", "relu", "threshold_backward", "_softmax", "_softmax_backward_data"),
    "optimiser": ("_fused_adamw_", "_foreach_add_", "_foreach_mul_"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print milliseconds of a step, of each kind of operation, and the products' rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="the YAML file of a data set with images of 32 pixels")
    parser.add_argument("--backbone", default="cifar_ti4_convstem")
    parser.add_argument("--batch", type=int, default=64)
    given = parser.parse_args(argv)
    method = load_method("supervised")
    words = ["--backbone", given.backbone, "--device", "cpu", "--batch", str(given.batch)]
    command = read_command(pretraining_recipe("cifar_deit"), method.options, words, PretrainRunOptions)
    context = replace(make_context(command), progress=False, quiet=True)
    data = open_classification(resolve_dataset(given.images), None)
    spec = command.resolved(from_scratch=True)
    learner, loader = method.prepare_training(spec, data, command.options, context)
    stepper, batch = Stepper(learner, command.options, context), next(iter(loader.stream(0, 0, 1)))[1]

    def steps(count: int) -> None:
        for number in range(count):
            stepper.step(number + 1, 0.1, batch, 10_000)

    steps(3)
    begin = time.perf_counter()
    steps(STEPS)
    milliseconds = (time.perf_counter() - begin) / STEPS * 1e3
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        steps(STEPS)
    with FlopCounterMode(display=False) as counter:
        steps(1)
    spent = {event.key.removeprefix("aten::"): event.self_cpu_time_total for event in profiled.key_averages()}
    total = sum(spent.values())
    print(f"{context.precision}, {torch.get_num_threads()} threads, batch {given.batch}: {milliseconds:.0f} ms a step")
    named = {kind: sum(spent.get(name, 0.0) for name in names) for kind, names in KINDS.items()}
    for kind, microseconds in {**named, "all others": total - sum(named.values())}.items():
        print(f"{kind:18} {microseconds / total:6.1%}")
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for key, count in counts.items() if str(key).rpartition(".")[2] in KINDS["matrix products"])
    rate = products * STEPS / named["matrix products"] / 1e3
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(context.precision, torch.float32)
    limit = matrix_throughput(context.device, dtype) / 1e9
    print(f"matrix products: {rate:,.0f} GFLOP/s, large ones {limit:,.0f}: {rate / limit:.2f} of it")
    return 0
