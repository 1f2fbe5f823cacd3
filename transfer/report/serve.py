"""`python -m transfer.report RUNS --serve`: the page of a report on this machine, renewed while runs go on.

It listens on 127.0.0.1 alone, answers GET for the page and its stamp, and refuses any other Host header, so that no
page elsewhere on the network can read it through a name that points here (DNS rebinding).
"""

import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from backbones.errors import UserError, tell
from transfer.records.progress import last_step
from transfer.records.run_set import RunSet
from transfer.records.store import RECORD, store_in
from transfer.report.page.html import page
from transfer.report.page.live import live_sections, sweep_section
from transfer.report.page.section_types import Section
from transfer.sweep.definition.cell_states import is_running, read_states

HOST = "127.0.0.1"
Read = Callable[[], tuple[RunSet, list[Section]]]


class LivePage:
    """The page of some folders of runs, made again when they have changed.

    Args:
        folders: of runs or of sweeps.
        read: gives the finished runs and their sections, which take seconds where much is compared; it is called again
            when a record has come.
    """

    def __init__(self, folders: Sequence[Path], read: Read) -> None:
        self._folders, self._read, self._lock = folders, read, Lock()
        self._finished: tuple[str, RunSet, list[Section]] | None = None
        self._page = ("", "")

    def stamp(self) -> str:
        """Return a text that changes when a record comes, a run goes on, or one ends otherwise."""
        return hashlib.sha256(f"{self._records()}\n{self._others()}".encode()).hexdigest()[:16]

    def content(self) -> str:
        """Return the page as HTML."""
        with self._lock:
            stamp = self.stamp()
            if self._page[0] != stamp:
                self._page = (stamp, self._make(stamp))
            return self._page[1]

    def _make(self, stamp: str) -> str:
        records = self._records()
        if self._finished is None or self._finished[0] != records:
            self._finished = (records, *self._read())
        _, runs, parts = self._finished
        live = [part for folder in self._folders if (part := sweep_section(folder))]
        live += live_sections([run for folder in self._folders for run in store_in(folder).unfinished()])
        first, rest = [part for part in parts if part.lead], [part for part in parts if not part.lead]
        return page("Transfer results", [*first, *live, *rest], runs, stamp=stamp)

    def _records(self) -> str:
        """Return the finished runs with the times of their records."""
        found = []
        for folder in self._folders:
            root = store_in(folder).root
            for path in sorted(root.glob(f"*/{RECORD}")):
                with suppress(OSError):  # removed meanwhile
                    found.append(f"{path} {path.stat().st_mtime_ns}")
        return "\n".join(found)

    def _others(self) -> str:
        """Return the runs that are not finished, with their states and last steps."""
        lines = []
        for folder in self._folders:
            for run in store_in(folder).unfinished():
                step = last_step(run.folder)
                lines.append(f"{run.folder} {run.state} {step['step'] if step else ''}")
            lines += [f"{cell.name} {cell.status}" for cell in read_states(folder)] + [str(is_running(folder))]
        return "\n".join(lines)


class _Server(ThreadingHTTPServer):
    """Answers from one page."""

    daemon_threads = True

    def __init__(self, port: int, live: LivePage) -> None:
        self.live = live
        super().__init__((HOST, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30
    """Seconds after which a client that sends or takes nothing is let go, and its thread and socket with it."""

    def do_GET(self) -> None:
        """Answer with the page or its stamp."""
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.FORBIDDEN, "another host")
            return
        answers = {"/": (self.server.live.content, "text/html"), "/stamp": (self.server.live.stamp, "text/plain")}
        if self.path not in answers:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        make, kind = answers[self.path]
        try:
            content = make().encode()
        except UserError as error:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=str(error))
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: a page asks every two seconds."""


def serve(folders: Sequence[Path], read: Read, port: int) -> int:
    """Serve the page until Ctrl-C.

    Args:
        folders: of runs or of sweeps.
        read: gives the finished runs and their sections.
        port: to listen on; 0 takes a free one.

    Raises:
        UserError: a folder does not exist, or the port is taken.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder of runs")
    try:
        server = _Server(port, LivePage(folders, read))
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port}: cannot be listened on ({error}); --port 0 takes a free one") from None
    with server:
        tell(f"http://{HOST}:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            tell("", file=sys.stderr)
    return 0
