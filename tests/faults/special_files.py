"""For kind `hostile`: what is no file, under the name of an image among images, or of a file of a run among runs."""

import os
import random
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.faults.damaged.data import draw
from tests.faults.trial import NotHeldError
from tests.processes import Command
from tests.runs import record
from tests.transfer.records.recorded import made
from transfer.records.store import Store

NAME = "odd.png"
NAMED_ITSELF = "a link to itself"
GOOD = 12
"""The images that are some."""


def _pipe(target: Path) -> None:
    os.mkfifo(target)


def _socket(target: Path) -> None:
    """A socket's name is short, so that it is bound by one relative to its folder."""
    descriptor = os.open(target.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{descriptor}/{target.name}")
    os.close(descriptor)


def _text(target: Path) -> None:
    target.write_text("kind,tried,held\n", encoding="utf-8")


def _image_elsewhere(target: Path) -> None:
    """Folders of links to images are common."""
    draw(target.parents[3] / "elsewhere" / "good.png", 7)
    target.symlink_to(target.parents[3] / "elsewhere" / "good.png")


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": _pipe,
    "a device": lambda target: target.symlink_to("/dev/zero"),
    "a link to the input": lambda target: target.symlink_to("/dev/stdin"),
    "a socket": _socket,
    "a folder": lambda target: target.mkdir(),
    "a link to nothing": lambda target: target.symlink_to("nowhere.png"),
    NAMED_ITSELF: lambda target: target.symlink_to(target.name),
    "a link out of the folder": lambda target: target.symlink_to("/etc/passwd"),
    "a link to an image elsewhere": _image_elsewhere,
    "a text": _text,
    "an empty file": lambda target: target.touch(),
}
"""What it is -> what makes it."""
READ_BESIDE = ("a folder", "a link to an image elsewhere")
"""What is no file at all, so that readers may pass over it, and what is an image."""


def special_file(rng: random.Random, inside: Path) -> str:
    """A run on images of which one is none: it is refused by its name, and never opened where that would wait."""
    odd = rng.choice([*KINDS])
    for split in ("train", "val"):
        for name in ("a", "b"):
            for number in range(3):
                draw(inside / "data" / split / name / f"{number}.png", number)
    KINDS[odd](inside / "data" / rng.choice(("train", "val")) / "a" / NAME)
    (inside / "mine.yaml").write_text(f"format: image_folder\nroot: {inside / 'data'}\n", encoding="utf-8")
    words = ["knn", "--dataset", str(inside / "mine.yaml"), "--k", "1", "--other-k", "2", "--backbone", "tiny"]
    places = ["--out", str(inside / "runs"), "--features", str(inside / "features")]
    command = Command("transfer.run", [*words, "--threads", "1", "--workers", "0", *places], inside / "log")
    status = command.wait(60)
    said = command.stderr
    if status == 0 and odd in READ_BESIDE:
        counts = record(inside / "runs").dataset["counts"]
        read = counts["train"]["images"] + counts["val"]["images"] - GOOD
        if read != (odd != "a folder"):
            raise NotHeldError(f"{odd} among images: {read} more images than the good ones")
        return f"{odd} among images: {'read' if read else 'passed over'}"
    if status not in (1, 2) or "Traceback" in said or "error: " not in said:
        raise NotHeldError(f"{odd} among images: exit status {status}: {said[-500:]}")
    if NAME not in said:
        raise NotHeldError(f"{odd} among images: not named: {said[-500:]}")
    return f"{odd} among images: refused by name"


OF_A_RUN = ("record.json", "outcomes.npz", "history.jsonl", "options.yaml", "lock", "state.pt")
NO_FILES = (
    "a pipe",
    "a device",
    "a link to the input",
    "a socket",
    "a folder",
    "a link to nothing",
    "a link to itself",
)


def special_file_of_a_run(rng: random.Random, run: Path, inside: Path) -> str:
    """What reads folders of runs finds a run of which one file is none: it ends, and shows the run beside it."""
    odd, name, runs = rng.choice(NO_FILES), rng.choice(OF_A_RUN), inside / "runs"
    place = shutil.copytree(run, runs / run.name) / name
    place.unlink(missing_ok=True)
    KINDS[odd](place)
    good = made(stem="conv", seed=1)
    (runs / good.run_id).mkdir()
    Store(runs).write(good, "lr: 0.05\n", {})
    page, bundle = inside / "page.html", inside / "bundle.zip"
    words = {
        "report": ["--smoke", "--dirty", "--format", "csv"],
        "page": ["--smoke", "--dirty", "--output", str(page)],
        "bundle": ["--smoke", "--dirty", "--bundle", str(bundle)],
        "verify": [],
        "doctor": ["store"],
    }
    kind = rng.choice([*words])
    program = {"verify": "transfer.verify.__main__", "doctor": "transfer.doctor.__main__"}.get(
        kind, "transfer.report.__main__"
    )
    argv = [*words[kind], str(runs)] if kind == "doctor" else [str(runs), *words[kind]]
    command = Command(program, argv, inside / "log")
    status, what = command.wait(30), f"{odd} as {name}, {kind}"
    if status not in (0, 1) or "Traceback" in command.stderr:
        raise NotHeldError(f"{what}: exit status {status}: {command.stderr[-500:]}")
    if kind == "bundle" and status == 1 and run.name in command.stderr and not bundle.exists():
        return f"{odd} among the files of a run: no bundle of it, by name"  # a part of what was asked for is no answer
    shown = command.stdout
    if kind == "page":
        shown = page.read_text(encoding="utf-8")
    elif kind == "bundle":
        shown = "\n".join(zipfile.ZipFile(bundle).namelist())
    if kind != "doctor" and good.run_id not in shown and good.run_id.rpartition("-")[2] not in shown:
        raise NotHeldError(f"{what}: the run beside it is not shown: {command.stderr[-500:]}")
    return f"{odd} among the files of a run: the run beside it is shown"
