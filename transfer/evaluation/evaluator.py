"""The one evaluator: every task, data set and seed goes through here, from the presence of files to the record."""

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch

from backbones.engine.context import Context, Cost, auto_threads, auto_workers, choose_device
from backbones.engine.outcome import Outcome
from backbones.errors import UsageError, UserError
from backbones.runtime import dist
from backbones.runtime.files import write_atomic
from backbones.runtime.precision import choose_precisions
from tasks.task import Task
from transfer.cli.command import Command
from transfer.cli.ignored_options import apart
from transfer.evaluation.environment import source_state
from transfer.evaluation.planned_run import PlannedRun
from transfer.evaluation.preflight import find_all
from transfer.records.grouping import value_label
from transfer.records.protocol import processes
from transfer.records.store import ERROR, OPTIONS, Record, Store


@dataclass
class Evaluation:
    """What came of a command: records in order, and the runs that failed."""

    records: list[Record]
    failures: list[int]
    """Exit statuses of the runs that failed."""
    first_rank: bool

    @property
    def exit_status(self) -> int:
        """1 when something failed (2 when only words were wrong), else 3 when a training broke down, else 0."""
        if self.failures:
            return min(self.failures)
        return 3 if any(record.training_failed for record in self.records) else 0


def evaluate(command: Command, task: Task, guard: Callable[[PlannedRun], None] | None = None) -> Evaluation:
    """Runs every cell of a command that has no record yet; the failure of one does not keep the next from running.

    Args:
        guard: sees every cell before the first one runs, and may raise.

    Raises:
        UserError: before anything runs, with all that is missing in one message.
        Stopped: a signal came; the state of the cell is saved.
    """
    context, store = make_context(command), Store(command.run.out)
    if context.ranks.token_ranks > 1 and not task.shares_tokens:
        raise UsageError(f"--sequence-parallel: {task.name} has no training that shares the tokens of an image")
    dist.start(context.ranks, context.device)
    try:
        present = find_all(command, task, context, store)
        result = Evaluation([], [], context.ranks.first)
        cells = [
            PlannedRun(command, task, present, words, dataset, seed, context.precision, context.eval_precision)
            for words, dataset in present.datasets
            for seed in command.run.seeds
        ]
        if guard:
            for cell in cells:
                guard(cell)
        for cell in cells:
            _evaluate_cell(cell, context, store, result)
        return result
    finally:
        dist.stop()


def make_context(command: Command) -> Context:
    """Where and how a command executes: device, precision, ranks, threads and workers."""
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
        track=run.track,
        features=run.features,
        save_weights=run.save_weights == "last",
    )


def _evaluate_cell(cell: PlannedRun, context: Context, store: Store, result: Evaluation) -> None:
    try:
        record = _record(cell, context, store)
        result.records.append(record)
        if context.ranks.first and not record.training_failed:
            cell.task.finish(store.folder(cell.run_id), cell.dataset, cell.command.options)
    except Exception as error:
        if context.ranks.world > 1:
            raise  # the other ranks may be inside a collective; torchrun ends them
        text = str(error) if isinstance(error, UserError) else traceback.format_exc()
        context.say(f"error: {cell.run_id}: {text}")
        result.failures.append(error.exit_status if isinstance(error, UserError) else 1)


def _record(cell: PlannedRun, context: Context, store: Store) -> Record:
    """The cell's record: the one that exists, or a new one. The first rank of a job decides for all."""
    run_id, identity = cell.run_id, cell.identity

    def waiting() -> None:
        context.say(f"{run_id}: another process is at it; waiting for its record")

    with contextlib.ExitStack() as held:
        found = None
        if context.ranks.first:
            found = store.find(run_id, identity)
            if found is None:
                held.enter_context(store.lock(run_id, waiting))
                found = store.find(run_id, identity)
        found = dist.broadcast_object(found)
        if found is None:
            return _run(cell, context, store)
    context.say(f"{run_id}: has a record, reused{_otherwise(found, cell, context)}")
    if found.dirty and not source_state()[1]:
        folder = store.folder(run_id)
        context.say(f"{run_id}: files changed since their commit made it; without {folder} these files make it anew")
    return found


def _otherwise(found: Record, cell: PlannedRun, context: Context) -> str:
    """How a record was made otherwise than this command would make it, in brackets."""
    world, own, said = processes(found), cell.options, []
    if world not in (None, context.ranks.data.world):
        seen = " and ".join(apart(cell.values))
        said.append(f"by {world} process{'es' * (world != 1)}, each of which sees {seen} by itself")
    names = (name for name in ("judge_after", "validate_at") if name in own)
    said += [
        f"with --{name.replace('_', '-')} {value_label(found.options.get(name))}"
        for name in names
        if found.options.get(name) != own[name]
    ]
    return f" (made {', '.join(said)})" if said else ""


def _run(cell: PlannedRun, shared: Context, store: Store) -> Record:
    """Runs the task and writes the record; `error.txt` says what went wrong if it cannot."""
    folder, started = store.folder(cell.run_id), datetime.now(UTC).isoformat(timespec="seconds")
    context = replace(
        shared,
        seed=cell.seed,
        folder=folder,
        identity=cell.identity.digest,
        cost=Cost(),
        outcome=Outcome(),
        notes=list(shared.notes),
        details={},
        exported=None,
        about=cell.about,
    )
    context.say(f"{cell.run_id}: starts")
    try:
        if context.ranks.first:
            write_atomic(folder / OPTIONS, cell.options_yaml.encode())  # says what an unfinished run is
        with context.signals():
            scores, outcomes = cell.task.run(cell.present.spec, cell.dataset, cell.command.options, context)
        wrong = cell.task.contradictions(scores)
        if wrong:
            raise RuntimeError(f"the scores contradict themselves, nothing is recorded: {'; '.join(wrong)}")
        record = cell.record(context, scores, started)
        if context.ranks.first:
            record = store.write(record, cell.options_yaml, outcomes)
    except Exception:
        if context.ranks.first:
            with contextlib.suppress(UserError):  # the disk may be what is full
                write_atomic(folder / ERROR, traceback.format_exc().encode())
        raise
    return dist.broadcast_object(record)
