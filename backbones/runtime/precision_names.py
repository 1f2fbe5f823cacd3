"""The precisions of a run by name, as far as they are known without torch."""

import ctypes
from pathlib import Path
from typing import Any, Literal, cast

Precision = Literal["bf16", "fp16", "fp32"]


def cpu_has_bf16() -> bool:
    """Return whether the processor multiplies bf16 natively."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags or " bf16" in flags


def precisions_without_torch(options: Any, device: str) -> tuple[Precision, Precision] | None:
    """Return what `choose_precisions` does, if no GPU has to be asked what it can; else None.

    Args:
        options: of a task or method, with `eval_precision` and, where something trains, `precision`.
        device: the option `--device`.
    """
    scoring: str = options.eval_precision
    training: str = getattr(options, "precision", scoring)
    scoring = training if scoring == "run" else scoring
    if {training, scoring} <= {"fp32", "fp16"}:
        return cast(Precision, training), cast(Precision, scoring)
    if device == "cuda" or (device == "auto" and _may_have_gpu()):
        return None
    auto = "bf16" if cpu_has_bf16() else "fp32"
    training, scoring = (auto if name == "auto" else name for name in (training, scoring))
    return cast(Precision, training), cast(Precision, scoring)


def _may_have_gpu() -> bool:
    """Return whether torch might see a GPU: builds for CUDA need the driver's library, those for ROCm its device."""
    if Path("/dev/kfd").exists():
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
