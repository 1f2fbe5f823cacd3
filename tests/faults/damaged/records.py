"""Kind `records`: those of every task, sealed again after one value of theirs, or a file beside them, was changed.

A record is refused in words, or every printed form of it ends in words and within ten seconds.
"""

import contextlib
import io
import json
import random
import re
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backbones.errors import UserError
from tests.faults.damaged.mutations import change_file, changed_once, sealed
from tests.faults.shown.forms import FORMS, Shown
from tests.faults.trial import HANG_SECONDS, NotHeldError, no_hang
from tests.processes import Command
from transfer.records.checksums import size_and_sha256
from transfer.records.record import Record, RunKey
from transfer.records.store import RECORD

SMOKE = ("--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0")
RUNS = {
    "reid": ("transfer.run", ("reid", "--epochs", "1", *SMOKE)),
    "fewshot": ("transfer.run", ("fewshot", "--dataset", "toy_dtd", *SMOKE)),
    "detect": ("transfer.run", ("detect", "--epochs", "1", *SMOKE)),
    "classify": ("transfer.run", ("classify", *SMOKE)),
    "linear": ("transfer.run", ("linear", "--epochs", "1", *SMOKE)),
    "knn": ("transfer.run", ("knn", *SMOKE)),
    "finetune": ("transfer.run", ("finetune", "--epochs", "1", *SMOKE)),
    "tokens": ("transfer.run", ("tokens", *SMOKE)),
    "deit": ("transfer.pretrain", ("deit", "--epochs", "1", *SMOKE)),
}
OFTEN = tuple(name for name in RUNS if name != "detect")
"""Detection takes as long as the others together, so that it is drawn less often."""
FORMS_OF_ONE = 2
FILES = 0.25
"""The share of trials that change a file beside the record, which is sealed again with the new sha256."""
SLOW = dict.fromkeys(("figures", "recomputation", "the command again"), 60)
"""Seconds for what takes several by itself."""
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys."""


class DamagedRecords:
    """A finished run of each task, made when it is first drawn."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.made: dict[str, Path] = {}
        self.tried: set[str] = set()

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Change one value of a record and show it in some forms; see `Kind`."""
        name = rng.choice((*OFTEN, *OFTEN, "detect"))
        runs = shutil.copytree(self._runs(name), folder / "runs")
        path = rng.choice(sorted(runs.glob(f"*/{RECORD}"))[:2])
        forms = rng.sample([*FORMS], FORMS_OF_ONE)
        for form in forms:
            self._warm(name, form, folder)
        content = json.loads(path.read_bytes())
        del content["digest"]
        beside = sorted(name for name in content["files"] if (path.parent / name).is_file())
        if beside and rng.random() < FILES:
            what = rng.choice(beside)
            change_file(path.parent / what, rng)
            content["files"][what] = size_and_sha256(path.parent / what)
        else:
            content, what = changed_once(content, rng)
        raw = sealed(content)
        path.write_bytes(raw)
        where = f"record of {name} ({what})"
        try:
            with no_hang():
                Record.parse(raw, path)
        except UserError as error:
            if len(str(error)) > 3000:
                raise NotHeldError(f"{where}: an error of {len(str(error))} characters") from None
            forms = ["screen"]  # which names it and shows the others
        except Exception as error:
            raise NotHeldError(f"{where}: a traceback: {error!r}") from error
        for form in forms:
            shown = Shown(runs, path.parent, folder / form, RUNS[name][0], self._words(name))
            seconds = 60 if name == "detect" else HANG_SECONDS  # the scores of its samples are bootstrapped
            show(where, form, shown, SLOW.get(form, seconds))
        return f"{name}: refused" if forms == ["screen"] else f"{name}: shown in words"

    def _runs(self, name: str) -> Path:
        """Return a folder of three runs: one that was made, and copies of it with another seed and another backbone."""
        if name not in self.made:
            folder = self.work / "records" / name
            program, words = RUNS[name][0], self._words(name)
            place = ("--out", str(folder / "runs"), "--features", str(folder / "features"))
            weights = ("--weights-to", str(folder / "weights")) if program == "transfer.pretrain" else ()
            (folder / "logs").mkdir(parents=True)
            command = Command(program, [*words, *place, *weights], folder / "logs" / "log")
            if command.wait() != 0:
                raise RuntimeError(command.stderr)
            (path,) = (folder / "runs").glob(f"*/{RECORD}")
            for number, changes in enumerate(({"seed": 1}, {"name": "other", "stem": "convstem"})):
                _copy(path.parent, f"copy{number}", changes)
            self.made[name] = folder / "runs"
        return self.made[name]

    def _words(self, name: str) -> tuple[str, ...]:
        """Return the words of a command; a classifier is that of the pretraining."""
        more = ("--weights", str(self._runs("deit").parent / "weights" / "tiny")) if name == "classify" else ()
        return (*RUNS[name][1], *more)

    def _warm(self, name: str, form: str, folder: Path) -> None:
        """Show a whole run once, since the first use of a form imports what it needs, which may take seconds."""
        if form not in self.tried:
            runs = shutil.copytree(self._runs(name), folder / "whole" / form)
            run = next(path.parent for path in runs.glob(f"{name.replace('deit', 'pretrain')}-*/{RECORD}"))
            shown = Shown(runs, run, folder / "whole-out" / form, RUNS[name][0], self._words(name))
            show(f"whole record of {name}", form, shown, 120)
            self.tried.add(form)


def show(where: str, form: str, shown: Shown, seconds: int = HANG_SECONDS) -> str:
    """Print a folder of runs in one form, and return what it says.

    Raises:
        NotHeldError: a traceback, a hang, or raw control characters.
    """
    out, err = io.StringIO(), io.StringIO()
    shown.out.mkdir(parents=True)
    try:
        with no_hang(seconds), _heard(out, err):
            status = FORMS[form](shown)
    except UserError:
        status = 1
    except NotHeldError as error:
        raise NotHeldError(f"{where} as {form}: {error}") from None
    except Exception as error:
        raise NotHeldError(f"{where} as {form}: a traceback: {error!r}") from error
    printed = out.getvalue() + err.getvalue()
    if status not in (0, 1, 2, 3) or "Traceback" in printed:
        raise NotHeldError(f"{where} as {form}: exit status {status}: {printed[-300:]}")
    handed_on = {path.read_bytes() for path in shown.runs.rglob("*.md")}
    for text in (printed, *(_content(path, handed_on) for path in shown.out.rglob("*"))):
        if raw := ODD.search(text):
            raise NotHeldError(f"{where} as {form}: raw {raw.group()!r}: {text[max(0, raw.start() - 80) :][:160]!r}")
    return printed


@contextlib.contextmanager
def _heard(out: io.StringIO, err: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(action="ignore"):
        yield


def _content(path: Path, handed_on: set[bytes]) -> str:
    """Return the text of a file that is made for readers; those of programs and those of a run are as they were."""
    if path.suffix not in (".md", ".tex", ".html") or not path.is_file() or path.read_bytes() in handed_on:
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _copy(run: Path, name: str, changes: dict[str, Any]) -> None:
    """Write a run beside another, which differs by a seed or by fields of the backbone."""
    record = asdict(Record.read(run / RECORD))
    key = json.loads(json.dumps(record["run_key_content"]))
    for content in (record, key):
        for field, value in changes.items():
            (content if field == "seed" else content["backbone"])[field] = value
    run_key = RunKey(key)
    identity = {"run_key": run_key.digest, "config_digest": run_key.without("seed").digest, "run_key_content": key}
    copy = shutil.copytree(run, run.with_name(f"{run.name}-{name}"))
    (copy / RECORD).write_bytes(sealed({**record, **identity, "run_id": copy.name}))
