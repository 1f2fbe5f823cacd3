"""The device of a rank, and whether torch can compute on a GPU."""

import os
import platform
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from transfer.core.errors import UsageError, UserError, first_line
from transfer.core.machine_errors import machine_error
from transfer.core.process import Ranks
from transfer.engine.options import Precision

DRIVER = Path("/proc/driver/nvidia/version")
"""Exists while NVIDIA's driver is loaded, also in containers."""
NO_DRIVER = "no driver"


def choose_device(name: str, ranks: Ranks) -> torch.device:
    """Return the device that `auto`, `cpu` or `cuda` means; each local rank has a GPU of its own.

    Raises:
        UserError: cuda was asked for and there is none, or fewer GPUs than local ranks.
        MachineError: the driver of the GPU that is there is too old, or torch's build has no code for it.
    """
    lacks = name != "cpu" and why_no_gpu()
    if name == "cpu" or (lacks and name == "auto"):
        return torch.device("cpu")
    if lacks:
        raise UserError(f"--device cuda: {lacks}; or use --device cpu")
    if ranks.local_rank >= torch.cuda.device_count():
        raise UserError(f"local rank {ranks.local_rank} has no GPU of its own: there are {torch.cuda.device_count()}")
    device = torch.device("cuda", ranks.local_rank)
    with warnings.catch_warnings(action="ignore"):  # of another generation, which the error below says in one line
        torch.cuda.set_device(device)
        try:
            torch.ones(1, device=device).neg_()
        except RuntimeError as error:  # such as that torch's build has no code for it
            raise (machine_error(error) or error) from None
    return device


def why_no_gpu() -> str:
    """Return in one line why torch sees no GPU, by its build and the driver, and what to do; nothing if it sees one.

    Raises:
        MachineError: there is a GPU, but its driver is too old for this build of torch.
    """
    with warnings.catch_warnings(action="ignore"):  # the line says it
        if torch.cuda.is_available():
            return ""
    installed, built, reason = driver(), "CPUs alone", ""
    fix = "install a build of torch for CUDA (https://pytorch.org/get-started/locally)"
    if torch.version.cuda:
        built, fix = f"CUDA {torch.version.cuda}", "install NVIDIA's driver"
        try:
            torch.cuda.init()
        except RuntimeError as error:
            if reported := machine_error(error):
                raise reported from None
            reason = f" ({first_line(error)})" if installed != NO_DRIVER else ""
    if torch.version.cuda and installed != NO_DRIVER:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        fix = f"see nvidia-smi, and start a container with --gpus all; CUDA_VISIBLE_DEVICES is {hidden!r}"
    return f"torch {torch.__version__}, built for {built}, sees no GPU{reason}, and this machine has {installed}: {fix}"


def driver() -> str:
    """Return NVIDIA's driver with its version, or that there is none."""
    text = DRIVER.read_text(encoding="utf-8") if DRIVER.is_file() else ""
    version = re.search(r"\d+\.[\d.]+", text)
    return f"driver {version[0]}" if version else NO_DRIVER


def device_name(device: torch.device) -> str:
    """Return the name of the GPU or processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def _processor() -> str:
    name = re.search(r"^model name\s*:(.*)", _cpu_facts(), re.MULTILINE)
    return name[1].strip() if name else platform.processor() or "cpu"


def cpu_has_bf16() -> bool:
    """Return whether the processor multiplies bf16 natively."""
    return bool(re.search(r"\b(avx512_|amx_)?bf16\b", _cpu_facts()))


def _cpu_facts() -> str:
    """Return Linux's description of the processors; empty on other systems."""
    file = Path("/proc/cpuinfo")
    return file.read_text(encoding="utf-8") if file.exists() else ""


DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def choose_precision(name: str, device: torch.device) -> Precision:
    """Return the precision that an option means: `auto` is bf16 where the machine multiplies it natively, else fp32.

    Raises:
        UsageError: bf16 on a GPU without it.
    """
    native = torch.cuda.is_bf16_supported(False) if device.type == "cuda" else cpu_has_bf16()
    if name == "auto":
        return "bf16" if native else "fp32"
    if name == "bf16" and device.type == "cuda" and not native:
        raise UsageError("precision bf16: this GPU does not have it; fp16 and fp32 remain")
    return cast(Precision, name)


def choose_precisions(options: Any, device: torch.device) -> tuple[Precision, Precision]:
    """Return the precisions of training and of scoring, by the options `precision` and `eval_precision` of a command.

    Where nothing trains `precision` is missing, and the first is the second. Raises UsageError.
    """
    training = getattr(options, "precision", options.eval_precision)
    scoring = training if options.eval_precision == "run" else options.eval_precision
    return choose_precision(training, device), choose_precision(scoring, device)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return autocast to a precision; an empty context for fp32."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=DTYPES[precision])


@contextmanager
def scoring_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Autocast to a precision; for fp32 use no autocast, and neither TF32 nor bfloat16 inside products of float32."""
    exact = precision == "fp32"
    cast = torch.autocast(device.type, dtype=None if exact else DTYPES[precision], enabled=not exact)
    with full_float32() if exact else nullcontext(), cast:
        yield


def _backends() -> tuple[Any, ...]:
    cudnn, mkldnn = cast(Any, torch.backends.cudnn), cast(Any, torch.backends.mkldnn)
    return torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv


def _set_float32(precisions: Sequence[str]) -> None:
    """Set the precisions of `_backends`. First torch's older switches to what they agree with: read by somebody, they
    raise where they contradict these.
    """
    products, convolutions, _, on_cpu, _ = precisions
    legacy = "highest" if products != "tf32" else "medium" if on_cpu == "bf16" else "high"
    torch.set_float32_matmul_precision(legacy)
    torch.backends.cudnn.allow_tf32 = convolutions == "tf32"
    for backend, precision in zip(_backends(), precisions, strict=True):
        backend.fp32_precision = precision


@contextmanager
def full_float32() -> Iterator[None]:
    """Keep products and convolutions of float32 free of TF32 and bfloat16, whatever is switched on."""
    before = [backend.fp32_precision for backend in _backends()]
    try:
        _set_float32(["ieee"] * len(before))
        yield
    finally:
        _set_float32(before)


@contextmanager
def fastest_convolutions(one_size: bool) -> Iterator[None]:
    """Let cuDNN keep for each shape the convolution that it measures to be the fastest, which may differ from run to
    run; where images have many sizes, or determinism is asked for in torch, as it is set.
    """
    cudnn, before = torch.backends.cudnn, torch.backends.cudnn.benchmark
    determined = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    cudnn.benchmark = before or (one_size and not determined)
    try:
        yield
    finally:
        cudnn.benchmark = before


def tf32_operations(device: torch.device) -> str | None:
    """Return a phrase that says which float32 operations use TF32 by torch's current settings; None on a CPU."""
    if device.type != "cuda":
        return None
    matmul, conv, *_ = _backends()
    kinds = {"products": matmul, "convolutions": conv}
    return " and ".join(name for name, kind in kinds.items() if kind.fp32_precision == "tf32") or "none"


def free_bytes(device: torch.device) -> int:
    """Return the memory of a GPU that tensors can take: what is free, and what torch keeps for the next ones."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def on_device(features: Sequence[Tensor], device: torch.device, *, copies: int) -> list[Tensor]:
    """Return features on `device`; as they are if it is a GPU without memory for so many copies of them and 3 GiB."""
    needed = copies * sum(rows.nbytes for rows in features) + (3 << 30)
    fits = device.type != "cuda" or needed <= free_bytes(device)
    return [rows.to(device) if fits else rows for rows in features]
