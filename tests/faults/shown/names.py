"""For kind `hostile`: names that somebody made to do harm, in every form in which runs are shown."""

import csv
import io
import json
import random
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.damaged.data import draw
from tests.faults.damaged.records import HANG_SECONDS, SLOW, show
from tests.faults.shown.forms import Shown
from tests.faults.trial import NotHeldError
from tests.processes import Command
from transfer.records.checksums import with_checksum
from transfer.records.record import Record
from transfer.records.store import RECORD

PRINTED = "CSV on the screen"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)
NAMES = (
    "<script>window.ran=1</script>",
    '"><img src=x onerror=ran()>',
    "=HYPERLINK(0)",
    "+cmd|' /C calc'!A0",
    "@SUM(1)",
    "-1+1",
    "\x1b]0;ran\x07\x1b[31m",
    "\u202egnp.exe",
    "a\u2066b\u2069",
    "{{7*7}}",
    "../../outside",
    "%2e%2e/outside",
    "a\r\nb",
    "\\input{ran}",
    "[a](javascript:ran())",
)
"""What a class, a data set or a backbone may be called."""
FORMS_OF_NAMES = (
    *("screen", "screen of each", "Markdown", "CSV", "CSV of each", "LaTeX", "page with pictures", "comparison"),
    *(PRINTED, f"{PRINTED} of each"),
    *("card", "leaderboard", "bundle", "table of a command", "verification", "Python", "layers"),
)


def named_record(rng: random.Random, run: Path, inside: Path) -> str:
    """A record with odd names of its backbone and data set, and in its details, in one form."""
    name, form = rng.choice(NAMES), rng.choice(FORMS_OF_NAMES)
    content = asdict(Record.read(run / RECORD))
    for place in (content, content["run_key_content"]):
        place["backbone"] = {**place["backbone"], "name": name}
    content["dataset"] = {**content["dataset"], "name": name, "counts": {"train": {name: 1}}}
    content["notes"] = [name]
    content["details"] = {**content["details"], name: {"classes": [name]}, "classes": [name]}
    copy = shutil.copytree(run, inside / "runs" / run.name)
    (copy / RECORD).write_bytes(with_checksum({**content, "smoke": False}))
    as_text(f"the name {name!r}", form, Shown(inside / "runs", copy, inside / "out", "transfer.run", ("knn",)))
    return f"odd names as {form}: shown as text"


def named_classes(rng: random.Random, inside: Path) -> str:
    """A run on an image folder, or on annotations as COCO writes them, whose classes have odd names."""
    names = [name for name in rng.sample(NAMES, 4) if "/" not in name] or ["=1+1"]
    names += [f"{names[0]}2"]
    coco = rng.random() < 0.2
    words, about = _coco(inside, names) if coco else _image_folder(rng, inside, names)
    (inside / "mine.yaml").write_text(json.dumps(about), encoding="utf-8")
    words += ["--dataset", str(inside / "mine.yaml"), "--backbone", "tiny", "--threads", "1", "--workers", "0"]
    places = ["--out", str(inside / "runs"), "--features", str(inside / "features")]
    command = Command("transfer.run", [*words, *places], inside / "log")
    what = f"classes named {names}"
    if command.wait() == 1 and coco and "control characters" in command.stderr and "Traceback" not in command.stderr:
        check_text(what, inside / "log", command.stderr)
        return "odd names of categories: refused in words"
    if command.poll() != 0:
        raise NotHeldError(f"{what}: exit status {command.poll()}: {command.stderr[-500:]}")
    printed = command.stdout + re.sub(r"[^\n]*\r", "", command.stderr)  # a bar of progress is drawn anew
    check_text(what, inside / "runs", printed)
    (path,) = (inside / "runs").glob(f"*/{RECORD}")
    for form in rng.sample(FORMS_OF_NAMES, 2):
        out = inside / form
        as_text(what, form, Shown(inside / "runs", path.parent, out, "transfer.run", tuple(words)))
    return f"odd names of {'categories' if coco else 'classes'}: shown as text"


def _image_folder(rng: random.Random, inside: Path, names: list[str]) -> tuple[list[str], dict[str, Any]]:
    for number, name in enumerate(names):
        for split in ("train", "val"):
            for image in range(2):
                draw(inside / "data" / split / name / f"{image}.png", 2 * number + image)
    fewshot = ["fewshot", "--shots", "1", "--draws", "2"]  # which keeps a CSV of the images that it drew
    words = rng.choice((["knn", "--k", "1", "--other-k", "2"], ["finetune", "--epochs", "1", "--batch", "4"], fewshot))
    return [*words, "--size", "32"], {"format": "image_folder", "root": str(inside / "data")}


def _coco(inside: Path, names: list[str]) -> tuple[list[str], dict[str, Any]]:
    for split in ("train2017", "val2017"):
        images, objects = [], []
        for number in range(2):
            draw(inside / "data" / split / f"{number}.jpg", number, (60, 80))
            images.append({"id": number, "file_name": f"{number}.jpg", "width": 80, "height": 60})
            for category in range(len(names)):
                left = 5.0 + 10 * category
                outline = [[left, 5, left + 20, 5, left + 20, 35, left, 35]]
                about = {"id": len(objects) + 1, "image_id": number, "category_id": category + 1, "area": 600.0}
                objects.append({**about, "iscrowd": 0, "bbox": [left, 5.0, 20.0, 30.0], "segmentation": outline})
        categories = [{"id": number + 1, "name": name} for number, name in enumerate(names)]
        content = {"images": images, "annotations": objects, "categories": categories}
        (inside / "data" / "annotations").mkdir(exist_ok=True)
        (inside / "data" / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return ["detect", "--epochs", "1", "--smoke"], {"format": "coco", "root": str(inside / "data")}


def as_text(what: str, form: str, shown: Shown) -> None:
    """Show runs in one form. Raises NotHeldError where a name is more than text in what is printed or written."""
    printed = show(what, form, shown, SLOW.get(form, HANG_SECONDS))
    check_text(f"{what} as {form}", shown.out, printed)
    if form.startswith(PRINTED) and (bad := formulas(printed)):
        raise NotHeldError(f"{what} as {form}: a formula in a cell: {bad[0]!r}")


def check_text(what: str, out: Path, printed: str) -> None:
    """Raise NotHeldError where a page runs or shows what a name says, or a spreadsheet or LaTeX would run it."""
    if re.search("[\x07\x1b\u202e\u2066\r]", printed):
        raise NotHeldError(f"{what}: raw on the screen: {printed[-300:]!r}")
    for path in (path for path in out.rglob("*") if path.is_file()) if out.is_dir() else ():
        text = path.read_text(encoding="utf-8", errors="replace")
        text = text.split("---\n", 2)[-1] if text.startswith("---\n") else text  # YAML above a card is no Markdown
        if path.suffix in (".html", ".md") and re.search(r"(?<!\\)<(script>window.ran|img src=x)", text):
            raise NotHeldError(f"{what}: unescaped in {path.name}")
        if path.suffix == ".tex" and re.search(r"^[^%\n]*\\input\{ran", text, re.MULTILINE):
            raise NotHeldError(f"{what}: a command in {path.name}")
        for name, table in _tables(path):
            if bad := formulas(table):
                raise NotHeldError(f"{what}: a formula in a cell of {name}: {bad[0]!r}")


def _tables(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the CSV files that a file is or, as an archive, holds."""
    if path.suffix == ".csv":
        yield path.name, path.read_bytes().decode()
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".csv"):
                    yield f"{name} in {path.name}", archive.read(name).decode()


def formulas(table: str) -> list[str]:
    """Return the cells of a CSV that a spreadsheet would run: they begin as formulas do, and are no plain numbers."""
    cells = [cell for row in csv.reader(io.StringIO(table, newline="")) for cell in row]
    return [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not NUMBER.fullmatch(cell)]
