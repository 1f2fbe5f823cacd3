"""A command for the tests of how jobs are started: it prints what it finds, or ends as its first argument says."""

import atexit
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transfer.core.process import peak_memory


def main(argv: list[str]) -> int:
    """Do what the first argument says, and return the exit status."""
    how, *words = argv
    if how == "facts":
        print(json.dumps(facts(words)))
    if how == "raises":
        raise ValueError("no such width")
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        atexit.register(print, "the last word")
        threading.Thread(target=lambda: (time.sleep(0.2), print("of a thread"))).start()
        return int(words[0])
    if how == "is deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        numbers = os.getppid(), os.getpid(), subprocess.Popen(["sleep", "600"]).pid
        print(*numbers, flush=True)
        time.sleep(600)
    return 0


def facts(modules: list[str]) -> dict[str, Any]:
    """What a process has from the one that has started it, and what the modules that it imports have set."""
    for name in modules:
        import_module(name)
    torch.set_num_threads(2)
    assert (torch.ones(600, 600) @ torch.ones(600, 600)).sum() == 600**3
    return {
        "arguments": sys.argv,
        "variables": {**os.environ},
        "places": [str(Path.cwd()), *(str(Path(f"/dev/fd/{number}").resolve()) for number in range(3))],
        "open files": sorted(path.name for path in Path("/dev/fd").iterdir()),
        "leads": (os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0)),
        "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "streams": [(one.encoding, one.errors, one.line_buffering, one.isatty()) for one in (sys.stdout, sys.stderr)],  # type: ignore[attr-defined]
        "python": [str(sys.flags), sys.path, *map(str, warnings.filters)],
        "threads": (threading.active_count(), len([*Path("/proc/self/task").iterdir()])),
        "device": (torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()),
        "draws": (random.random(), np.random.random(), torch.rand(()).item()),  # noqa: NPY002
        "memory": peak_memory(),
        "memory since exec": int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
