"""Runs a script in a page that a headless Chromium shows."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

POLICY = 'http-equiv="Content-Security-Policy"'
WORDS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--dump-dom")
FRAME = """<!doctype html><body style="color-scheme: {scheme}"><iframe src="page.html"
style="width: {width}px; height: 900px; border: 0"></iframe><script>
onmessage = (event) => {{ document.body.textContent = event.data; }};</script>"""


def in_browser(folder: Path, page: str, script: str, *, width: int = 1280, scheme: str = "light") -> Any:
    """What a script returns that runs in a page, without its security policy, in a frame of a width."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on PATH (apt-get install chromium)")
    tell = "const tell = (found) => parent.postMessage(JSON.stringify(found), '*');"
    told = f"{{ {tell} (async () => {{ {script} }})().then(tell, (error) => tell(String(error))); }}"
    (folder / "page.html").write_text(f"{page.replace(POLICY, 'name=policy')}<script>{told}</script>", encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(width=width, scheme=scheme))
    words = [program, *WORDS, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=60000"]
    shown = subprocess.run([*words, (folder / "frame.html").as_uri()], capture_output=True, text=True, timeout=120)
    answered = re.search("<body[^>]*>(.*?)</body>", shown.stdout, re.DOTALL)
    assert answered, shown.stderr
    return json.loads(html.unescape(answered[1]))
