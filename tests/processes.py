"""Commands in processes of their own, for tests of what needs processes: kill -9, signals, locks, ranks.

Importing torch and timm takes a process some five seconds. These are forked from a server that has imported them once,
and are otherwise like any other: a session of their own, signals, an exit status, output in files. Where the command
line or torchrun itself is what a test is about, it starts them by `subprocess`.
"""

import importlib.util
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from transfer.core.process import INTERRUPTED, Ranks
from transfer.engine import dist
from transfer.launch import fork_server

ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
"""Of a process that `subprocess` starts: no rank of a job that runs the tests."""
PRELOADED = [*fork_server.JOB_MODULES, "transfer.run"]
assert all(map(importlib.util.find_spec, PRELOADED)), "the server would leave out what it cannot import, and be slow"
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(PRELOADED)


class Command:
    """`python -m PROGRAM ARGUMENTS` in a process of its own.

    Args:
        program: the module whose `main(argv)` runs, such as "transfer.run". argv: its arguments.
        log: a path without suffix for what it prints, in files `.out` and `.err`.
        environment: variables to add to those of the tests. prepare: a function to call first, of a module.
    """

    def __init__(
        self, program: str, argv: Sequence[str], log: Path, environment: Any = None, prepare: Any = None
    ) -> None:
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        # the server has the variables of the test that started it
        given = (program, [*argv], str(self._out), str(self._err), {**os.environ, **(environment or {})}, prepare)
        self._process: Any = SERVER.Process(target=_run, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        """The process."""
        return int(self._process.pid)

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._process.exitcode  # type: ignore[no-any-return]

    def send(self, kind: signal.Signals, *, alone: bool = False) -> bool:
        """Send a signal to the process and, unless alone, all that it started; return False when it has ended."""
        try:
            wait_for(lambda: os.getpgid(self.pid) == self.pid)  # which it is once it has begun
            (os.kill if alone else os.killpg)(self.pid, kind)
        except ProcessLookupError:
            return False
        return True

    def kill(self, kind: signal.Signals) -> None:
        """Send a signal to the process and all that it started, and wait until it is over."""
        self.send(kind)
        self.wait()

    def wait(self, seconds: float = 120) -> int:
        """Wait for the end and return the exit status, which is -N after signal N."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"still running after {seconds} seconds: {self.stderr}"
        return self._process.exitcode  # type: ignore[no-any-return]

    @property
    def stdout(self) -> str:
        """What was printed so far."""
        return self._out.read_text(encoding="utf-8") if self._out.exists() else ""

    @property
    def stderr(self) -> str:
        """What was printed to stderr so far."""
        return self._err.read_text(encoding="utf-8") if self._err.exists() else ""


def _run(program: str, argv: list[str], out: str, err: str, environment: dict[str, str], prepare: Any) -> None:
    os.setsid()
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    if prepare is not None:
        prepare()
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # as a command does while its modules load
    command = importlib.import_module(program)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = command.main(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status)


def in_a_terminal() -> None:
    """Let SIGHUP end this process, as where a terminal has started it; the tests may run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def run_by_ranks(program: str, argv: Sequence[str], log: Path, count: int = 2, prepare: Any = None) -> str:
    """Run a command by several ranks, with the variables that torchrun sets, and return what the first one printed."""
    ranks = start_ranks(program, argv, log, count, prepare)
    statuses = [rank.wait() for rank in ranks]
    assert statuses == [0] * count, "\n".join(rank.stderr for rank in ranks)
    return ranks[0].stdout


def start_ranks(program: str, argv: Sequence[str], log: Path, count: int = 2, prepare: Any = None) -> list[Command]:
    """Start a command by several ranks, with the variables that torchrun sets."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    places = [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    logs = [log.with_name(f"{log.name}_rank{rank}") for rank in range(count)]
    return [Command(program, argv, *where, prepare) for where in zip(logs, places)]


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a condition holds; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def start_rank(rank: int, port: int, count: int = 2, token_ranks: int = 1) -> Ranks:
    """Make this process, which `spawn_ranks` has started, a rank on the CPU with one thread; `dist.stop()` ends it."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(count)}
    torch.set_num_threads(1)
    ranks = Ranks(rank, count, rank, count, token_ranks=token_ranks)
    dist.start(ranks, torch.device("cpu"))
    return ranks


def spawn_ranks(work: Callable[..., object], *arguments: object, count: int = 2) -> None:
    """Call `work(rank, port, *arguments)`, a function of a module, in so many processes, and wait for all."""
    port = free_port()
    torch.multiprocessing.start_processes(work, (port, *arguments), nprocs=count, start_method="forkserver")
