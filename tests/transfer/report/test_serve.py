"""`--serve`: the page over HTTP, renewed while a real run goes on; who may ask, and for what."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backbones.errors import UserError
from tests.processes import ENVIRONMENT, Command, wait_for
from tests.transfer.records.recorded import made
from tests.transfer.report.page.browser import Browser, find_browser
from tests.transfer.report.test_command import store
from transfer.records.progress import last_step
from transfer.records.store import Store
from transfer.report.__main__ import ReportOptions, _served, main
from transfer.report.page.live import live_sections
from transfer.report.serve import HOST, LivePage, _Handler, _Server, serve

RUN = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--epochs", "200"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One finished run."""
    return Path(store(tmp_path / "runs", made()))


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    """Where the folder is served."""
    options = ReportOptions(runs=(folder,), smoke=True, dirty=True, serve=True)
    server = _Server(0, LivePage([folder], lambda: _served(options)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield int(server.server_address[1])
    server.shutdown()
    server.server_close()


def ask(port: int, path: str = "/", method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_page_and_its_stamp(port: int, folder: Path) -> None:
    status, text = ask(port)
    assert status == 200
    assert "One arm, tiny" in text
    assert "connect-src &#x27;self&#x27;" in text or "connect-src 'self'" in text
    found = re.search(r'<html lang="en" data-stamp="([0-9a-f]{16})">', text)
    assert found
    assert ask(port, "/stamp") == (200, found[1])
    store_more(folder)
    assert ask(port, "/stamp")[1] != found[1]
    assert "2 runs" in ask(port)[1]


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: "])
def test_a_client_that_says_no_more_is_let_go(begun: bytes, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.2)
    with socket.create_connection((HOST, port), timeout=20) as client:
        client.sendall(begun)
        assert client.recv(1) == b"", "the server has closed it"


def store_more(folder: Path) -> None:
    other = made(stem="conv", seed=1)
    (folder / other.run_id).mkdir()
    Store(folder).write(other, "lr: 0.05\n", {})


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"host": "example.org"}, 403),
        ({"host": "127.0.0.1:1"}, 403),
        ({"path": "/../../etc/passwd"}, 404),
        ({"path": "/record.json"}, 404),
        ({"method": "POST"}, 501),
        ({"method": "DELETE"}, 501),
    ],
)
def test_nobody_else_and_nothing_else(port: int, given: dict[str, str], status: int) -> None:
    found, text = ask(port, **given)
    assert found == status
    assert "tiny" not in text


def test_another_host_by_its_name_here(port: int) -> None:
    assert ask(port, host=f"localhost:{port}")[0] == 200


def test_only_this_machine_can_connect(port: int) -> None:
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection("127.0.0.2", port, timeout=5).connect()


@pytest.mark.nightly
def test_a_run_appears_with_its_loss_and_then_with_its_end(port: int, folder: Path, tmp_path: Path) -> None:
    """A real training, seen under way, stopped by a signal, and seen interrupted."""
    process = Command("transfer.run", [*RUN, "--out", str(folder)], tmp_path / "log")
    wait_for(lambda: any(map(last_step, folder.iterdir())))
    first = ask(port)[1]
    assert "1 under way." in first
    assert re.search(r"<td[^>]*>\d+\.\d of 200</td>", first)
    wait_for(lambda: "Under way: loss" in ask(port)[1])
    stamp = ask(port, "/stamp")[1]
    wait_for(lambda: ask(port, "/stamp")[1] != stamp)
    process.kill(signal.SIGTERM)
    assert process.poll() == 143, process.stderr
    assert "1 interrupted." in ask(port)[1]
    assert "the same command goes on from its last saved state" in ask(port)[1]


def test_a_failed_run_shows_the_first_line_of_its_reason(tmp_path: Path) -> None:
    (tmp_path / "runs" / "reid-x").mkdir(parents=True)
    (tmp_path / "runs" / "reid-x" / "error.txt").write_text("Traceback\nRuntimeError: the disk is full\n")
    (section,) = live_sections(Store(tmp_path / "runs").unfinished())

    assert section.note == "1 failed."
    assert section.table is not None
    assert section.table.rows[0]["reason"] == "RuntimeError: the disk is full"
    assert not list(live_sections([]))


def test_a_history_that_is_being_written_gives_its_last_whole_step(tmp_path: Path) -> None:
    assert last_step(tmp_path) is None
    lines = ['{"step": 1, "epoch": 0.5, "loss": 3.0}', '{"step": 1, "epoch": 1, "top1": 0.5}', '{"step": 2, "epo']
    (tmp_path / "history.jsonl").write_text("\n".join(lines))
    assert last_step(tmp_path) == {"step": 1, "epoch": 0.5, "loss": 3.0}


def test_the_page_loads_itself_again_and_keeps_what_was_unfolded(port: int, folder: Path, tmp_path: Path) -> None:
    program = find_browser()
    if program is None:
        pytest.skip("no chromium on PATH (apt-get install chromium)")
    browser = Browser(program, tmp_path / "profile")
    try:
        browser.call("Page.navigate", url=f"http://{HOST}:{port}/")
        browser.until("document.querySelector('header p')?.textContent.startsWith('1 run')")
        browser.js("document.querySelector('main details').open = true")
        store_more(folder)
        browser.until("document.querySelector('header p')?.textContent.startsWith('2 runs')")
        browser.until("document.querySelector('main details').open")
    finally:
        browser.close()


def test_the_command_says_where_and_ends_with_ctrl_c(folder: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "transfer.report", str(folder), "--serve", "--port", "0", "--dirty"]
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.match(r"http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)", process.stdout.readline())
        assert found
        assert ask(int(found[1]))[0] == 200
        os.kill(process.pid, signal.SIGINT)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_bad_ports_and_folders(folder: Path, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (port, 70_000):
        with pytest.raises(UserError, match=rf"--port {number}: cannot be listened on"):
            serve([folder], lambda: pytest.fail("read"), number)
    assert main([str(tmp_path / "none"), "--serve"]) == 1
    assert "there is no such folder of runs" in capsys.readouterr().err
    assert main([str(folder), "--port", "1"]) == 2
    assert "--port: has an effect only with --serve" in capsys.readouterr().err
    assert main([str(folder), "--serve", "--output", "x.html"]) == 2
    assert "--output: has no effect with --serve" in capsys.readouterr().err
