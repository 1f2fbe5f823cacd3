"""`python -m tests.architecture`: draws docs/images/rooms.svg from the list of rooms in `tests/test_imports.py`.

Each package is a band and each room a box, in the order of the list: a room imports only from rooms after it. The
numbers in a box are the steps of one run that pass through it, read from the numbered list of docs/architecture.md.
"""

import re
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

from tests.test_imports import PACKAGES, ROOMS, docstring

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
COLORS = {"transfer": "#dbeafe", "tasks": "#dcfce7", "backbones": "#fef3c7"}
COLUMNS = 4
WIDTH, HEIGHT, GAP = 260, 90, 12
"""Of a box, and between boxes, in pixels."""
BAND = 34
"""Height of a package's title, in pixels."""
FONT = "font-family='system-ui, sans-serif'"


def steps_by_room(page: str) -> dict[str, list[int]]:
    """Return the steps of the page's numbered list that name a file or folder of each room."""
    section = page.partition("## One run, step by step")[2]
    steps: dict[str, list[int]] = {}
    for number, text in re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^\S|\Z)", section, re.MULTILINE | re.DOTALL):
        for path in re.findall(r"`([a-z_/.]+/[a-z_.]*)`", text):
            room = path.rstrip("/") if path.endswith("/") else path.rpartition("/")[0]
            if room in ROOMS and int(number) not in steps.setdefault(room, []):
                steps[room].append(int(number))
    return steps


def picture(page: str) -> str:
    """Return the whole SVG."""
    steps = steps_by_room(page)
    parts: list[str] = []
    top = GAP
    for package in PACKAGES:
        rooms = [room for room in ROOMS if room.startswith(f"{package}/")]
        rows = -(-len(rooms) // COLUMNS)
        height = BAND + rows * (HEIGHT + GAP)
        parts += _band(package, top, height)
        for place, room in enumerate(rooms):
            left = 2 * GAP + place % COLUMNS * (WIDTH + GAP)
            parts += _box(room, steps.get(room, []), left, top + BAND + place // COLUMNS * (HEIGHT + GAP))
        top += height + GAP
    width = 3 * GAP + COLUMNS * (WIDTH + GAP)
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {top}' width='{width}' height='{top}'>"
    return "\n".join([head, f"<rect width='{width}' height='{top}' fill='white'/>", *parts, "</svg>\n"])


def _band(package: str, top: int, height: int) -> Iterator[str]:
    width = GAP + COLUMNS * (WIDTH + GAP)
    yield f"<rect x='{GAP}' y='{top}' width='{width}' height='{height}' rx='8' fill='{COLORS[package]}'/>"
    yield f"<text x='{2 * GAP}' y='{top + 23}' {FONT} font-size='17' font-weight='bold'>{package}/</text>"


def _box(room: str, steps: list[int], left: int, top: int) -> Iterator[str]:
    yield f"<rect x='{left}' y='{top}' width='{WIDTH}' height='{HEIGHT}' rx='5' fill='white' stroke='#64748b'/>"
    name = room.partition("/")[2]
    yield f"<text x='{left + 10}' y='{top + 20}' {FONT} font-size='14' font-weight='bold'>{name}</text>"
    said = " ".join(docstring(room).split()).partition(". ")[0].replace("`", "")
    for line, text in enumerate(textwrap.wrap(said, 38, max_lines=4, placeholder=" …")):
        yield f"<text x='{left + 10}' y='{top + 37 + 14 * line}' {FONT} font-size='11.5'>{escape(text)}</text>"
    for place, step in enumerate(reversed(steps)):
        x, y = left + WIDTH - 14 - 22 * place, top + 14
        yield f"<circle cx='{x}' cy='{y}' r='9' fill='#1d4ed8'/>"
        yield f"<text x='{x}' y='{y + 4}' {FONT} font-size='11' fill='white' text-anchor='middle'>{step}</text>"


if __name__ == "__main__":
    PICTURE.write_text(picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
