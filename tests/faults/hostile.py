"""Kind `hostile`: files made to do harm. Nothing in them runs, and nothing is written outside their folder."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backbones.backbone import create
from backbones.checkpoints.export_config import SUITE
from backbones.checkpoints.exports import CONFIG, export
from backbones.data.archives import Archive
from backbones.data.classification import open_classification
from backbones.data.spec import DatasetSpec
from backbones.engine.checkpoint import STATE, load_state
from backbones.errors import UserError
from backbones.settings import read_yaml
from tests.faults.killed import SMOKE
from tests.faults.trial import NotHeldError, no_hang
from tests.processes import Command
from transfer.doctor.download import _extract
from transfer.records.checksums import with_checksum
from transfer.records.per_sample import OUTCOMES
from transfer.records.store import RECORD, Store
from transfer.share.bundle import import_bundle
from transfer.verify.verification import verify


class Runs:
    """An object whose unpickling makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a reader of pickles would call."""
        return os.system, (f"touch '{self.mark}'",)


class HostileFiles:
    """A run and weights of an honest author, which trials change."""

    def __init__(self, work: Path) -> None:
        argv = ["knn", "--backbone", "tiny", *SMOKE, "--out", str(work / "runs"), "--features", str(work / "features")]
        command = Command("transfer.run", argv, work / "log")
        if command.wait() != 0:
            raise RuntimeError(command.stderr)
        (self.run,) = (work / "runs").glob("knn-*")
        self.weights = export(create("tiny"), work / "weights", {})
        self.outside = Path(tempfile.gettempdir()) / f"ran-here-{os.getpid()}"

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Read one hostile file; see `Kind`. A file named `ran` says that something in it was executed."""
        inside = folder / "inside"
        inside.mkdir()
        trials: tuple[Callable[[random.Random, Path], str], ...] = (
            *(self._pickle, self._yaml, self._bundle, self._archive, self._code_of_export),
        )
        with no_hang(60):
            what = rng.choice(trials)(rng, inside)
        marks = [mark for mark in (self.outside, Path("ran"), folder.parent / "ran") if mark.exists()]
        for mark in marks:
            mark.unlink()
        if marks or [*folder.rglob("ran*")] or [path.name for path in folder.iterdir()] != ["inside"]:
            raise NotHeldError(f"{what}: something was executed, or written where its name says")
        return what

    def _pickle(self, rng: random.Random, inside: Path) -> str:
        """Weights, states, per-sample files and archives of CIFAR that hold a pickle."""
        mark = inside / "ran"
        where = rng.choice(("weights", "state", "outcomes", "cifar"))
        raw = pickle.dumps({"model": Runs(mark), "data": Runs(mark)}, protocol=rng.choice((2, 4)))
        if where in ("weights", "state"):
            file = inside / (STATE if where == "state" else rng.choice(("w.pth", "w.pt", "w.bin", "w.safetensors")))
            if rng.random() < 0.5:
                file.write_bytes(raw)
            else:
                torch.save({"run_key": "key", "model": Runs(mark)}, file)
            refused(where, lambda: load_state(inside, "key") if where == "state" else create("tiny", weights=str(file)))
        elif where == "outcomes":
            run = shutil.copytree(self.run, inside / self.run.name)
            if rng.random() < 0.5:
                (run / OUTCOMES).write_bytes(raw)
            else:
                np.savez(run / OUTCOMES, rank=np.array([Runs(mark)], dtype=object))
            _reseal(run, OUTCOMES)
            refused(where, lambda: _right(run))
        else:
            for name in ("data_batch_1", "test_batch", "batches.meta"):
                (inside / name).write_bytes(raw)
            refused(
                where, lambda: open_classification(DatasetSpec(name="x", format="cifar", root=(str(inside),)), None)
            )
        return f"a pickle for {where}: refused"

    def _yaml(self, rng: random.Random, inside: Path) -> str:
        mark = inside / "ran"
        tags = ("object/apply:os.system ['touch {}']", "object/new:os.system ['touch {}']", "name:os.system {}")
        (inside / "x.yaml").write_text(f"lr: !!python/{rng.choice(tags).format(mark)}")
        refused("YAML", lambda: read_yaml(inside / "x.yaml"))
        return "YAML that names code: refused"

    def _bundle(self, rng: random.Random, inside: Path) -> str:
        """A bundle whose names climb, are links, or are far larger than a run."""
        run = shutil.copytree(self.run, inside / self.run.name)
        odd = rng.choice(("../../ran", str(self.outside), f"{run.name}/../../../ran", "link", "bomb"))
        _reseal(run)
        with zipfile.ZipFile(inside / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in run.iterdir():
                if path.is_file():
                    archive.write(path, f"{run.name}/{path.name}")
            member = zipfile.ZipInfo(f"{run.name}/support.csv" if odd in ("link", "bomb") else odd)
            member.external_attr = (stat.S_IFLNK | 0o777 if odd == "link" else stat.S_IFREG | 0o644) << 16
            content = bytes(2**28) if odd == "bomb" else str(inside / "ran").encode()
            archive.writestr(member, content, zipfile.ZIP_DEFLATED)
        shutil.rmtree(run)
        if odd != "link":
            refused("bundle", lambda: import_bundle(inside / "x.zip", Store(inside / "runs")))
            return "a bundle that climbs or swells: refused"
        with contextlib.suppress(UserError):  # or it becomes a file with the link's text
            import_bundle(inside / "x.zip", Store(inside / "runs"))
        if any(path.is_symlink() for path in inside.rglob("*")):
            raise NotHeldError("bundle: a link was made")
        return "a bundle with a link: none is made"

    def _archive(self, rng: random.Random, inside: Path) -> str:
        """An archive of a data set with members that leave the folder: they are refused, or kept in it."""
        file, odd = inside / "x.archive", rng.choice(("../escaped", "../../out/escaped", "link", "hard link"))
        if rng.random() < 0.5 and "escaped" in odd:
            with zipfile.ZipFile(file, "w") as zipped:
                zipped.writestr(odd, "x")
        else:
            with tarfile.open(file, "w:gz") as archive:
                member = tarfile.TarInfo(odd if "escaped" in odd else "images/a")
                if "escaped" not in odd:
                    member.type = tarfile.SYMTYPE if odd == "link" else tarfile.LNKTYPE
                    member.linkname = "../../../../etc/passwd"
                archive.addfile(member, io.BytesIO())
        with contextlib.suppress(Exception):  # which a command ends with in one line
            _extract(Archive("http://example.org/x.tar.gz", "md5", "0"), file, inside / "data")
        found = {path for path in inside.parent.rglob("*") if path.name == "escaped" or path.is_symlink()}
        if found - {*(inside / "data").rglob("escaped")} or any(path.is_symlink() for path in found):
            raise NotHeldError(f"archive: {odd}: taken")
        return "an archive that leaves its folder: it does not"

    def _code_of_export(self, rng: random.Random, inside: Path) -> str:
        """Weights whose configuration names code that came with them."""
        weights = shutil.copytree(self.weights, inside / "weights")
        file = rng.choice((weights, inside, inside / "code")) / "stem.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"open({str(inside / 'ran')!r}, 'w')\nfrom torch.nn import Identity as Stem\n")
        config = json.loads((weights / CONFIG).read_bytes())
        place = rng.choice((str(file), os.path.relpath(file), f"{weights}/../{file.relative_to(inside)}"))
        config.get(SUITE, config)["model_args"][rng.choice(("stem", "ffn", "attention"))] = f"{place}:Stem"
        (weights / CONFIG).write_text(json.dumps(config))
        if rng.random() < 0.5:
            refused("code in an export", lambda: create(str(weights)))
        else:
            refused("code in an export", lambda: create("tiny", weights=str(weights)))
        return "code that came with weights: not run"


def _reseal(run: Path, *names: str) -> None:
    """Give a record the digests of files as they are now, so that these are read."""
    content = json.loads((run / RECORD).read_bytes())
    del content["digest"]
    for name in names:
        raw = (run / name).read_bytes()
        content["files"][name] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (run / RECORD).write_bytes(with_checksum(content))


def _right(run: Path) -> None:
    if wrong := verify(run).wrong:
        raise UserError("; ".join(wrong))


def refused(what: str, read: Callable[[], object]) -> None:
    """Raise NotHeldError unless a reader refuses what it is given, without advice to run what it holds."""
    try:
        read()
    except Exception as error:  # which a command ends with in one line
        if "weights_only" in str(error) or "\x1b" in str(error):
            raise NotHeldError(f"{what}: {error!r:.300}") from None
        return
    raise NotHeldError(f"{what}: taken")
