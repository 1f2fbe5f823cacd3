"""The Markdown files that people read, and the commands in them."""

import re
import shlex
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES)
INCLUDED = re.compile(r"^--8<--\n(configs/.*)\n--8<--$", re.MULTILINE)
# Words in capitals stand for something of the reader's, in the text; such a line is no command yet.
PLACEHOLDER = re.compile(r"^(NAME|TASK|RECIPE|FILE|SWEEP|TIER|P|T)$")


def read(name: str) -> str:
    """Return the text of a document."""
    return (ROOT / name).read_text(encoding="utf-8")


def prose(name: str) -> str:
    """Return a document without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", read(name), flags=re.MULTILINE | re.DOTALL)


def blocks(name: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, without their indentation, and with the files that they include."""
    text = INCLUDED.sub(lambda found: read(found[1]).rstrip("\n"), read(name))
    fenced = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in fenced]


def files_in(name: str) -> dict[str, str]:
    """Return the files that a document shows, whose blocks begin with `# NAME: what it is`, by their names."""
    shown = [block for language in ("python", "yaml") for block in blocks(name, language)]
    return {match[1]: block for block in shown if (match := re.match(r"# (\w+\.(?:py|yaml)): ", block))}


def commands(name: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the commands of this suite in a document, in blocks and within the text: (command, its arguments)."""
    lines = [line for block in blocks(name, "sh") for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]*)`", prose(name))
    parsed = []
    for line in lines:
        match = re.search(r"-m transfer\.(run|pretrain|sweep|report|verify|predict|features|doctor|new)( .*)?$", line)
        if match is None:
            continue
        arguments = tuple(shlex.split((match[2] or "").partition(" > ")[0], comments=True))
        if arguments and not any(PLACEHOLDER.match(word) for word in arguments):
            parsed.append((match[1], arguments))
    return parsed


def chromium() -> list[str] | None:
    """The command of a browser without a window, None where none is on PATH."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    return None if program is None else [program, *options]
