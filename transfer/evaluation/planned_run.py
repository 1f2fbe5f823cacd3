"""Cells of a command, one data set and one seed each: what identifies one, and its record."""

from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from backbones.data.spec import manifest_digest
from backbones.engine.context import Context, peak_mib
from backbones.settings import plain, write_yaml
from tasks.task import Scores, Task
from transfer.cli.command import Command
from transfer.cli.ignored_options import ignored_options, known, usual
from transfer.cli.options import EXECUTION
from transfer.evaluation.environment import environment, source_state
from transfer.evaluation.preflight import ResolvedInputs
from transfer.records.store import Identity, Record

# Options that say where a run is written or how a command was put together, not what to repeat.
NOT_REPEATED = ("config", "out", "features", "dry_run", "replace")
# Options of which it counts what they came to on this machine.
RESOLVED = ("precision", "eval_precision")


def _lasting(words: str) -> str:
    """A path that still holds from another working directory; other words as they are."""
    path, colon, name = words.rpartition(":") if ".py:" in words else (words, "", "")
    # A folder of the same name as a data set or a backbone does not turn that name into a path.
    named = Path(path).is_file() or ("/" in path and Path(path).exists())
    return str(Path(path).resolve()) + colon + name if named else words


@lru_cache
def _content(path: Path) -> str:
    """What identifies a file or a folder named in an option: the names and sizes within, as for data sets."""
    files = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
    return manifest_digest((entry.relative_to(path).as_posix(), entry.stat().st_size) for entry in files)


@dataclass(frozen=True)
class PlannedRun:
    """One run to be: a data set (with the words that named it) and a seed, under a command."""

    command: Command
    task: Task
    present: ResolvedInputs
    words: str
    dataset: Any
    seed: int
    precision: str
    """Of training, as resolved; without meaning where nothing trains."""
    eval_precision: str

    @property
    def values(self) -> dict[str, Any]:
        """What `transfer.cli.ignored_options` is asked of."""
        options = plain(self.command.options) | {"dataset": self.dataset.name}
        return known(self.task.name, options, self.present.spec.as_dict())

    @cached_property
    def identity(self) -> Identity:
        """Everything that changes a score, and nothing about how the run is executed."""
        run, dataset = self.command.run, self.dataset
        options = plain(self.command.options)
        for name, value in vars(self.command.options).items():
            if isinstance(value, Path):
                options[name] = _content(value)
        without = ignored_options(self.values)
        precision = {"precision": self.precision} if "precision" in options else {}
        content = self.task.content(dataset, self.command.options)
        # a file that an option names counts by its content, wherever it lies
        uncounted = {*without, *RESOLVED, *EXECUTION, *content}
        options = {name: value for name, value in options.items() if name not in uncounted}
        return Identity(
            ({"content": content} if content else {})
            | {
                "task": self.task.name,
                "task_version": self.task.version,
                "backbone": usual(self.present.spec.identity(), without),
                "weights_id": self.present.weights_id,
                "dataset": {"name": dataset.name, "version": dataset.version, "digest": dataset.digest},
                "options": options,
                **precision,
                "eval_precision": self.eval_precision,
                "seed": self.seed,
                "smoke": run.smoke,
                "subset": run.subset,
            }
        )

    @property
    def run_id(self) -> str:
        """The name of the run's folder."""
        return self.identity.run_id(self.task.name, self.dataset.name, self.present.spec.name)

    @property
    def options(self) -> dict[str, Any]:
        """All options as plain values, for this data set and seed alone."""
        command = self.command
        flat = plain(command.run) | plain(command.backbone) | plain(command.options)
        flat |= {"dataset": [_lasting(self.words)], "seeds": [self.seed], "backbone": _lasting(command.run.backbone)}
        flat |= {part: getattr(self.present.spec, part) for part in self.present.spec.files if flat.get(part)}
        flat["pos_resample"] = self.present.spec.pos_resample  # whoever said it
        flat["weights"] = _lasting(flat["weights"])
        for name, value in vars(command.options).items():
            if isinstance(value, Path):
                flat[name] = str(value.resolve())
            elif isinstance(value, str) and value.endswith((".yaml", ".yml")):
                flat[name] = _lasting(value)
        flat |= {"data": str(Path(flat["data"]).resolve()) if flat["data"] else None}
        return {name: value for name, value in flat.items() if name not in ("receipt", "idle_flags")}  # of the command

    @property
    def options_yaml(self) -> str:
        """The options that repeat the run."""
        recipe = plain(self.command.options)  # repeated whole; elsewhere None means that nothing was said
        said = {key: value for key, value in self.options.items() if value is not None or key in recipe}
        kept = {key: value for key, value in said.items() if key not in NOT_REPEATED}
        return f"# {self.task.repeat()}\n" + write_yaml(kept)

    @property
    def about(self) -> dict[str, Any]:
        """What an export of the run says about where it comes from."""
        dataset = {name: getattr(self.dataset, name) for name in ("name", "version", "counts", "digest")}
        marks: dict[str, Any] = {"dirty": source_state()[1], "origin": self.present.origin, "seed": self.seed}
        marks |= {"smoke": self.command.run.smoke, "subset": self.command.run.subset}
        origin = {"run": self.run_id, "identity": self.identity.digest, "recipe": self.command.task}
        origin["protocol"] = self.identity.without("seed").digest
        return origin | {"started_from": self.present.weights_id, "dataset": dataset, **marks, "options": self.options}

    def record(self, context: Context, scores: Scores, started: str) -> Record:
        """The record of the finished run; `context` holds what came of it."""
        cost, dataset = context.cost, self.dataset
        hours = (cost.train_seconds + cost.eval_seconds) * context.ranks.world / 3600
        facts = ("name", "version", "counts", "digest", "skipped")
        return Record(
            run_id=self.run_id,
            identity=self.identity.digest,
            protocol=self.identity.without("seed").digest,
            task=self.task.name,
            task_version=self.task.version,
            dataset={name: getattr(dataset, name) for name in facts},
            backbone=context.backbone,
            weights_id=self.present.weights_id,
            untrained=context.untrained,
            options=self.options,
            seed=self.seed,
            smoke=self.command.run.smoke,
            subset=self.command.run.subset,
            outcome=asdict(context.outcome),
            scores=scores,
            primary=self.task.primary,
            metrics={name: asdict(self.task.metric(name)) for name in {**self.task.metrics, **scores}},
            cost=cost.summary() | {"peak_mib": peak_mib(context.device), "device_hours": hours},
            environment=environment(context, trains="precision" in self.options) | {"started": started},
            notes=context.notes,
            details=context.details,
            export=context.exported,
            identity_content=self.identity.content,
            origin=self.present.origin,
        )
