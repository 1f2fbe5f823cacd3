"""The runs that a command plans, one per dataset and seed: what identifies them, and records that stand for them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from backbones.archs import ARCHS, timm_names
from backbones.weights.locate import head_digest
from transfer.cli.command import WEIGHTS_WORDS, Command, run_of_weights
from transfer.cli.options import PretrainRunOptions
from transfer.core import user_code
from transfer.core.errors import UserError, count, shortened
from transfer.core.exports import WEIGHTS, pretraining_facts
from transfer.core.files import check_writable
from transfer.core.options import Added, Execution, Needs, idle_options, noted, plain
from transfer.core.settings import config_names, write_yaml
from transfer.data.spec import dataset_names, manifest_digest, resolve_dataset
from transfer.data.splits.manifest import named_files
from transfer.engine.options import RESOLVED
from transfer.engine.outcome import rule_of
from transfer.evaluation.environment import source_state
from transfer.evaluation.preflight import ResolvedInputs
from transfer.evaluation.users_metrics import UsersMetric, load_metrics
from transfer.evaluation.weights_export import check_target, target_of
from transfer.records.baselines import copied_from, find_baseline
from transfer.records.protocol import per_process, processes, trains
from transfer.records.record import Record, RunKey
from transfer.records.store import Store, StoredRun, missing_files
from transfer.task import Task


def absolute_path(argument: str, names: Collection[str] = ()) -> str:
    """Return an argument that is a path as an absolute path, and any other as it is; so are names of the suite, even
    where a folder is called the same.
    """
    path, colon, name = argument.rpartition(":") if ".py:" in argument else (argument, "", "")
    is_path = argument not in names and Path(path).exists()
    return str(Path(path).resolve()) + colon + name if is_path else argument


def _content_digest(path: Path) -> str:
    """Return the digest of a file or folder that an option names, from names, sizes and contents as for datasets."""
    files = named_files(path)
    names = files.names if path.is_dir() else ["."]  # a file counts by its content, however it is named
    return manifest_digest(zip(names, files.sizes.tolist(), files.contents))


@dataclass(frozen=True)
class PlannedRun:
    """A run of a command on one dataset and with one seed."""

    command: Command
    task: Task
    inputs: ResolvedInputs
    dataset_arguments: tuple[str, ...]
    """How the command named the dataset, or with `--joint` those that are joined."""
    dataset: Any
    seed: int
    precision: str
    """The resolved precision of training; it has no meaning where nothing trains."""
    eval_precision: str
    device_type: str
    """cpu or cuda."""

    @property
    def trains(self) -> bool:
        """Whether the run trains, so that the precision of training means something."""
        return hasattr(self.command.options, "precision") and trains(vars(self.command.options))

    @cached_property
    def metrics(self) -> list[UsersMetric]:
        """The metrics of the user's own. Raises the errors of `load_metrics`."""
        return load_metrics(self.command.run.metric)

    @cached_property
    def user_code(self) -> dict[str, dict[str, str]]:
        """The files of the parts of this run that are the user's, besides the backbone's; see `Record.user_code`."""
        specs = [resolve_dataset(name) for name in self.dataset_arguments if name.endswith((".yaml", ".yml"))]
        part = "method" if isinstance(self.command.run, PretrainRunOptions) else "task"
        files = {part: self.task.file}
        files |= {f"reader {spec.name}" if self.command.joined else "reader": spec.reader for spec in specs}
        files |= {f"metric {metric.name}": metric.file for metric in self.metrics}
        return {part: {"file": file, "sha256": user_code.loaded_digest(file)} for part, file in files.items() if file}

    @cached_property
    def run_key(self) -> RunKey:
        """Everything that changes a score, without options of how the run is executed."""
        run, dataset = self.command.run, self.dataset
        options, kind = plain(self.command.options), type(self.command.options)
        options |= {name: _content_digest(path) for name, path in self._paths.items()}
        untrained = options.get("epochs") == 0  # then nothing of the training is counted
        not_counted = {*idle_options(noted(kind, Needs), options)} if untrained else set()
        not_counted |= {name for name, added in noted(kind, Added).items() if options[name] == added.recorded}
        training = {"precision": self.precision, "outcome_rule": rule_of(self.command.options)} if self.trains else {}
        content = self.task.content(dataset, self.command.options)
        head = head_digest(self.inputs.spec.weights) if untrained else ""
        digests = {part: code["sha256"] for part, code in self.user_code.items()}
        # a file that an option names is identified by its content, not by its path
        not_counted |= {*RESOLVED, *noted(kind, Execution), *content}
        options = {name: value for name, value in options.items() if name not in not_counted}
        return RunKey(
            ({"content": content} if content else {})
            | ({"user_code": digests} if digests else {})
            | {
                "task": self.task.name,
                "task_version": self.task.version,
                "backbone": self.inputs.spec.identity(),
                "weights_id": self.inputs.weights_id,
                **({"head": head} if head else {}),
                "dataset": {"name": dataset.name, "version": dataset.version, "digest": dataset.digest},
                "options": options,
                **training,
                "eval_precision": self.eval_precision,
                # no entry for a GPU, so that its records from before there was one keep their keys
                **({"device_type": "cpu"} if self.device_type == "cpu" else {}),
                "seed": self.seed,
                "smoke": run.smoke,
                "subset": run.subset,
            }
        )

    @property
    def _paths(self) -> dict[str, Path]:
        """The files and folders that options name."""
        return {name: value for name, value in vars(self.command.options).items() if isinstance(value, Path)}

    @property
    def baseline(self) -> Path | None:
        """The folder of `--baselines` with a finished run of this key; None if there is none."""
        run = self.command.run
        used = isinstance(run, PretrainRunOptions) or self.command.joined
        used |= bool(getattr(self.command.options, "test_dataset", ()))
        weights = used and run.save_weights == "last"
        return find_baseline(run.baselines, self.run_id, self.run_key, weights=weights)

    def check_files(self) -> None:
        """Raise Replaced for an image, or a file that an option names, which has changed since the run was planned."""
        for path in self._paths.values():
            named_files(path).check()
        if hasattr(self.dataset, "check_unchanged"):  # that of a user's task may have none
            self.dataset.check_unchanged()

    def check_target(self) -> None:
        """Raise UserError when the weights of a pretraining are not in WEIGHTS/NAME and could not get there."""
        run = self.command.run
        assert isinstance(run, PretrainRunOptions)
        target = target_of(run, self.inputs.spec.name, self.seed)
        if (target / WEIGHTS).is_file() and pretraining_facts(target).get("identity") == self.run_key.digest:
            return
        check_writable(run.export_dir, "--export-dir")
        if not run.replace:
            check_target(target, self.run_key.digest, self.options, self.task.options)

    @property
    def run_id(self) -> str:
        """The name of the run's folder."""
        return self.run_key.run_id(self.task.name, self.dataset.name, self.inputs.spec.name)

    @property
    def options(self) -> dict[str, Any]:
        """All options as plain values, for this dataset and this seed."""
        command = self.command
        options = plain(command.run) | plain(command.backbone) | plain(command.options)
        datasets, backbones = dataset_names(), {*config_names("backbones"), *ARCHS, *timm_names()}
        options["dataset"] = [absolute_path(name, datasets) for name in self.dataset_arguments]
        options |= {"backbone": absolute_path(command.run.backbone, backbones), "seeds": [self.seed]}
        options |= {part: getattr(self.inputs.spec, part) for part in self.inputs.spec.files if options.get(part)}
        options["pos_embed_interp"] = self.inputs.spec.pos_embed_interp  # whether the spec or the command set it
        weights = command.backbone.weights[0]
        run = run_of_weights(weights, command.run.out)
        options["weights"] = str(run.resolve()) if run else absolute_path(weights, WEIGHTS_WORDS)
        if "test_dataset" in options:
            options["test_dataset"] = [absolute_path(name, datasets) for name in options["test_dataset"]]
        if self.task.file and "method" in options:
            options["method"] = self.task.file
        options["metric"] = [metric.file for metric in self.metrics]
        options |= {name: str(path.resolve()) for name, path in self._paths.items()}
        for name, value in vars(command.options).items():
            if isinstance(value, str) and value.endswith((".yaml", ".yml")):
                options[name] = absolute_path(value)
        options |= {"data": str(Path(options["data"]).resolve()) if options["data"] else None}
        del options["result_file"]  # of the command as a whole
        if options.get("resize", 0) is None:
            options["resize"] = self.preprocessing.get("resize")
        return options

    @property
    def preprocessing(self) -> dict[str, Any]:
        """How evaluated images become the model's input; see `Task.preprocessing`."""
        facts, channels = self.task.preprocessing(self.command.options), self.inputs.spec.in_chans
        return facts and facts | {"channels": "RGB" if channels == 3 else channels}

    @property
    def options_yaml(self) -> str:
        """The options that repeat the run."""
        # options of the recipe keep the value None; elsewhere None means that the option was not set
        recipe = plain(self.command.options)
        # `resize` as it was given, which is what the run key has
        values = self.options | {key: recipe[key] for key in ("resize",) if key in recipe}
        spec = self.inputs.spec
        if values["weights"] == "config" and spec.weights in ("random", f"weights/{spec.name}"):
            values["weights"] = absolute_path(spec.weights, WEIGHTS_WORDS)  # a name depends on the folder
        left_out = {key for key, value in values.items() if value is None} - recipe.keys()
        notes = noted(type(self.command.run), Execution) | noted(type(self.command.options), Execution)
        left_out |= {key for key, note in notes.items() if not note.repeated}
        return f"# {self.task.repeat()}\n" + write_yaml({key: values[key] for key in values if key not in left_out})

    @property
    def about(self) -> dict[str, Any]:
        """The provenance that is written into an export of the run."""
        dataset = {name: getattr(self.dataset, name) for name in ("name", "version", "counts", "digest")}
        marks: dict[str, Any] = {"dirty": source_state()[1], "origin": self.inputs.origin, "seed": self.seed}
        marks |= {"smoke": self.command.run.smoke, "subset": self.command.run.subset}
        provenance: dict[str, Any] = {"run": self.run_id, "identity": self.run_key.digest, "recipe": self.command.task}
        provenance["protocol"] = self.run_key.config_digest
        provenance["preprocessing"] = self.preprocessing
        return provenance | {
            "started_from": self.inputs.weights_id,
            "dataset": dataset,
            **marks,
            "options": self.options,
        }


def planned_runs(
    command: Command, task: Task, inputs: ResolvedInputs, precisions_and_device: tuple[str, str, str]
) -> list[PlannedRun]:
    """Return a run for each dataset and seed.

    What identifies them is settled now: files may be replaced before the last one begins.

    Args:
        precisions_and_device: the precisions of training and of scoring, and cpu or cuda.

    Raises:
        UserError: what a pretraining is to leave has no place, see `PlannedRun.check_target`.
    """
    runs = list[PlannedRun]()
    for arguments, dataset in inputs.datasets:
        fitted = command.fit_data(task, inputs.spec, dataset)
        runs += [
            PlannedRun(fitted, task, inputs, arguments, dataset, seed, *precisions_and_device)
            for seed in command.run.seeds
        ]
    for planned in runs:
        _ = planned.run_key  # a cached property: the contents of files are read now
        if task.from_scratch:
            planned.check_target()
    return runs


@dataclass(frozen=True)
class RunFailed:
    """A run that ended without a record, and the error that ended it."""

    run_id: str
    error: UserError


@dataclass
class Evaluation:
    """The result of a command: the records in order, and the runs that failed."""

    records: list[Record] = field(default_factory=list)
    failures: list[RunFailed] = field(default_factory=list)

    def add(self, other: "Evaluation") -> None:
        """Add the result of another command of this process."""
        self.records += other.records
        self.failures += other.failures

    @property
    def exit_status(self) -> int:
        """1 when something failed (2 when all failures are usage errors), else 3 when a training failed, else 0."""
        if self.failures:
            return min(failure.error.exit_status for failure in self.failures)
        return 3 if any(record.training_failed for record in self.records) else 0


def reuse_messages(record: Record, planned: PlannedRun, store: Store, data_world: int) -> list[str]:
    """Return the lines that say which record stands for a run, and how its making differs from this command.

    Args:
        data_world: how many processes share the images of a batch.
    """
    run_id, world = planned.run_id, processes(record)
    remarks = ""
    if world not in (None, data_world):  # whose scores are not those of other numbers of processes
        axes = " and ".join(per_process(record))
        remarks = f" (made by {count(world, 'process', 'es')}, each of which sees {axes} by itself)"
    if (excluded := record.dataset.get("skipped", 0)) != planned.dataset.skipped:
        remarks += f" (made when {excluded} images were unreadable, now {planned.dataset.skipped})"
    if source := copied_from(store.folder(run_id)):
        remarks += f" (copied from {source})"
    lines = [f"{run_id}: has a record, reused{remarks}"]
    missing = missing_files(StoredRun(store.folder(run_id), record))
    if missing and record.shared is None:
        lines.append(f"{run_id}: without {shortened(missing)}, which the run wrote; delete its folder to run it again")
    if record.dirty and not source_state()[1]:
        repeat = f"delete {store.folder(run_id)} to repeat the run with the present files"
        lines.append(f"{run_id}: made with files changed since their commit; {repeat}")
    return lines
