"""Kind `bytes`: a file is changed, then read. It is refused in words, or gives what the whole file gave.

What belongs to a data set (images, names, annotations) may give something else under another digest. Of YAML files,
which people write themselves, it is asked that they end in words and within ten seconds.
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
from backbones.checkpoints.exports import PRETRAIN, WEIGHTS, export
from backbones.engine.checkpoint import HISTORY, PREVIOUS, STATE, History, load_state
from backbones.errors import UserError
from backbones.settings import CONFIGS, read_yaml
from tests.faults.damaged.data import Found, coco_files, feature_shard, image_folder, market_names, parquet_files
from tests.faults.damaged.mutations import change_file
from tests.faults.damaged.written_files import written_files
from tests.faults.trial import NotHeldError, no_hang
from tests.processes import Command, wait_for
from tests.runs import steps
from tests.support import tensors
from transfer.records.bundle_file import unpacked
from transfer.records.record import Record
from transfer.records.store import RECORD, Store
from transfer.share.bundle import bundle
from transfer.verify.verification import verify

REID = ("reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0")


@dataclass(frozen=True)
class Target:
    """A folder of which a trial changes one file and reads what it stands for."""

    name: str
    whole: Path
    """The folder as it was written."""
    files: tuple[str, ...]
    """Those of which one is changed."""
    read: Callable[[Path], Any]
    """What the folder gives; it raises UserError where it refuses it."""
    same: bool = True
    """Whether what is accepted must equal what the whole folder gives, or, as `Found`, be another data set."""


class DamagedFiles:
    """The targets, made once in a folder or given, and what they give while they are whole."""

    def __init__(self, work: Path, targets: Sequence[Target] | None = None) -> None:
        self.targets = [*targets] if targets is not None else made_targets(work)
        self.expected = {target.name: target.read(target.whole) for target in self.targets if target.same}

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Change one file; see `Kind`."""
        target = rng.choice(self.targets)
        copy = shutil.copytree(target.whole, folder / "copy")
        name = rng.choice(target.files)
        change_file(copy / name, rng)
        where = f"{target.name} ({name})"
        try:
            with no_hang():
                value = target.read(copy)
        except UserError as error:
            said = str(error)
            if len(said) > 3000 or "\x1b" in said:
                raise NotHeldError(f"{where}: an error of {len(said)} characters: {said[:200]!r}") from None
            return f"{target.name}: refused"
        except NotHeldError as error:
            raise NotHeldError(f"{where}: {error}") from None
        except Exception as error:
            raise NotHeldError(f"{where}: a traceback: {error!r}") from error
        return f"{target.name}: {self._judged(target, value, where)}"

    def _judged(self, target: Target, value: Any, where: str) -> str:
        """Return in words what was accepted. Raises NotHeldError where another result has the whole one's identity."""
        if not target.same:
            return "read"
        expected = self.expected[target.name]
        if isinstance(value, Found) and value.digest != expected.digest:
            return "another data set"
        if value != expected:
            raise NotHeldError(f"{where}: another result in silence")
        return "read as it was"


def made_targets(work: Path) -> list[Target]:
    """Return all targets, made in an empty folder."""
    data = [
        Target("images", *image_folder(work)),
        Target("Parquet", *parquet_files(work)),
        Target("stored features", *feature_shard(work)),
        Target("Market-1501 names", *market_names(work)),
        Target("COCO", *coco_files(work)),
    ]
    runs = [_weights(work), *_finished_run(work), *_interrupted_run(work)]
    return [*runs, _written_by_people(work), *data, *(Target(*place, same=False) for place in written_files(work))]


def _weights(work: Path) -> Target:
    folder = export(create("tiny"), work / "weights", {PRETRAIN: {"run": "a"}})
    return Target("weights", folder, (WEIGHTS,), lambda copy: create("tiny", weights=str(copy)).fingerprint)


def _finished_run(work: Path) -> list[Target]:
    command = Command("transfer.run", [*REID, "--epochs", "3", "--out", str(work / "runs")], work / "finished")
    if command.wait() != 0:
        raise RuntimeError(command.stderr)
    (run,) = (work / "runs").glob("reid-*")
    listed = tuple(Record.read(run / RECORD).files)
    inside = tuple(name for name in listed if (run / name).is_file())
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
        raise UserError("; ".join(verdict.wrong)[:2000])
    return verdict.right


def _unpacked(folder: Path) -> list[str]:
    with unpacked(folder / "runs.zip") as inside:
        files = sorted(file for file in inside.rglob("*") if file.is_file())
        return [f"{file.relative_to(inside)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]


def _interrupted_run(work: Path) -> list[Target]:
    out = work / "interrupted"
    # so many epochs that it cannot end before it is killed
    argv = [*REID, "--epochs", "1000", "--checkpoint-seconds", "0", "--out", str(out)]
    command = Command("transfer.run", argv, work / "killed")
    wait_for(lambda: steps(out) >= 3)
    command.kill(signal.SIGKILL)
    (run,) = out.glob("reid-*")
    if not (run / STATE).exists():  # killed between two renames
        (run / PREVIOUS).rename(run / STATE)
    state = torch.load(run / STATE, weights_only=True)
    key, lines = str(state["run_key"]), int(state["history_lines"])

    def loaded(copy: Path) -> str:
        content = load_state(copy, key)
        assert content is not None
        parts = [tensor.numpy().tobytes() for tensor in tensors(content)]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def history(copy: Path) -> str:
        if History(copy, lines).count < lines:
            raise UserError("lines are lost")
        return (copy / HISTORY).read_text(encoding="utf-8")

    (work / "before").mkdir()  # the state that is read where the newer one is not there
    shutil.copy(run / (PREVIOUS if (run / PREVIOUS).exists() else STATE), work / "before" / PREVIOUS)
    return [
        Target("state", run, (STATE,), loaded),
        Target("state before it", work / "before", (PREVIOUS,), loaded),
        Target("history", run, (HISTORY,), history),
    ]


def _written_by_people(work: Path) -> Target:
    yaml = work / "yaml"
    yaml.mkdir()
    for file in (*CONFIGS.glob("sweeps/*.yaml"), *CONFIGS.glob("backbones/*.yaml")):
        shutil.copy(file, yaml / "mine.yaml" if file.stem == "cross" else yaml / file.name)
    names = tuple(sorted(file.name for file in yaml.iterdir()))
    return Target("YAML", yaml, names, lambda copy: [read_yaml(file) for file in sorted(copy.iterdir())], same=False)
