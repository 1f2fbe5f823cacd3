"""Kind `hostile`: files and names that somebody made to do harm.

Nothing in them runs, nothing is written or read outside their folder, and no name is shown unescaped.
"""

import hashlib
import http.client
import io
import json
import os
import pickle
import random
import shutil
import signal
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from backbones.backbone import create
from backbones.checkpoints.export_config import SUITE
from backbones.checkpoints.exports import CONFIG, export
from backbones.data.archives import Archive
from backbones.engine.checkpoint import STATE, load_state
from backbones.errors import UserError
from backbones.settings import read_yaml
from tests.faults.shown.names import named_classes, named_record
from tests.faults.special_files import special_file, special_file_of_a_run
from tests.faults.trial import NotHeldError, no_hang
from tests.processes import Command, free_port, wait_for
from transfer.doctor.download import _extract
from transfer.records.bundle_file import SHARED, unpacked
from transfer.records.store import RECORD

SMOKE = ("--smoke", "--threads", "1", "--workers", "0")


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
        before = _tree(folder.parent / "made")
        trials: tuple[Callable[[random.Random, Path], str], ...] = (
            self._pickle,
            self._yaml,
            self._zip,
            self._tar,
            self._name,
            self._name,
            self._special_file,
            self._special_file_of_a_run,
            self._code_of_export,
            self._server,
        )
        with no_hang(60):
            what = rng.choice(trials)(rng, inside)
        if self._executed(folder):
            raise NotHeldError(f"{what}: something was executed, or written where its name says")
        if [path.name for path in folder.iterdir()] != ["inside"] or _tree(folder.parent / "made") != before:
            raise NotHeldError(f"{what}: written outside its folder")
        return what

    def _executed(self, folder: Path) -> bool:
        """Return whether a trial left its mark, inside or outside its folder, and remove the marks outside."""
        outside = [mark for mark in (self.outside, Path("ran"), folder.parent / "ran") if mark.exists()]
        for mark in outside:
            mark.unlink()
        return bool(outside or [*folder.rglob("ran*")])

    def _pickle(self, rng: random.Random, inside: Path) -> str:
        """Weights, states, per-sample files and archives of CIFAR that hold a pickle."""
        mark = inside / "ran"
        where = rng.choice(("weights", "state", "outcomes", "cifar"))
        raw = pickle.dumps({"model": Runs(mark), "data": Runs(mark)}, protocol=rng.choice((2, 4)))
        if where == "weights":
            file = inside / rng.choice(("w.pth", "w.pt", "w.bin", "w.safetensors"))
            _save(rng, file, raw, mark)
            refused(where, lambda: create("tiny", weights=str(file)))
        elif where == "state":
            _save(rng, inside / STATE, raw, mark)
            refused(where, lambda: load_state(inside, "key"))
        elif where == "outcomes":
            run = shutil.copytree(self.run, inside / self.run.name)
            (run / "outcomes.npz").write_bytes(raw)
            verdict = Command("transfer.verify.__main__", [str(run)], inside / "verify")
            if verdict.wait() != 1 or "Traceback" in verdict.stderr:
                raise NotHeldError(f"outcomes: exit status {verdict.poll()}: {verdict.stderr[-300:]}")
        else:
            for name in ("data_batch_1", "test_batch", "batches.meta"):
                (inside / name).write_bytes(raw)
            (inside / "mine.yaml").write_text(f"format: cifar\nroot: {inside}\n")
            _command_in_words(["knn", "--dataset", str(inside / "mine.yaml"), "--backbone", "tiny", *SMOKE], inside)
        return f"a pickle for {where}: refused"

    def _yaml(self, rng: random.Random, inside: Path) -> str:
        mark = inside / "ran"
        text = rng.choice(
            (
                f"lr: !!python/object/apply:os.system ['touch {mark}']",
                f"lr: !!python/object/new:os.system ['touch {mark}']",
                f"!!python/module:os {{}}\nlr: {mark}",
                "a: &a [x, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: [*c, *c, *c, *c, *c, *c, *c, *c]\n"
                * 40,
                "root: &r [*r]",
                "[" * 5000,
                "lr: " + "9" * 100_000,
                f"lr: !include {inside}/../secret",
            )
        )
        (inside / "x.yaml").write_text(text)
        try:
            read_yaml(inside / "x.yaml")
        except UserError as error:
            if "\x1b" in str(error) or len(str(error)) > 2000:
                raise NotHeldError(f"YAML: an error of {len(str(error))} characters") from None
        return "YAML tags and bombs: refused or plain text"

    def _zip(self, rng: random.Random, inside: Path) -> str:
        """A bundle whose names climb, are links, or are far larger than they say."""
        file, name = inside / "x.zip", self.run.name
        odd = rng.choice(
            ("../../ran", str(self.outside), f"{name}/../../../ran", f"{name}/..\\..\\ran", "link", "bomb")
        )
        content = {f"{name}/{path.name}": path.read_bytes() for path in self.run.iterdir() if path.name in SHARED}
        content[f"{name}/{RECORD}"] = (self.run / RECORD).read_bytes()
        added = {"link": f"{name}/support.csv", "bomb": f"{name}/support.csv"}.get(odd, odd)
        content[added] = bytes(200 * 2**20) if odd == "bomb" else str(inside / "ran").encode()
        runs: dict[str, dict[str, Any]] = {}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, value in content.items():
                member = zipfile.ZipInfo(key)
                member.external_attr = (stat.S_IFLNK | 0o777 if odd == "link" and key == added else stat.S_IFREG) << 16
                archive.writestr(member, value, zipfile.ZIP_DEFLATED)
                entry = {"size": len(value), "sha256": hashlib.sha256(value).hexdigest()}
                run, _, rest = key.partition("/")
                runs.setdefault(run, {})[rest] = entry | ({"size": 9000} if odd == "bomb" and key == added else {})
            archive.writestr("manifest.json", json.dumps({"schema": 1, "runs": runs}))

        def read() -> None:
            with unpacked(file, inside) as place:
                list(place.rglob("*"))

        refused("bundle", read)
        return "a bundle that climbs, links or swells: refused"

    def _tar(self, rng: random.Random, inside: Path) -> str:
        """An archive of a data set with members that leave the folder."""
        file, odd = inside / "x.tar.gz", rng.choice(("../ran", "../../out/ran", "link", "device", "hard link"))
        with tarfile.open(file, "w:gz") as archive:
            member = tarfile.TarInfo("images/a" if odd in ("link", "device", "hard link") else odd)
            if odd == "device":
                member.type, member.devmajor, member.devminor = tarfile.CHRTYPE, 1, 3
            elif odd in ("link", "hard link"):
                member.type = tarfile.SYMTYPE if odd == "link" else tarfile.LNKTYPE
                member.linkname = "../../../../etc/passwd"
            archive.addfile(member, io.BytesIO())
        archived = Archive("http://example.org/x.tar.gz", "md5", "0")
        refused("archive", lambda: _extract(archived, file, inside / "data"))
        return "an archive that leaves its folder: refused"

    def _name(self, rng: random.Random, inside: Path) -> str:
        """A record with odd names, or a run on classes with odd names, in one form or two."""
        return named_record(rng, self.run, inside) if rng.random() < 0.7 else named_classes(rng, inside)

    def _special_file(self, rng: random.Random, inside: Path) -> str:
        return special_file(rng, inside)

    def _special_file_of_a_run(self, rng: random.Random, inside: Path) -> str:
        return special_file_of_a_run(rng, self.run, inside)

    def _code_of_export(self, rng: random.Random, inside: Path) -> str:
        """Weights whose configuration names code that came with them."""
        weights = shutil.copytree(self.weights, inside / "weights")
        code = f"open({str(inside / 'ran')!r}, 'w')\nfrom torch.nn import Identity as Stem\n"
        file = rng.choice((weights, inside, inside / "code")) / "stem.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
        config = json.loads((weights / CONFIG).read_bytes())
        part = rng.choice(("stem", "ffn", "attention"))
        place = rng.choice((str(file), os.path.relpath(file), f"{weights}/../{file.relative_to(inside)}"))
        config.get(SUITE, config)["model_args"][part] = f"{place}:Stem"
        (weights / CONFIG).write_text(json.dumps(config))
        given = rng.choice(((str(weights), {}), ("tiny", {"weights": str(weights)})))
        refused("code in an export", lambda: create(given[0], **given[1]))
        return "code that came with weights: not run"

    def _server(self, rng: random.Random, inside: Path) -> str:
        """A page that is served is asked by another site, for other files, and slowly."""
        port = free_port()
        words = [str(self.run.parent), "--smoke", "--dirty", "--serve", "--port", str(port)]
        server = Command("transfer.report.__main__", words, inside / "serve")
        try:
            wait_for(lambda: f":{port}" in server.stdout + server.stderr or server.poll() is not None)
            if server.poll() is not None:
                raise NotHeldError(f"--serve: exit status {server.poll()}: {server.stderr[-300:]}")
            slow = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            slow.connect()
            slow.sock.sendall(b"GET / HTTP/1.1\r\nHost: ")  # and no more, while others ask
            path = rng.choice(("/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/record.json\0"))
            for host, asked, fine in (
                ("evil.example", "/", (400, 403, 404, 421)),
                (None, path.strip("\0"), (400, 403, 404)),
                (None, "/", (200,)),
            ):
                status, body = _ask(port, asked, host)
                if status not in fine or "root:" in body:
                    raise NotHeldError(f"--serve: {asked} of {host}: status {status}")
            slow.close()
        finally:
            if server.poll() is None:
                server.send(signal.SIGTERM)
                server.wait()
        return "a served page: other hosts and paths refused, slow clients wait alone"


def _ask(port: int, path: str, host: str | None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def _save(rng: random.Random, file: Path, raw: bytes, mark: Path) -> None:
    if rng.random() < 0.5:
        file.write_bytes(raw)
    else:
        torch.save({"run_key": "key", "model": Runs(mark)}, file)


def refused(what: str, read: Callable[[], object]) -> None:
    """Raise NotHeldError unless a reader refuses what it is given in words of the suite."""
    try:
        read()
    except UserError as error:
        if "weights_only" in str(error) or "\x1b" in str(error) or len(str(error)) > 3000:
            raise NotHeldError(f"{what}: {str(error)[:300]!r}") from None
        return
    except Exception as error:
        raise NotHeldError(f"{what}: a traceback: {error!r}") from error
    raise NotHeldError(f"{what}: taken")


def _command_in_words(words: list[str], inside: Path) -> None:
    argv = [*words, "--out", str(inside / "runs"), "--features", str(inside / "features")]
    command = Command("transfer.run", argv, inside / "log")
    if command.wait(30) not in (1, 2) or "Traceback" in command.stderr or "error: " not in command.stderr:
        raise NotHeldError(f"{words[0]}: exit status {command.poll()}: {command.stderr[-500:]}")


def _tree(folder: Path) -> list[tuple[str, int]]:
    """Return the names and sizes of files, but for those of locks, which come and go."""
    return sorted(
        (str(path), path.stat().st_size) for path in folder.rglob("*") if path.is_file() and path.name != "lock"
    )
