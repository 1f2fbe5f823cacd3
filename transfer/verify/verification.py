"""Checks that a run's folder was not changed, and that its per-sample results give its scores."""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from backbones.errors import UserError, reason_of
from transfer.records.store import RECORD, Record
from transfer.verify.checks import check_files, check_run_key, check_scores, check_weights


@dataclass
class Verdict:
    """The result of verifying one run."""

    folder: Path
    name: str
    """The name in messages: the folder, or a bundle and the run in it."""
    wrong: list[str] = field(default_factory=list)
    """Each difference from what was written."""
    notes: list[str] = field(default_factory=list)
    """A sentence for each check that was not possible."""
    environment: list[str] = field(default_factory=list)
    """Each difference of the run's environment from this one."""
    record: Record | None = None
    recomputed: list[str] = field(default_factory=list)
    """The scores in the record and recomputed, as lines of a table."""
    not_recomputed: str = ""
    """The reason why the requested recomputation was not possible; empty if it was."""

    def __str__(self) -> str:
        lines = [f"{'WRONG' if self.wrong else 'right'}  {self.name}"]
        lines += [*self.wrong, self.not_recomputed] if self.not_recomputed else self.wrong
        notes = [*self.notes, *([f"other than here: {'; '.join(self.environment)}"] if self.environment else [])]
        return "\n       ".join([*lines, *self.recomputed, *(f"({note})" for note in notes)])


def verify(folder: Path, weights: Path | None = None, name: str = "") -> Verdict:
    """Check everything that can be checked in a run's folder.

    Args:
        folder: the run's folder.
        weights: the folder in or below which weights are looked for; None means where the run found them.
        name: the name of the run in messages; by default its folder.
    """
    verdict = Verdict(folder, name or str(folder))
    try:
        record = verdict.record = Record.read(folder / RECORD, edited=True)
    except UserError as error:
        verdict.wrong.append(str(error).replace(str(folder), verdict.name))
        return verdict
    try:
        Record.read(folder / RECORD)
    except UserError:
        verdict.wrong.append(f"{RECORD}: edited after it was written")
    try:
        results = [check_files(folder, record), check_run_key(folder, record), check_scores(folder, record)]
        results.append(check_weights(record, weights))
    except OSError as error:  # no permission, a failing disk
        results = [([reason_of(error).replace(str(folder), verdict.name)], [])]
    for wrong, notes in results:
        verdict.wrong += wrong
        verdict.notes += notes
    verdict.environment = differences_here(record)
    return verdict


def differences_here(record: Record) -> list[str]:
    """Return the differences between a run's environment and this one, as `name THERE there, HERE here`."""
    there, here = record.environment, _here()
    flat_there, flat_here = (
        {key: value for key, value in environment.items() if key != "versions"} | environment.get("versions", {})
        for environment in (there, here)
    )
    # an automatic precision depends on the machine; only one that was given is part of the environment to compare
    requested = [name for name in ("precision", "eval_precision") if record.options.get(name) != "auto"]
    ignored = ("started", "workers", "threads_why", "tf32", *requested)
    names = [name for name in flat_there if name not in ignored]
    return [
        f"{name} {flat_there[name]} there, {flat_here.get(name)} here"
        for name in names
        if flat_there[name] != flat_here.get(name)
    ]


@lru_cache
def _here() -> dict[str, Any]:
    import torch

    from backbones.engine.context import Context
    from backbones.runtime.device import choose_device
    from backbones.runtime.precision import choose_precision
    from backbones.runtime.ranks import ALONE
    from transfer.evaluation.environment import environment

    device = choose_device("auto" if torch.cuda.is_available() else "cpu", ALONE)
    automatic = choose_precision("auto", device)
    return environment(Context(device, automatic, automatic))
