"""The process that the jobs of a sweep are forked from: it has imported what each of them would import for seconds.

It computes nothing, starts no thread, asks for no device and imports no file of the user's: a job settles its threads
and its device itself, as where a shell has started it. The server ends with the sweep, also where that is killed.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, BinaryIO

import numpy as np
import torch

from transfer.core import process
from transfer.core.files import ROOT
from transfer.core.process import is_alive
from transfer.evaluation.environment import source_state
from transfer.launch import python_command

JOB_MODULES = (
    "transfer.evaluation.evaluator",
    "transfer.report.tables.text",
    "tasks.reid.training",
    "backbones.pretrain.dino.training",
)
"""Import nearly all that any job needs."""
ANSWER_SECONDS = 1.0  # in which a server answers that runs and has imported its modules


def preloaded_for(arguments: tuple[str, ...], gpus: bool) -> tuple[str, ...]:
    """Return the modules that a job's server imports: those of all, and its task's `preloaded`, if there is one.

    It may ask for GPUs, as mmdetection does, after which no fork could use one.
    """
    if gpus:
        return JOB_MODULES
    task = arguments[1] if arguments[1:] else ""
    has_own = (ROOT / "tasks" / task / "preloaded.py").is_file()
    return (*JOB_MODULES, f"tasks.{task}.preloaded") if has_own else JOB_MODULES


def in_own_session(command: list[str], log: BinaryIO, added: dict[str, str], files: Sequence[int] = ()) -> Popen[bytes]:
    """Start a command that prints to a log, with variables and open files to add, and out of reach of the terminal."""
    environment = os.environ | added
    return Popen(
        command, stdin=DEVNULL, stdout=log, stderr=log, env=environment, pass_fds=files, start_new_session=True
    )


class ForkServer:
    """A running server, as the sweep sees it.

    Args:
        modules: that it imports.
        log: what it prints is appended to this file.
    """

    def __init__(self, modules: tuple[str, ...], log: BinaryIO) -> None:
        self._connection, other = Pipe()
        with other:
            command = [sys.executable, "-m", __name__, str(other.fileno()), *modules]
            self._process = in_own_session(command, log, {}, [other.fileno()])

    @property
    def ended(self) -> bool:
        """Whether the server was killed."""
        return self._process.poll() is not None

    def start(self, arguments: tuple[str, ...], log: Path, environment: dict[str, str]) -> "ForkedJob":
        """Fork a job, as soon as the server has imported its modules.

        Args:
            arguments: a module and its arguments, as of `python -m`.
            log: what it prints is appended to this file.
            environment: the variables that it has besides the server's.

        Raises:
            OSError: the system has no room for another process.
        """
        answer = self.ask(arguments, log, environment)
        if isinstance(answer, OSError):
            raise answer
        return ForkedJob(self, self._process.pid if self.ended else answer)

    def ask(self, *request: Any) -> Any:
        """Return the server's answer, or its exit status if it was killed; one that was stopped is continued."""
        try:
            self._connection.send(request)
            while not self._connection.poll(ANSWER_SECONDS):
                self._process.send_signal(signal.SIGCONT)
            return self._connection.recv()
        except (EOFError, ConnectionError):
            return self._process.wait()

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()


class ForkedJob:
    """A job, the first process of a session. Without its server, its status is unknown: it counts as killed when it has
    ended, and what it had finished is found again.
    """

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        if self._status is None:
            status = self._server.ask(self.pid)
            self._status = None if self._server.ended and is_alive(self.pid) else status
        return self._status

    def terminate(self) -> None:
        """Send SIGTERM to it, but not to those that it has started."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def main() -> int:
    """Fork jobs until the sweep has ended; in a fork, run its job and return the exit status."""
    connection = Connection(int(sys.argv[1]))
    for module in sys.argv[2:]:
        with suppress(Exception):  # the job that needs it says why it cannot be imported
            import_module(module)
    source_state()  # of the code that has been imported, also if its files change during the sweep
    gc.collect()
    gc.freeze()  # a collection would write to what all jobs share
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return 0
        if len(request) == 1:
            connection.send(_status(*request))
            continue
        process.files_at_fork = process.file_pages()
        try:
            pid: int | OSError = os.fork()
        except OSError as error:
            pid = error
        if pid == 0:
            connection.close()
            return _run(*request)
        connection.send(pid)


def _status(pid: int) -> int | None:
    """Return the exit status of a job, negative for a signal; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _run(arguments: tuple[str, ...], log: Path, environment: dict[str, str]) -> int:
    """Run a job in this process, a fork, as `python -m ARGUMENTS` does, and return its exit status."""
    os.setsid()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    if environment.get("CUDA_VISIBLE_DEVICES") and torch.cuda._is_in_bad_fork():  # a module has asked for GPUs
        os.execve(sys.executable, python_command(arguments, 1), os.environ)
    np.random.seed()  # noqa: NPY002  # `random` does so itself
    torch.default_generator.seed()
    command = import_module(arguments[0])
    sys.argv[:] = [str(command.__file__), *arguments[1:]]
    return int(command.main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
