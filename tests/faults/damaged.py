"""Kind `bytes`: a file is cut or changed, then read. It is refused in words, or gives what the whole file gave.

What belongs to a dataset (images, annotations) may give something else under another digest.
"""

import hashlib
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from backbones.backbone import create
from backbones.weights.export import export
from tests.faults.data import Found, coco_files, image_folder, market_folder, parquet_files, stored_features
from tests.faults.killed import SMOKE
from tests.faults.mutations import mutated
from tests.faults.trial import NotHeldError, no_hang
from tests.processes import Command, wait_for
from tests.runs import steps
from tests.support import tensors
from transfer.core.errors import UserError
from transfer.core.exports import PRETRAIN, WEIGHTS
from transfer.core.settings import CONFIGS, read_yaml
from transfer.engine.checkpoint import PREVIOUS, STATE, load_state
from transfer.records.record import Record
from transfer.records.store import RECORD, Store
from transfer.verify.bundle import bundle, unpacked
from transfer.verify.checks import verify

REID = ("reid", "--backbone", "tiny", *SMOKE)
LONGEST = 3000
"""Characters of an error."""


@dataclass(frozen=True)
class Target:
    """A folder of which a trial changes one file and reads what it stands for."""

    name: str
    whole: Path
    """The folder as it was written."""
    files: tuple[str, ...]
    """Those of which one is changed."""
    read: Callable[[Path], Any]
    """What the folder gives, a `Found` of a dataset; it raises UserError where it refuses it."""
    same: bool = True
    """Whether what is accepted must equal what the whole folder gives; people's own files may say something else."""


class DamagedFiles:
    """The targets, made once in a folder or given, and what they give while they are whole."""

    def __init__(self, work: Path, targets: Sequence[Target] | None = None) -> None:
        self.targets = [*targets] if targets is not None else made_targets(work)
        self.expected = {target.name: target.read(target.whole) for target in self.targets}

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Change one file, and return how it was held, as `weights: refused`."""
        target = rng.choice(self.targets)
        copy = shutil.copytree(target.whole, folder / "copy")
        name = rng.choice(target.files)
        (copy / name).write_bytes(mutated((copy / name).read_bytes(), rng))
        where = f"{target.name} ({name})"
        try:
            with no_hang():
                value = target.read(copy)
        except NotHeldError as error:
            raise NotHeldError(f"{where}: {error}") from None
        except Exception as error:  # which a command ends with in one line
            if len(str(error)) > LONGEST or "\x1b" in str(error):
                raise NotHeldError(f"{where}: an error of {len(str(error))} characters: {error!r:.200}") from None
            return f"{target.name}: {'refused' if isinstance(error, UserError) else 'stopped by its reader'}"
        expected = self.expected[target.name]
        if isinstance(value, Found) and value.digest != expected.digest:
            return f"{target.name}: another dataset"
        if target.same and value != expected:
            raise NotHeldError(f"{where}: another result in silence")
        return f"{target.name}: read"


def made_targets(work: Path) -> list[Target]:
    """Return all targets, made in an empty folder."""
    return [
        _weights(work),
        *_finished_run(work),
        *_interrupted_run(work),
        _written_by_people(work),
        Target("images", *image_folder(work)),
        Target("Parquet", *parquet_files(work)),
        Target("stored features", *stored_features(work)),
        Target("Market-1501", *market_folder(work)),
        Target("COCO", *coco_files(work)),
    ]


def _weights(work: Path) -> Target:
    folder = export(create("tiny"), work / "weights", {PRETRAIN: {"run": "a"}})
    return Target("weights", folder, (WEIGHTS,), lambda copy: create("tiny", weights=str(copy)).fingerprint)


def _finished_run(work: Path) -> list[Target]:
    command = Command("transfer.run", [*REID, "--epochs", "1", "--out", str(work / "runs")], work / "finished")
    if command.wait() != 0:
        raise RuntimeError(command.stderr)
    (run,) = (work / "runs").glob("reid-*")
    inside = tuple(name for name in Record.read(run / RECORD).files if (run / name).is_file())
    (work / "bundle").mkdir()
    bundle(Store(work / "runs").runs()[0], work / "bundle" / "runs.zip")
    return [
        Target("record", run, (RECORD,), lambda copy: asdict(Record.read(copy / RECORD))),
        Target("files of a run", run, inside, _verified),
        Target("bundle", work / "bundle", ("runs.zip",), _unpacked),
    ]


def _verified(run: Path) -> bool:
    verdict = verify(run)
    if verdict.wrong:
        raise UserError("; ".join(verdict.wrong)[:LONGEST])
    return not verdict.notes


def _unpacked(folder: Path) -> list[str]:
    with unpacked(folder / "runs.zip", folder) as inside:
        files = sorted(file for file in inside.rglob("*") if file.is_file())
        wrong = [text for run in inside.iterdir() for text in verify(run).wrong]
        if wrong:
            raise UserError("; ".join(wrong)[:LONGEST])
        return [f"{file.relative_to(inside)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]


def _interrupted_run(work: Path) -> list[Target]:
    out = work / "interrupted"
    # so many epochs that it cannot end before it is killed
    argv = [*REID, "--epochs", "1000", "--checkpoint-seconds", "0", "--out", str(out)]
    command = Command("transfer.run", argv, work / "killed")
    wait_for(lambda: steps(out) >= 3)
    command.kill(signal.SIGKILL)
    (run,) = out.glob("reid-*")
    (work / "before").mkdir()  # the state that is read where the newer one is not there
    shutil.copy(next(path for path in (run / PREVIOUS, run / STATE) if path.exists()), work / "before" / PREVIOUS)
    if not (run / STATE).exists():  # killed between two renames
        (run / PREVIOUS).rename(run / STATE)
    key = str(torch.load(run / STATE, weights_only=True)["run_key"])

    def loaded(copy: Path) -> str:
        content = load_state(copy, key)
        assert content is not None
        parts = [tensor.numpy().tobytes() for tensor in tensors(content)]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    return [Target("state", run, (STATE,), loaded), Target("state before it", work / "before", (PREVIOUS,), loaded)]


def _written_by_people(work: Path) -> Target:
    yaml = work / "yaml"
    yaml.mkdir()
    for file in (*CONFIGS.glob("sweeps/*.yaml"), *CONFIGS.glob("tasks/*.yaml")):
        shutil.copy(file, yaml)
    names = tuple(sorted(file.name for file in yaml.iterdir()))
    return Target("YAML", yaml, names, lambda copy: [read_yaml(file) for file in sorted(copy.iterdir())], same=False)
