"""The one evaluator: every task, data set and seed goes through here, from the presence of files to the record."""

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch

from backbones.data.spec import resolve_dataset
from backbones.engine import dist
from backbones.engine.context import (
    Context,
    Cost,
    auto_workers,
    choose_device,
    choose_precision,
    peak_mib,
    usable_cores,
)
from backbones.engine.dist import ranks_from_environment
from backbones.engine.outcome import Outcome
from backbones.errors import UserError
from backbones.files import write_atomic
from backbones.settings import plain, write_yaml
from backbones.spec import BackboneSpec, resolve
from backbones.weights import find_weights
from tasks.task import Scores, Task
from transfer.cli import Command
from transfer.environment import environment
from transfer.results import ERROR, Identity, Record, Store


@dataclass
class Cell:
    """One data set and one seed."""

    dataset: Any
    seed: int
    identity: Identity
    run_id: str


@dataclass
class Evaluation:
    """What came of a command: records in order, and what failed."""

    records: list[Record]
    failures: list[str]
    first_rank: bool = True

    @property
    def exit_status(self) -> int:
        """1 when something failed, else 3 when a training broke down, else 0."""
        if self.failures:
            return 1
        return 3 if any(record.broke_down for record in self.records) else 0


def evaluate(command: Command, task: Task) -> Evaluation:
    """Runs every cell of a command that has no record yet.

    Raises:
        UserError: before anything runs, with all that is missing in one message.
        Stopped: a signal came; the state of the cell is saved.
    """
    ranks = ranks_from_environment()
    device = choose_device(command.run.device, ranks)
    torch.set_num_threads(command.run.threads or max(usable_cores() // ranks.local_world, 1))
    context = Context(
        device=device,
        precision=choose_precision(command.options.precision, device),
        workers=auto_workers(device, ranks) if command.run.workers is None else command.run.workers,
        checkpoint_seconds=command.run.checkpoint_seconds,
        ranks=ranks,
        progress=True,
        track=command.run.track,
    )
    dist.start(ranks, device)
    try:
        return _Evaluator(command, task, context).run()
    finally:
        dist.stop()


class _Evaluator:
    def __init__(self, command: Command, task: Task, context: Context):
        self.command, self.task, self.context = command, task, context
        self.store = Store(command.run.out)
        self.started = datetime.now(UTC).isoformat(timespec="seconds")

    def run(self) -> Evaluation:
        """All cells, one after the other; the failure of one does not keep the next from running."""
        spec, weights_id, datasets = self._present()
        records, failures = [], []
        for dataset in datasets:
            for seed in self.command.run.seeds:
                cell = self._cell(spec, weights_id, dataset, seed)
                try:
                    records.append(self._record(cell, spec, weights_id))
                except Exception as error:
                    if self.context.ranks.world > 1:
                        raise  # the other ranks may be inside a collective; torchrun ends them
                    text = str(error) if isinstance(error, UserError) else traceback.format_exc()
                    self.context.say(f"error: {cell.run_id}: {text}")
                    failures.append(cell.run_id)
        return Evaluation(records, failures, self.context.ranks.first)

    def _present(self) -> tuple[BackboneSpec, str, list[Any]]:
        """The backbone, its weights' id and the opened data sets.

        Raises:
            UserError: with everything that is missing.
        """
        run = self.command.run
        problems: list[UserError] = []
        spec = resolve(run.backbone, **self.command.backbone.overrides())
        datasets, weights_id = [], "random"
        with _collected(problems):
            spec, weights_id = self._weights(spec)
        for name in run.dataset:
            with _collected(problems):
                datasets.append(self._open(name))
        for dataset in datasets:
            with _collected(problems):
                self.task.check(spec, dataset, self.command.options, self.context)
        with _collected(problems):
            self.store.prepare()
        if problems:
            kinds = {error.exit_status for error in problems}
            summary = UserError("\n".join(str(error) for error in problems))
            summary.exit_status = 2 if kinds == {2} else 1
            raise summary
        self._dataset_words = {dataset.name: name for dataset, name in zip(datasets, run.dataset)}
        return spec, weights_id, datasets

    def _open(self, name: str) -> Any:
        run = self.command.run
        return self.task.open(
            resolve_dataset(name),
            self.command.options,
            root=run.data,
            subset=run.subset,
            skip_unreadable=run.skip_unreadable,
        )

    def _weights(self, spec: BackboneSpec) -> tuple[BackboneSpec, str]:
        """The backbone with weights that exist, and their id. A smoke run may go on with random ones, and says so."""
        try:
            return spec, find_weights(spec).weights_id
        except UserError:
            if not self.command.run.smoke or self.command.backbone.weights != "config":
                raise
            self.context.note(f"smoke run with random weights: those of {spec.name} ({spec.weights}) are not here")
            return replace(spec, weights="random"), "random"

    def _cell(self, spec: BackboneSpec, weights_id: str, dataset: Any, seed: int) -> Cell:
        run, options = self.command.run, plain(self.command.options)
        content = {
            "task": self.task.name,
            "task_version": self.task.version,
            "backbone": spec.identity(),
            "weights_id": weights_id,
            "dataset": {"name": dataset.name, "version": dataset.version, "digest": dataset.digest},
            "options": {key: value for key, value in options.items() if key != "precision"},
            "precision": self.context.precision,
            "seed": seed,
            "smoke": run.smoke,
            "subset": run.subset,
        }
        identity = Identity(content)
        return Cell(dataset, seed, identity, identity.run_id(self.task.name, dataset.name, spec.name))

    def _record(self, cell: Cell, spec: BackboneSpec, weights_id: str) -> Record:
        """The cell's record: the one that exists, or a new one. The first rank of a job decides for all."""
        with contextlib.ExitStack() as held:
            found = None
            if self.context.ranks.first:
                found = self.store.find(cell.run_id, cell.identity)
                if found is None:
                    self._hold(held, cell)
                    found = self.store.find(cell.run_id, cell.identity)
            found = dist.broadcast_object(found)
            if found is not None:
                self.context.say(f"{cell.run_id}: has a record, reused")
                return found
            return self._run(cell, spec, weights_id)

    def _hold(self, held: contextlib.ExitStack, cell: Cell) -> None:
        def waiting() -> None:
            self.context.say(f"{cell.run_id}: another process is at it; waiting for its record")

        held.enter_context(self.store.lock(cell.run_id, waiting))

    def _run(self, cell: Cell, spec: BackboneSpec, weights_id: str) -> Record:
        folder = self.store.folder(cell.run_id)
        fresh: dict[str, Any] = {"cost": Cost(), "notes": list(self.context.notes), "outcome": Outcome()}
        context = replace(self.context, seed=cell.seed, folder=folder, identity=cell.identity.digest, **fresh)
        self.context.say(f"{cell.run_id}: starts")
        try:
            with context.signals():
                scores, outcomes = self.task.run(spec, cell.dataset, self.command.options, context)
            wrong = self.task.contradictions(scores)
            if wrong:
                raise RuntimeError(f"the scores contradict themselves, nothing is recorded: {'; '.join(wrong)}")
            record = self._make_record(cell, weights_id, context, scores)
            if context.ranks.first:
                self.store.write(record, self._options_yaml(cell), outcomes)
        except Exception as error:
            self._note_failure(cell, error)
            raise
        return dist.broadcast_object(record)

    def _note_failure(self, cell: Cell, error: Exception) -> None:
        """Leaves `error.txt` in the run's folder, if the disk takes it."""
        if self.context.ranks.first:
            with contextlib.suppress(UserError):
                write_atomic(self.store.folder(cell.run_id) / ERROR, traceback.format_exc().encode())

    def _make_record(self, cell: Cell, weights_id: str, context: Context, scores: Scores) -> Record:
        run, cost = self.command.run, context.cost
        seconds = cost.train_seconds + cost.eval_seconds
        return Record(
            run_id=cell.run_id,
            identity=cell.identity.digest,
            protocol=cell.identity.without("seed").digest,
            task=self.task.name,
            task_version=self.task.version,
            dataset={
                "name": cell.dataset.name,
                "version": cell.dataset.version,
                "counts": cell.dataset.counts,
                "digest": cell.dataset.digest,
                "skipped": cell.dataset.skipped,
            },
            backbone=context.backbone,
            weights_id=weights_id,
            untrained=context.untrained,
            options=self._all_options(cell),
            seed=cell.seed,
            smoke=run.smoke,
            subset=run.subset,
            outcome=asdict(context.outcome),
            scores=scores,
            primary=self.task.primary,
            metrics={name: asdict(metric) for name, metric in self.task.metrics.items()},
            cost={
                **cost.summary(),
                "peak_mib": peak_mib(context.device),
                "device_hours": seconds * context.ranks.world / 3600,
            },
            environment=environment(context) | {"started": self.started},
            notes=context.notes,
        )

    def _all_options(self, cell: Cell) -> dict[str, Any]:
        command = self.command
        return (
            plain(command.run)
            | plain(command.backbone)
            | plain(command.options)
            | {"dataset": [self._dataset_words[cell.dataset.name]], "seeds": [cell.seed]}
        )

    def _options_yaml(self, cell: Cell) -> str:
        """Options that repeat this run: `python -m transfer.run <task> --config options.yaml`."""
        left_out = {"config", "out", "dry_run"}
        options = {key: value for key, value in self._all_options(cell).items() if key not in left_out}
        head = f"# python -m transfer.run {self.task.name} --config options.yaml\n"
        return head + write_yaml({key: value for key, value in options.items() if value is not None})


@contextlib.contextmanager
def _collected(problems: list[UserError]) -> Iterator[None]:
    """Collects an error meant for the user, so that all that is missing can be said at once."""
    try:
        yield
    except UserError as error:
        problems.append(error)
