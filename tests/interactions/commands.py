"""From a row of choices to the words of a command, and the command run in this process."""

import contextlib
import io
import shlex
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from tests.interactions.covering import Row
from tests.interactions.options import OF_BACKBONE, PARTS, USUAL, WORKS
from tests.interactions.places import Places
from tests.support import with_flags
from transfer.records.record import Record
from transfer.records.store import RECORD

PLAIN = ("--smoke", "--threads", "1", "--workers", "0")
BACKBONES = {
    "vit": "tiny", "volo": "volo_tiny", "timm_vit": "test_vit", "convnext": "test_convnext", "resnet": "test_resnet",
}  # fmt: skip
OPTIMISERS = {
    "adamw": "--optimizer adamw --lr 1e-3",
    "sgd": "--optimizer sgd --lr 1e-2",
    "sam": "--optimizer adamw --lr 1e-3 --sam sam",
    "asam": "--optimizer sgd --lr 1e-2 --sam asam --sam-rho 0.5",
}


@dataclass(frozen=True)
class Command:
    """`python -m transfer.PROGRAM WORDS`, by one process or by two ranks."""

    program: str
    words: tuple[str, ...]
    ranks: int = 1

    def line(self, out: Path | None = None) -> str:
        """What repeats the command in a shell."""
        start = "torchrun --nproc_per_node 2" if self.ranks == 2 else "python"
        return f"{start} -m transfer.{self.program} {shlex.join([*self.words, *_places(self.program, out)])}"

    def with_words(self, *words: str) -> "Command":
        """The same with more words, in place of equal flags that it has."""
        return Command(self.program, tuple(with_flags(self.words, words)), self.ranks)


@dataclass
class Ran:
    """What a command came to."""

    command: Command
    out: Path
    status: int | None
    """None: it did not return."""
    stdout: str
    stderr: str
    seconds: float = 0.0
    warned: list[str] = field(default_factory=list)
    """Warnings of Python's that reached the user."""

    @property
    def runs(self) -> list[Path]:
        """Folders of the runs with a record."""
        return sorted(path.parent for path in self.out.glob(f"runs/*/{RECORD}"))

    @property
    def record(self) -> Record:
        """The only record."""
        (folder,) = self.runs
        return Record.read(folder / RECORD)

    @property
    def line(self) -> str:
        """What repeats it."""
        return self.command.line(self.out)


def command_of(row: Row, places: Places) -> Command:
    """The command that a row of choices stands for."""
    work = WORKS[row["work"]]
    words = [row["work"], *PLAIN, *work.words.split(), *_model(row, places), *_data(row, places)]
    if work.trains or row["precision"] != USUAL["precision"]:
        words += ["--precision", row["precision"]]
    if row["eval_precision"] != USUAL["eval_precision"]:
        words += ["--eval-precision", row["eval_precision"]]
    if work.trains or row["optimiser"] != USUAL["optimiser"]:
        words += OPTIMISERS[row["optimiser"]].split()
    if row["accumulate"] != USUAL["accumulate"]:
        words += ["--grad-accum-steps", row["accumulate"]]
    if row["part"] == "drop_path" and row["work"] == "dino":
        words += ["--drop-path", "0.2"]
    else:
        words += PARTS[row["part"]].split()
    return Command(work.program, tuple(words), int(row["ranks"]))


def parts_of(row: Row, places: Places) -> dict[str, str]:
    """The parts of the backbone that are not the usual ones, as options by name."""
    kinds = {"stem": "Stem", "attention": "attend", "ffn": "Ffn"}
    chosen = {name: row[name] for name in kinds if row[name] != USUAL[name]}
    return {name: places.user(kinds[name]) if value == "user" else value for name, value in chosen.items()}


def _model(row: Row, places: Places) -> list[str]:
    parts, name = parts_of(row, places), backbone_of(row, places)
    words = ["--backbone", name, *(word for part, value in parts.items() for word in (f"--{part}", value))]
    if row["weights"] == "random":
        return [*words, "--weights", "random"]
    if row["weights"] == "partial":
        return [*words, "--weights", str(places.export(name)), "--load", "partial"]
    more = dict([PARTS[row["part"]].removeprefix("--").split()]) if row["part"] in OF_BACKBONE else {}
    return [*words, "--weights", str(places.export(name, **parts, **more))]


def backbone_of(row: Row, places: Places) -> str:
    """The name of a row's backbone."""
    return BACKBONES[row["family"]] if row["family"] in BACKBONES else places.user("Net")


def _data(row: Row, places: Places) -> list[str]:
    kind, form = WORKS[row["work"]].images, row["data"]
    words = ["--dataset", str(places.data(kind, "packed" if form == "packed" else "folders"))]
    if form == "packed" and kind == "scenes":
        words += ["--detector", "faster_rcnn_light"]
    if form == "subset":
        words += ["--subset", {"labelled": "4", "people": "5", "scenes": "6"}[kind]]
    return words + ["--label-fraction", "0.5"] * (form == "fraction")


def _places(program: str, out: Path | None) -> list[str]:
    if out is None:
        return []
    words = ["--out", str(out / "runs"), "--features", str(out / "features")]
    return words + (["--weights-to", str(out / "weights")] if program == "pretrain" else [])


def run(command: Command, out: Path) -> Ran:
    """Runs a command of one process here, its output caught, with all that it writes below `out`."""
    assert command.ranks == 1
    status, stdout, stderr, warned, seconds = called(command, out)
    return Ran(command, out, status, stdout, stderr, seconds, warned)


def called(command: Command, out: Path) -> tuple[int, str, str, list[str], float]:
    """Exit status, stdout, stderr, warnings and seconds of `main(argv)`; 70 and the traceback where it raises."""
    from transfer import pretrain
    from transfer import run as run_

    main = {"run": run_.main, "pretrain": pretrain.main}[command.program]
    stdout, stderr, start = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.ExitStack() as caught:
        caught.enter_context(contextlib.redirect_stdout(stdout))
        caught.enter_context(contextlib.redirect_stderr(stderr))
        seen = caught.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        try:
            status = main([*command.words, *_places(command.program, out)])
        except Exception:  # whatever a command lets through is what is looked for
            status = 70
            stderr.write(traceback.format_exc())
    said = [f"{one.category.__name__}: {one.message} ({Path(one.filename).name})" for one in seen]
    return status, stdout.getvalue(), stderr.getvalue(), said, time.monotonic() - start
