"""Two processes that stay, and run each command they are given as the two ranks of a job.

Starting a process costs seconds, most of a small command's time; so one pair runs them all. `python -m
tests.interactions.ranks RANK` is one of them: a line of JSON asks for a command, a line of JSON answers.
"""

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.interactions.commands import Command, Ran, called

LIMIT = 120.0
"""Seconds after which ranks that wait for each other are given up."""
ANSWER = "answer: "


class RankPair:
    """Runs commands by two ranks; a context manager, whose end ends the processes."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "RankPair":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, command: Command, out: Path) -> Ran:
        """The command by both; the status and the output are the first rank's, unless the second one's is worse."""
        if not self._processes:
            self._start()
        start = time.monotonic()
        request = {"program": command.program, "words": command.words, "out": str(out), "port": _free_port()}
        for process in self._processes:
            assert process.stdin is not None
            print(json.dumps(request), file=process.stdin, flush=True)
        answers = self._answers()
        seconds = time.monotonic() - start
        if None in answers:
            self.stop()
            return Ran(command, out, None, "", "the ranks did not return", seconds)
        first, second = answers
        worse = second if second["status"] not in (0, 3) else first
        stderr = first["stderr"] if first["stderr"].strip() else worse["stderr"]
        return Ran(command, out, max(first["status"], second["status"]), first["stdout"], stderr, seconds)

    def stop(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.communicate()
        self._processes = []

    def _start(self) -> None:
        for rank in (0, 1):
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": 1}
            environment = os.environ | {name: str(value) for name, value in names.items()}
            words = [sys.executable, "-m", "tests.interactions.ranks"]
            pipe: Any = subprocess.PIPE
            process = subprocess.Popen(
                words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, text=True, bufsize=1
            )
            self._processes.append(process)

    def _answers(self) -> list[Any]:
        """What each rank says; None of one that died or says nothing in time."""
        found: dict[int, Any] = {}
        end = time.monotonic() + LIMIT
        with selectors.DefaultSelector() as ready:
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None
                ready.register(process.stdout, selectors.EVENT_READ, rank)
            while len(found) < 2 and time.monotonic() < end:
                for key, _ in ready.select(1.0):
                    line = self._line(key.data)
                    if line is None or line.startswith(ANSWER):
                        found[key.data] = json.loads(line.removeprefix(ANSWER)) if line else None
                        ready.unregister(key.fileobj)
        return [found.get(rank) for rank in (0, 1)]

    def _line(self, rank: int) -> str | None:
        stream = self._processes[rank].stdout
        assert stream is not None
        return stream.readline() or None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve() -> None:
    """Runs what stdin asks for, as the rank that the environment names."""
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(asked["port"])}
        command = Command(asked["program"], tuple(asked["words"]), 2)
        status, stdout, stderr, _, _ = called(command, Path(asked["out"]))
        answer = {"status": status, "stdout": stdout, "stderr": stderr}
        print(ANSWER + json.dumps(answer), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    serve()
