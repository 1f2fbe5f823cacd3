"""Expands a sweep into jobs: one command for each combination of its steps, rows and grids. Imports no torch."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any

from backbones.spec import BackboneSpec
from transfer.cli.options import BACKBONE_OPTIONS
from transfer.core.errors import UsageError
from transfer.core.options import Needs, idle_options, noted
from transfer.core.settings import as_words
from transfer.core.user_code import VARIED_PARTS, file_digest, or_its_imports
from transfer.experiments.step import Step, options_of
from transfer.experiments.sweep_file import SweepFile
from transfer.records.fields import value_label


@dataclass(frozen=True)
class SweepJob:
    """A job of a sweep: one command, which runs in a process of its own."""

    step: Step
    backbone: str
    dataset: str
    seed: int
    options: dict[str, Any]
    """The options of the command by name."""
    axes: tuple[str, ...]
    """Names of the options that the grid or the row varies."""
    parent: "SweepJob | None" = None
    """The job from whose weights it starts."""
    label: str = field(default="", compare=False)
    """The label of the first row that it belongs to."""

    @cached_property
    def name(self) -> str:
        """A unique name `<step>-<dataset>-<backbone>-<what varies>-s<seed>-<8 hex>`, stable while files are the same as
        now; the weights of a pretraining have it, too.
        """
        # a user's file counts by its name and contents, not by its folder
        files = dict(self.contents)
        portable = [(Path(word).name, files[word]) if word in files else word for word in self._arguments]
        identity = [self.step.kind, self.seed, portable, self.parent.name if self.parent else None]
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:8]
        names = (self.step.name, Path(self.dataset).stem, Path(self.backbone).stem)
        labels = [*names, *map(str, self._varied.values()), f"s{self.seed}"]
        slug = "-".join(re.sub(r"[^\w.+@,=]+", "_", Path(text).name or text).strip("._") for text in labels)
        start = slug.encode()[:100].decode(errors="ignore")  # file systems count bytes
        return f"{start}-{digest}"

    @cached_property
    def title(self) -> str:
        """What it is, for people: `reid on market1501, conv, seed 0`."""
        # a part as people name it, "LapStem", and other options with their values, "lr 0.1"
        values = [
            str(value).rpartition(":")[2] if name in VARIED_PARTS else f"{name} {value_label(value)}"
            for name, value in self._varied.items()
        ]
        return ", ".join([f"{self.step.name} on {Path(self.dataset).stem}", *values, f"seed {self.seed}"])

    @cached_property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """Each user's file that its command names, as an argument, with the sha256 of its contents at the first look,
        which is for the name.
        """
        return tuple((word, content) for word in dict.fromkeys(self._arguments) if (content := _content(word)))

    @property
    def _arguments(self) -> tuple[str, ...]:
        options = as_words(dict(sorted(self.options.items())), BACKBONE_OPTIONS)
        return (self.step.recipe, self.backbone, self.dataset, *options)

    @property
    def _varied(self) -> dict[str, Any]:
        """The options that tell it from others, those of the parent's backbone first."""
        inherited = self.parent.options if self.parent else ()
        parts = [name for name in inherited if name in BACKBONE_OPTIONS]
        names = [name for name in parts if name not in self.axes]
        return {name: self.options[name] for name in (*names, *self.axes) if name in self.options}

    def changed_files(self) -> list[str]:
        """Return the user's files, as arguments, that changed since the sweep was expanded; see `or_its_imports`."""
        changed = [argument for argument, content in self.contents if _content(argument) != content]
        return [argument + or_its_imports(Path(argument.rpartition(":")[0])) for argument in changed]

    def portable_argv(self) -> tuple[str, ...]:
        """Return the arguments without the folders of users' files and of the sweep, so that both can be moved."""
        files = dict(self.contents)
        return tuple(Path(argument).name if argument in files else argument for argument in self.argv(Path()))

    def argv(self, out: Path) -> tuple[str, ...]:
        """Return the module and its arguments as `python -m` takes them; runs, weights and features go below `out`.

        Options without effect beside the job's other options are omitted: the command would reject them.
        """
        outputs: dict[str, Any] = {"out": out / "runs", "result_file": result_file(out, self.name)}
        if self.step.kind == "pretrain":
            # only this sweep writes to the folder: weights of this name in it were trained on other data
            outputs |= {"name": self.name, "export_dir": out / "weights", "replace": True}
        else:
            outputs |= {"feature_cache": out / "features"}
        if self.parent is not None:
            outputs |= {"weights": out / "weights" / self.parent.name}
        module = "transfer.pretrain" if self.step.kind == "pretrain" else "transfer.run"
        inputs = {"backbone": self.backbone, "dataset": self.dataset, "seeds": self.seed}
        idle = idle_options(noted(BackboneSpec, Needs) | noted(self.step.task.options, Needs), self.options)
        acting = {name: value for name, value in self.options.items() if name not in idle}
        words = (*as_words(inputs), *as_words(acting, BACKBONE_OPTIONS), *as_words(outputs))
        return (module, self.step.recipe, *words)


def result_file(out: Path, name: str) -> Path:
    """Return the file to which the command of a job writes the names of its runs."""
    return out / "jobs" / f"{name}.json"


def expand(sweep: SweepFile) -> list[SweepJob]:
    """Return all jobs, each after the one that it needs. Rows that share a job get one.

    Raises:
        UsageError: a combination is impossible, or there is nothing to run.
    """
    jobs: dict[str, SweepJob] = {}
    for row in sweep.rows:
        for job in _row_jobs(sweep, row):
            jobs.setdefault(job.name, job)
    if not jobs:
        raise UsageError(f"sweep {sweep.name}: no job at tier {sweep.tier}; use another --tier")
    return list(jobs.values())


def _row_jobs(sweep: SweepFile, row: dict[str, Any]) -> Iterator[SweepJob]:
    """Yield the jobs of the steps that a row names and of those that they need; of all steps if it names none."""
    needed = {name for name in row if name in sweep.steps} or {*sweep.steps}
    for name, step in reversed(sweep.steps.items()):  # each comes after the one from whose weights it starts
        needed |= {step.after} if name in needed and step.after else set()
    jobs: dict[str, list[SweepJob]] = {}
    for name, step in sweep.steps.items():
        if name in needed:
            parents = jobs[step.after] if step.after else [None]
            jobs[name] = list(chain.from_iterable(_step_jobs(step, row, parent) for parent in parents))
            yield from jobs[name]


def _step_jobs(step: Step, row: dict[str, Any], parent: SweepJob | None) -> Iterator[SweepJob]:
    """Yield a job for each backbone, dataset, seed and combination of the grid."""
    parts = {*BACKBONE_OPTIONS} - {"weights", "weights_key", "weights_size"}
    inherited = {name: value for name, value in parent.options.items() if name in parts} if parent else {}
    if parent and parent.options.get("smoke") and "smoke" not in step.options:
        inherited["smoke"] = True  # a run that starts from a smoke run's weights is a smoke run
    backbones = step.backbone or ((parent.backbone,) if parent else ())
    seeds = step.seeds if step.seeds is not None else (parent.seed if parent else 0,)
    axes = {**step.grid, **row.get(step.name, {})}
    varied = tuple(dict.fromkeys(chain.from_iterable(map(options_of, axes))))
    fixed = inherited | {name: value for name, value in step.options.items() if name not in varied}
    if parent and "weights" in (*fixed, *varied):
        trained = f"the step starts from those of {parent.step.name!r}"
        raise UsageError(f"steps.{step.name}: `weights` cannot be set: {trained}; remove `weights`, or `after`")
    for backbone, dataset, seed in product(backbones, step.dataset, seeds):
        for values in product(*axes.values()):
            options = dict(fixed)
            for axis, value in zip(axes, values):
                names = options_of(axis)
                options |= {axis: value} if len(names) == 1 else zip(names, value, strict=True)
            if options.get("smoke") is False:  # a flag that is not set
                del options["smoke"]
            yield SweepJob(step, backbone, dataset, seed, options, varied, parent, str(row.get("label") or ""))


def _content(argument: str, folder: Path = Path(), depth: int = 3) -> str:
    """Return the sha256 of the user's file that an argument names, or "" if it names none.

    Changed files thus give new jobs. A YAML file includes the files that it names, relative to its own folder.
    """
    path = folder / (argument.rpartition(":")[0] if ".py:" in argument else argument)
    if path.suffix not in (".py", ".yaml", ".yml") or not path.is_file():
        return ""
    if path.suffix == ".py":
        return file_digest(path)
    content = path.read_bytes()
    names = re.findall(r"[^\s\"',:\[\]{}]+\.(?:py|ya?ml)\b", content.decode(errors="replace")) if depth else ()
    inner = "".join(_content(name, path.parent, depth - 1) for name in names)
    return hashlib.sha256(content + inner.encode()).hexdigest()
