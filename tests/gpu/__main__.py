"""A pretended GPU: run a command on tensors that say they are on cuda:0 and are computed on the CPU.

An operation on tensors of both devices raises as CUDA would. Afterwards the synchronisations of host and device are
printed by line of the product, kernel launches by phase, and mixes of devices. It does not show CUDA's numerics, memory
layouts, NCCL, or what cuDNN and attention choose. It needs gcc and torch's CUDA build.

    python -m tests.gpu [--steps N] [--kernels] transfer.run reid --device cuda --workers 0 --smoke --backbone tiny
"""

import argparse
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any


def main(argv: list[str]) -> int:
    """Run a command, or those that come as lines of JSON; return the exit status."""
    parser = argparse.ArgumentParser("python -m tests.gpu", usage=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="most training steps of an epoch; 0: all")
    parser.add_argument("--kernels", action="store_true", help="fused kernels in Triton's interpreter, not blocks")
    parser.add_argument("--counts", type=Path, help="file for what is counted")
    parser.add_argument("--serve", action="store_true", help="run each line of stdin: [folder, log, [option ...]]")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    _pretend()
    if not options.serve:
        return _run(options)
    from tests.processes import PRELOADED

    for name in PRELOADED:
        importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        folder, log, words = json.loads(line)
        if (child := os.fork()) == 0:
            os.chdir(folder)
            sys.path.insert(0, folder)
            target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(target, 1)
            os.dup2(target, 2)
            status = _run(parser.parse_args(words))
            sys.stdout.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return 0


def _pretend() -> None:
    """Make this process one with a GPU; it starts anew if the driver is not in it."""
    source = Path(__file__).with_name("driver.c")
    driver = Path(tempfile.gettempdir()) / f"pretended-gpu-{os.getuid()}" / "libcuda.so.1"
    if not driver.exists() or driver.stat().st_mtime < source.stat().st_mtime:
        driver.parent.mkdir(exist_ok=True)
        part = driver.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", part, source], check=True)
        part.replace(driver)
    if str(driver) not in os.environ.get("LD_PRELOAD", ""):
        os.environ |= {"LD_PRELOAD": str(driver), "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.execv(sys.executable, [sys.executable, "-m", "tests.gpu", *sys.argv[1:]])
    from tests.gpu import patches

    patches.pretend()


def _run(options: argparse.Namespace) -> int:
    """Run a module as `python -m` does; print and keep what was counted."""
    from tests.gpu import patches, tensors
    from tests.gpu.ledger import LEDGER

    tensors.KERNELS = options.kernels
    patches.watch(options.steps)
    sys.argv = options.command
    status: Any = 0
    with tensors.Pretended():
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
    print(LEDGER.table(), file=sys.stderr)
    if options.counts:
        options.counts.write_text(json.dumps(vars(LEDGER) | {"syncs": LEDGER.lines()}), encoding="utf-8")
    return status if isinstance(status, int) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
