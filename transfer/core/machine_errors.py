"""Any error as one line for the user: with advice where the machine failed, else with its place. Imports no torch.

torch raises most errors of the machine as a RuntimeError, so they are known by the texts of torch 2.11 to 2.15.
"""

import contextlib
import errno
import re
import sys
import traceback
from collections.abc import Iterator

from transfer.core.errors import DeviceLost, MachineError, MissingInput, UserError, first_line
from transfer.core.files import ROOT
from transfer.core.user_code import MODULES

_SMALLER = "set more --grad-accum-steps, a smaller batch or --size to train, a smaller --eval-batch-size to score"
_LOST = "the GPU is unusable in this process; CUDA_LAUNCH_BLOCKING=1 and --debug show where it failed"
# fmt: off
_ADVICE = {
    r"allocate shared memory|</torch_\S*>: No space left|(out of|insufficient) shared memory":
        "/dev/shm is full, through which loader processes pass images: set --workers 0, or give it more memory "
        "(docker run --shm-size 8g)",
    r"DataLoader worker \(pid\S*.*\) (exited unexpectedly|is killed by signal)":
        "a loader process was killed, in most cases because the machine's memory ran out: set fewer --workers",
    r"CUDA out of memory|CUDA (driver )?error: out of memory|CU(BLAS|DNN)_STATUS_ALLOC_FAILED":
        f"out of memory on the GPU: {_SMALLER}",
    r"can't allocate memory|std::bad_alloc|Cannot allocate memory|failed to map segment from shared object":
        f"out of memory on this machine: {_SMALLER}",
    r"(\S{1,200}\.so[.\d]*): cannot open shared object file":
        "a system library is missing: install the package that has it (`apt-get install libgl1 libglib2.0-0` for "
        "libGL and libgthread)",
    r"NVIDIA driver on your system is too old|driver version is insufficient":
        "the NVIDIA driver is too old for this build of torch: update it, install a build of torch for an older CUDA, "
        "or use --device cpu",
    r"no kernel image is available":
        "this build of torch has no code for this GPU: install one that has, or use --device cpu",
    r"CUDA error: .*(illegal (memory access|instruction)|device-side assert|unspecified launch failure|misaligned|ECC)":
        _LOST,
    r"gloo\S*\] .*Connection (closed|reset) by peer|ncclRemoteError": "another rank has ended, and its error says why",
}
# fmt: on
"""Texts of errors of the machine, and what to do."""


def install_command(extra: str) -> str:
    """Return the command that installs an optional group of dependencies, in a checkout or beside a wheel."""
    return f"pip install -e '.[{extra}]'" if (ROOT / "setup.cfg").exists() else f"pip install 'vit-transfer[{extra}]'"


_INSTALL = {
    **dict.fromkeys(("datasets", "pyarrow"), install_command("parquet")),
    "cv2": install_command("fast"),
    "torchvision": "pip install torchvision, from the index that torch came from",
}
"""Packages that may be missing, and what installs them."""
_MISSING = re.compile(r"No module named '(\w+)|tried using: '(\w+)|from '(\w+)' \(unknown location\)")
"""The texts for a missing package: Python's, pandas', and that of a user's folder of the package's name."""
_NOT_UTF8 = re.compile("[^\n\0]*[\udc80-\udcff][^\n\0]*")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)  # the last one by `ulimit -f`


def machine_error(error: BaseException, *, saved: bool = False) -> MachineError | None:
    """Return the error for the user that an error of the machine stands for; None for every other error.

    Args:
        error: any error; its causes are looked at, too.
        saved: whether the state of the run is on the disk.
    """
    resume = "; the last checkpoint is kept; rerun the command to resume" if saved else ""
    current: BaseException | None = error
    while current is not None and not isinstance(current, UserError):
        text = str(current)
        if isinstance(current, MemoryError):
            return MachineError(f"out of memory on this machine: {_SMALLER}{resume}")
        if isinstance(current, RuntimeError | OSError | ImportError):
            for pattern, advice in _ADVICE.items():
                if re.search(pattern, text):
                    line = next((line.strip() for line in text.splitlines() if re.search(pattern, line)), "")
                    return (DeviceLost if advice is _LOST else MachineError)(f"{advice} ({line}){resume}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return None


def in_one_line(error: BaseException, *, saved: bool = False, more: str = "--debug shows the traceback") -> UserError:
    """Return any error as one for the user; of an unexpected one it has the place in the code.

    The place is that of a user's file if its code raised the error.

    Args:
        saved: see `machine_error`.
        more: where more is said of an unexpected error.
    """
    if isinstance(error, UserError):
        return error
    if reported := machine_error(error, saved=saved) or _not_installed(error):
        return reported
    if isinstance(error, OSError) and error.errno in _FULL:
        place = error.filename or "the output"
        fix = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another folder"
        return UserError(f"{place}: cannot be written ({error.strerror}); {fix}, then rerun the command")
    if isinstance(error, UnicodeEncodeError) and (name := _NOT_UTF8.search(error.object)):
        return UserError(f"{name[0]}: a name that is not UTF-8; rename it (`convmv -r -f latin1 -t utf8 --notest`)")
    reason = " ".join([_reason(error), *getattr(error, "__notes__", ())])
    frames, modules = list(_frames(error)), list(sys.modules.items())  # a thread may import while this runs
    users_files = {str(module.__file__) for name, module in modules if name.startswith(MODULES)}
    if of_user := [frame for frame in frames if frame[0] in users_files]:
        file, line = of_user[-1]
        return UserError(f"{file} at line {line}: {reason} ({more})")
    if not frames:
        return UserError(f"{reason} ({more})")
    below_root = (frame for frame in frames if frame[0].startswith(str(ROOT)))
    of_suite = [frame for frame in below_root if "site-packages" not in frame[0]]
    file, line = (of_suite or frames)[-1]
    return UserError(f"{reason} ({file.removeprefix(f'{ROOT}/')}:{line}; {more})")


def _not_installed(error: BaseException) -> UserError | None:
    """Return the error for a missing package that the suite can do without in most commands; None for all others."""
    match = _MISSING.search(str(error)) if isinstance(error, ImportError) else None
    name = match and next(filter(None, match.groups()))
    return MissingInput(f"{name} is not installed: {_INSTALL[name]}") if name in _INSTALL else None


@contextlib.contextmanager
def missing_packages_named() -> Iterator[None]:
    """Raise MissingInput, which names the command to install it, where one of these packages cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise (_not_installed(error) or error) from None


def _reason(error: BaseException) -> str:
    """Return the type and the first line of an error; of one that a loader process sent, those at its traceback's
    end.
    """
    lines = map(str.strip, str(error).splitlines())
    sent = [line for line in lines if line.startswith(f"{type(error).__name__}:")]
    return sent[-1] if sent else first_line(error)


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield the file and line of each frame, the innermost last, of loader processes too, which send them as text."""
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.filename, frame.lineno or 0
    for path, line in re.findall(r'File "([^"\n]+\.py)", line (\d+)', str(error)):
        yield path, int(line)
