"""The evaluator that every task, data set and seed passes through, from the search for files to the record."""

import contextlib
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from backbones.checkpoints.exports import EXPORT
from backbones.engine.checkpoint import STATE
from backbones.engine.context import Context, Cost, auto_threads, auto_workers, peak_mib
from backbones.engine.outcome import Outcome
from backbones.errors import UsageError, UserError
from backbones.runtime import dist
from backbones.runtime.device import choose_device
from backbones.runtime.files import write_atomic
from backbones.runtime.machine_errors import Situation, in_one_line, machine_error
from backbones.runtime.precision import choose_precisions
from backbones.runtime.user_faults import user_fault
from backbones.trackers.tracker import TrackedRun, Tracker
from backbones.trackers.tracking import tracking
from tasks.task import Outcomes, Scores, Task
from tasks.users_metrics import add_metrics
from transfer.cli.command import Command
from transfer.cli.ignored_options import per_process
from transfer.evaluation.environment import source_state
from transfer.evaluation.planned_run import PlannedRun
from transfer.evaluation.preflight import resolve_inputs
from transfer.evaluation.users_results import check_users_results
from transfer.records.labels import value_label
from transfer.records.protocol import processes
from transfer.records.store import ERROR, OPTIONS, RECORD, Record, Store


@dataclass(frozen=True)
class RunFailed:
    """A run that ended without a record, and the error that ended it."""

    run_id: str
    error: Exception

    @property
    def exit_status(self) -> int:
        """The exit status of a command that fails so."""
        return self.error.exit_status if isinstance(self.error, UserError) else 1


@dataclass
class Evaluation:
    """The result of a command: the records in order, and the runs that failed."""

    records: list[Record]
    failures: list[RunFailed]
    first_rank: bool

    @property
    def exit_status(self) -> int:
        """1 when something failed (2 when all failures are usage errors), else 3 when a training failed, else 0."""
        if self.failures:
            return min(failure.exit_status for failure in self.failures)
        return 3 if any(record.training_failed for record in self.records) else 0


@in_one_line()
def evaluate(
    command: Command, task: Task, check_run: Callable[[PlannedRun], None] | None = None, *, progress: bool = True
) -> Evaluation:
    """Execute every run of a command that has no record yet; the others go on when one fails.

    Args:
        check_run: is called with every planned run before the first one starts, and may raise.
        progress: whether bars and lines about the runs go to stderr.

    Raises:
        UserError: something is missing; raised before anything runs, with all that is missing in one message.
        Stopped: a signal arrived; the state of the run is saved.
    """
    context, store = replace(make_context(command), progress=progress, quiet=not progress), Store(command.run.out)
    if context.ranks.token_ranks > 1 and not task.shares_tokens:
        raise UsageError(f"--sequence-parallel: {task.name} has no training that shares the tokens of an image")
    dist.start(context.ranks, context.device)
    try:
        inputs = resolve_inputs(command, task, context, store)
        result = Evaluation([], [], context.ranks.first)
        planned_runs = [
            PlannedRun(command, task, inputs, argument, dataset, seed, context.precision, context.eval_precision)
            for argument, dataset in inputs.datasets
            for seed in command.run.seeds
        ]
        if check_run:
            for planned in planned_runs:
                check_run(planned)
        for planned in planned_runs:
            _evaluate_run(planned, context, store, result)
        return result
    finally:
        dist.stop()


def make_context(command: Command) -> Context:
    """Return where and how a command executes: device, precision, ranks, threads and workers."""
    run = command.run
    ranks = dist.ranks_from_environment(run.sequence_parallel)
    device = choose_device(run.device, ranks)
    workers = auto_workers(device, ranks) if run.workers is None else run.workers
    threads = auto_threads(run.threads, device, ranks, workers)
    torch.set_num_threads(threads.count)
    training, scoring = choose_precisions(command.options, device)
    return Context(
        device=device,
        precision=training,
        eval_precision=scoring,
        workers=workers,
        threads=threads,
        checkpoint_seconds=run.checkpoint_seconds,
        ranks=ranks,
        progress=True,
        features=run.features,
        save_weights=run.save_weights == "last",
    )


def _evaluate_run(planned: PlannedRun, context: Context, store: Store, result: Evaluation) -> None:
    try:
        record = _record(planned, context, store)
        result.records.append(record)
        if context.ranks.first and not record.training_failed:
            planned.task.finish(store.folder(record.run_id), planned.dataset, planned.command.options)
    except Exception as error:
        if context.ranks.world > 1:
            raise  # the other ranks may be inside a collective; torchrun ends them
        message = str(error) if isinstance(error, UserError) else traceback.format_exc()
        context.say(f"error: {planned.run_id}: {message}")
        result.failures.append(RunFailed(planned.run_id, error))


def _record(planned: PlannedRun, context: Context, store: Store) -> Record:
    """Return the run's existing record or a new one; the first rank decides for all ranks."""
    run_id, run_key = planned.run_id, planned.run_key

    def waiting() -> None:
        context.say(f"{run_id}: another process runs it; waiting for its record")

    with contextlib.ExitStack() as stack:
        record: Record | None = None
        if context.ranks.first:
            record = store.find(run_id, run_key) or store.of_older_names(run_id, run_key)
            if record is None:
                stack.enter_context(store.lock(run_id, waiting))
                record = store.find(run_id, run_key)
        record = dist.broadcast_object(record)
        if record is None:
            return _run(planned, context, store)
    if record.run_id != run_id:
        context.say(f"{run_id}: the same settings, under the former names of options, are {record.run_id}")
        run_id = record.run_id
    context.say(f"{run_id}: has a record, reused{_differences(record, planned, context)}")
    if record.dirty and not source_state()[1]:
        folder = store.folder(run_id)
        context.say(f"{run_id}: files changed since their commit made it; without {folder} these files make it anew")
    return record


def _differences(record: Record, planned: PlannedRun, context: Context) -> str:
    """Return, in brackets, how the reused record was made differently than this command would make it."""
    world, options, differences = processes(record), planned.options, []
    if world not in (None, context.ranks.data.world):
        axes = " and ".join(per_process(planned.values))
        differences.append(f"by {world} process{'es' * (world != 1)}, each of which sees {axes} by itself")
    names = (name for name in ("judge_after", "validate_at") if name in options)
    differences += [
        f"with --{name.replace('_', '-')} {value_label(record.options.get(name))}"
        for name in names
        if record.options.get(name) != options[name]
    ]
    return f" (made {', '.join(differences)})" if differences else ""


def _run(planned: PlannedRun, shared: Context, store: Store) -> Record:
    """Run the task and write its record; if that fails, the reason is written to `error.txt`."""
    folder, started = store.folder(planned.run_id), datetime.now(UTC).isoformat(timespec="seconds")
    context = replace(
        shared,
        seed=planned.seed,
        folder=folder,
        run_key=planned.run_key.digest,
        cost=Cost(),
        outcome=Outcome(),
        notes=list(shared.notes),
        details={},
        exported=None,
        about=planned.about,
    )
    context.say(f"{planned.run_id}: starts")
    try:
        if context.ranks.first:
            write_atomic(folder / OPTIONS, planned.options_yaml.encode())  # so that an unfinished run can be recognised
        with _tracking(planned, context) as context.tracker:
            with context.signals():
                scores, outcomes = planned.task.run(
                    planned.inputs.spec, planned.dataset, planned.command.options, context
                )
            if planned.task.file and context.ranks.first:
                check_users_results(planned.task, scores, outcomes)
            contradictions = planned.task.contradictions(scores)
            if contradictions:
                raise RuntimeError(
                    f"the scores contradict themselves, nothing is recorded: {'; '.join(contradictions)}"
                )
            if scores and context.ranks.first:
                scores, outcomes = _with_metrics(planned, scores, outcomes, folder)
            record = planned.record(context, scores, started)
            if context.ranks.first:
                record = store.write(record, planned.options_yaml, outcomes)
                context.tracker.attach(folder / RECORD, scores, context.outcome.status)
    except Exception as error:
        if context.ranks.first:
            with contextlib.suppress(UserError):  # the failure may be that the disk is full
                write_atomic(folder / ERROR, traceback.format_exc().encode())
        reported = machine_error(error, _situation(planned, context)) or user_fault(error, f" (see {folder / ERROR})")
        if reported:
            traceback.clear_frames(error.__traceback__)  # they hold the model, and the next run needs the memory
            raise reported from None
        raise
    shared_record: Record = dist.broadcast_object(record)
    return shared_record


def _with_metrics(planned: PlannedRun, scores: Scores, outcomes: Outcomes, folder: Path) -> tuple[Scores, Outcomes]:
    """Return scores and arrays with those of the user's metrics; an error says how to keep what was trained."""
    try:
        return add_metrics(planned.metrics, scores, outcomes)
    except Exception as error:
        if not getattr(planned.command.options, "epochs", 0) or not (folder / EXPORT).is_dir():
            raise
        reason = user_fault(error) or error
        kept = f"the trained weights are kept: --epochs 0 --weights {folder / EXPORT} scores them by a corrected metric"
        raise UserError(f"{reason}; {kept}") from error


def _situation(planned: PlannedRun, context: Context) -> Situation:
    """Return what a run that failed was doing, for the message."""
    assert context.folder is not None
    saved = (context.folder / STATE).exists()
    return Situation(planned.options, context.training, peak_mib(context.device), saved)


def _tracking(planned: PlannedRun, context: Context) -> AbstractContextManager[Tracker]:
    """Return the context of the tracker that `--tracker` names; only the first rank writes to it."""
    tags = {"task": planned.task.name, "dataset": planned.dataset.name, "backbone": planned.inputs.spec.name}
    assert context.folder is not None
    run = TrackedRun(planned.run_id, context.folder, planned.options, tags) if context.ranks.first else None
    return tracking(planned.command.run.tracker, run, context.note)
