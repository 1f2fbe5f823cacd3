"""Errors of the machine, such as memory that ran out, as errors for the user in one line. Imports no torch.

torch raises most of them as a RuntimeError, so they are known by their texts, which are those of torch 2.11 to 2.15.
"""

import errno
import os
import re
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from backbones.errors import MachineError, UserError
from backbones.runtime.path_errors import path_error
from backbones.runtime.user_faults import user_fault

Kind = Literal["memory", "GPU memory", "shared memory", "worker", "library", "driver", "architecture"]

_TEXTS: tuple[tuple[Kind, str], ...] = (
    ("shared memory", r"allocate shared memory|</torch_\S*>: No space left|(out of|insufficient) shared memory"),
    ("worker", r"DataLoader worker \(pid\S*.*\) (exited unexpectedly|is killed by signal)"),
    ("GPU memory", r"CUDA out of memory|CUDA (driver )?error: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED"),
    ("memory", r"can't allocate memory|std::bad_alloc|Cannot allocate memory|failed to map segment from shared object"),
    ("library", r"(\S{1,200}\.so[.\d]*): cannot open shared object file"),
    ("driver", r"NVIDIA driver on your system is too old|driver version is insufficient"),
    ("architecture", r"no kernel image is available"),
)
"""The first text that an error contains decides its kind. A text of any length is searched quickly."""
_PACKAGES = {"libGL.so.1": "libgl1", "libgthread-2.0.so.0": "libglib2.0-0", "libglib-2.0.so.0": "libglib2.0-0"}
"""Debian's package of a library that OpenCV's wheels need."""


@dataclass(frozen=True)
class Situation:
    """What a run was doing when its machine failed."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the run by their field names."""
    training: bool = False
    """Whether it trained; else it scored, or got ready."""
    peak_mib: float | None = None
    """The most memory that it used, in MiB."""
    state_saved: bool = False
    """Whether the state of its training is on the disk."""


def machine_error(error: BaseException, situation: Situation | None = None) -> MachineError | None:
    """Return the error for the user that an error of the machine stands for; None for every other error."""
    known = _kind(error)
    if known is None:
        return None
    kind, text = known
    situation = situation or Situation()
    if kind in ("memory", "GPU memory"):
        reason = _out_of_memory(kind == "GPU memory", situation)
    elif kind == "library":
        reason = _missing_library(text)
    else:
        reason = f"{_REASONS[kind]} ({_first_line(text)})" if kind != "shared memory" else _full_shared_memory()
    kept = "; the last saved state is kept, and the same command goes on from it" if situation.state_saved else ""
    return MachineError(reason + kept)


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turn errors of the machine into MachineError, and those of users' files and of impossible paths into UserError.

    It is a context and a decorator.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a user's file may call sys.exit
        if reported := machine_error(error) or user_fault(error) or path_error(error):
            raise reported from error
        raise


def _kind(error: BaseException) -> tuple[Kind, str] | None:
    """Return the kind of the first error of the machine among an error and its causes, and its text."""
    current: BaseException | None = error
    while current is not None and not isinstance(current, UserError):
        text = str(current)
        if isinstance(current, MemoryError) or getattr(current, "errno", None) == errno.ENOMEM:
            return "memory", text
        if isinstance(current, RuntimeError | OSError | ImportError):
            for kind, pattern in _TEXTS:
                if re.search(pattern, text):
                    return kind, text
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return None


_REASONS: dict[Kind, str] = {
    "worker": "a loader process was killed, in most cases because the machine's memory ran out: set fewer "
    "--workers, or --workers 0 to load images without processes",
    "driver": "the NVIDIA driver is too old for this build of torch: update the driver, install a build of torch for "
    "an older CUDA (pytorch.org/get-started), or give --device cpu",
    "architecture": "this build of torch has no code for this GPU: install a build of torch that supports it "
    "(pytorch.org/get-started), or give --device cpu",
}


def _out_of_memory(on_gpu: bool, situation: Situation) -> str:
    place = "the GPU" if on_gpu else "this machine"
    facts = _batch(situation) + ([f"peak {situation.peak_mib:.0f} MiB"] if situation.peak_mib is not None else [])
    where = f" in {'training' if situation.training else 'evaluation'} with {', '.join(facts)}" if facts else ""
    fixes = _smaller(situation) or ([] if on_gpu else _raised_limit()) or ["take a machine with more memory"]
    return f"out of memory on {place}{where}: {', or '.join(fixes)}"


def _raised_limit() -> list[str]:
    """Return how to raise the limit of this process's address space, where there is one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    return [f"raise the limit of the address space, {limit / 2**30:.1f} GiB here (`ulimit -v unlimited`)"]


def _batch(situation: Situation) -> list[str]:
    """Return the options that say how many images of which size are in memory at once."""
    options, names = situation.options, ("eval_batch", "size")
    if situation.training:
        identities = ("num_identities", "num_instances") if "num_identities" in options else ("batch",)
        names = (*identities, "grad_accum_steps", "size")
    return [_flag(name, options[name]) for name in names if options.get(name) is not None]


def _smaller(situation: Situation) -> list[str]:
    """Return what makes the run take less memory, the least change first."""
    options, fixes = situation.options, []
    if not situation.training:
        batch = options.get("eval_batch") or 1
        return [f"set {_flag('eval_batch', batch // 2)}"] if batch > 1 else []
    if options.get("checkpoint") is False:
        fixes.append("set --checkpoint, which computes activations again in the backward pass")
    images, parts = options.get("num_identities") or options.get("batch") or 1, options.get("grad_accum_steps")
    more = [number for number in range((parts or 1) + 1, images + 1) if images % number == 0] if parts else []
    if more:
        fixes.append(f"set {_flag('grad_accum_steps', more[0])}, or more")
    return [*fixes, "a smaller --size"] if "size" in options else fixes


def _flag(name: str, value: Any) -> str:
    values = value if isinstance(value, list | tuple) else [value]
    return " ".join([f"--{name.replace('_', '-')}", *map(str, values)])


def _full_shared_memory() -> str:
    try:
        disk = os.statvfs("/dev/shm")
        size = f", which has {disk.f_blocks * disk.f_frsize / 2**20:.0f} MiB,"
    except OSError:
        size = ""
    return (
        f"/dev/shm{size} is full: loader processes pass images through it; set --workers 0, or give it more memory "
        "(docker run --shm-size 8g, or --ipc host)"
    )


def _missing_library(text: str) -> str:
    match = re.search(_TEXTS[4][1], text)
    name = match[1] if match else text
    if name in _PACKAGES:
        fix = f"apt-get install {_PACKAGES[name]}, or pip install opencv-python-headless in place of opencv-python"
    else:
        fix = "install the package of the system that has it"
    return f"the system library {name} is missing: {fix}"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if re.search("|".join(pattern for _, pattern in _TEXTS), line)), lines[0])
