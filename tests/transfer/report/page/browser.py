"""Drives a headless Chromium by the DevTools protocol over a pipe (https://chromedevtools.github.io/devtools-protocol)."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WORDS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--remote-debugging-pipe", "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-dev-shm-usage"),
)
PATIENCE = 60.0
"""Seconds for any one answer."""


def find_browser() -> str | None:
    """The program, if there is one on PATH."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page. `events` collects what it reports besides answers."""

    def __init__(self, program: str, profile: Path):
        ours, theirs = zip(os.pipe(), os.pipe())  # (read end of commands, of answers), (write ends)
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (ours[0], theirs[1])]
        for end in (ours[0], theirs[1]):
            os.close(end)
        self.answers, self.commands = ours[1], theirs[0]

        def put() -> None:  # where the protocol expects them
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        words = [program, *WORDS, f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, close_fds=False, preexec_fn=put, **quiet)
        for end in ends:
            os.close(end)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for room in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{room}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command; returns its result. Raises RuntimeError when the browser refuses it."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        os.write(
            self.commands, json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0"
        )
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(until - time.monotonic(), 0))
            part = os.read(self.answers, 1 << 16) if ready else b""
            if not part:
                raise RuntimeError("the browser does not answer")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def seen(self, name: str) -> list[dict[str, Any]]:
        """What the events of a kind say."""
        return [event["params"] for event in self.events if event.get("method") == name]

    def open(self, path: Path) -> None:
        """Loads a file and waits until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not self.seen("Page.loadEventFired"):
            self._note(self._next())

    def js(self, expression: str) -> Any:
        """The value of an expression in the page. Raises RuntimeError for what the page throws."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Waits for an expression to become true: what follows a click may come in a later task."""
        end = time.monotonic() + PATIENCE
        while not self.js(expression):
            if time.monotonic() > end:
                raise RuntimeError(f"{expression}: did not become true")

    def click(self, selector: str) -> None:
        """A real click in the middle of an element, scrolled into view."""
        x, y = self.js(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)});"
            " it.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});"
            " const box = it.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, words: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=words)

    def key(self, name: str) -> None:
        """One key, pressed and let go."""
        for kind in ("keyDown", "keyUp"):
            code = {"Enter": 13, "Escape": 27, "Tab": 9}[name]
            extra = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **extra)

    def close(self) -> None:
        """Ends the browser, by force if it must be."""
        try:
            self.session = None
            self.call("Browser.close")
        except (RuntimeError, OSError):
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.answers)
        os.close(self.commands)
