"""Records that a command finds instead of making them. Imports no torch."""

from collections.abc import Callable

from transfer.cli.command import Command
from transfer.core.errors import UserError
from transfer.core.process import ranks_from_environment
from transfer.engine.options import precisions_without_torch
from transfer.evaluation.environment import source_state
from transfer.evaluation.planned_run import Evaluation, PlannedRun, RunFailed, planned_runs
from transfer.evaluation.preflight import ResolvedInputs, open_datasets
from transfer.records.per_process import per_process
from transfer.records.protocol import processes
from transfer.records.store import RECORD, Record, Store
from transfer.task import Task


def reuse(
    command: Command,
    task: Task,
    inputs: ResolvedInputs,
    check_run: Callable[[PlannedRun], None] | None,
    say: Callable[[str], None],
) -> Evaluation | None:
    """Return the finished records of all runs of a command, without torch where that can be.

    Nothing is said or raised unless all runs have records: the evaluator continues with the inputs.

    Args:
        task: its facts suffice.
        inputs: get the opened datasets.
        check_run: see `transfer.evaluation.evaluate.evaluate`.
        say: gets the lines for the user.

    Returns:
        The evaluation; None if a run has no record, or something is wrong that the evaluator will raise.
    """
    precisions = precisions_without_torch(command.options, command.run.device)
    has_records = any(command.run.out.glob(f"{task.name}-*/{RECORD}"))
    if precisions is None or not has_records or ranks_from_environment().world > 1:
        return None
    store = Store(command.run.out)
    try:
        open_datasets(inputs, command, task)
        runs = planned_runs(command, task, inputs, precisions)
        records = [store.find(planned.run_id, planned.run_key) for planned in runs]
        if None in records:
            return None
        for planned in runs if check_run else ():
            check_run(planned)  # type: ignore[misc]
    except UserError:
        return None  # the evaluator raises it, with all else that is wrong
    inputs.messages.deliver(say, say)
    result = Evaluation([record for record in records if record], [], first_rank=True)
    for planned, record in zip(runs, result.records, strict=True):
        for line in reuse_messages(record, planned, store, 1):
            say(line)
        try:
            finish(planned, record, store)
        except UserError as error:
            say(f"error: {planned.run_id}: {error}")
            result.failures.append(RunFailed(planned.run_id, error))
    return result


def finish(planned: PlannedRun, record: Record, store: Store) -> None:
    """Create the extra files of a run with scores, on which no score depends."""
    if not record.training_failed:
        planned.task.finish(store.folder(record.run_id), planned.dataset, planned.command.options)


def reuse_messages(record: Record, planned: PlannedRun, store: Store, data_world: int) -> list[str]:
    """Return the lines that say which record stands for a run, and how its making differs from this command.

    Args:
        data_world: how many processes share the images of a batch.
    """
    lines, run_id = [], planned.run_id
    lines.append(f"{run_id}: has a record, reused{_differences(record, planned, data_world)}")
    if record.dirty and not source_state()[1]:
        folder = store.folder(run_id)
        changed = f"{run_id}: made with files changed since their commit"
        lines.append(f"{changed}; delete {folder} to repeat the run with the present files")
    return lines


def _differences(record: Record, planned: PlannedRun, data_world: int) -> str:
    """Return, in brackets, that other numbers of processes would not give the scores of the reused record."""
    world = processes(record)
    if world in (None, data_world):
        return ""
    axes = " and ".join(per_process(record.task, record.options, record.backbone))
    return f" (made by {world} process{'es' * (world != 1)}, each of which sees {axes} by itself)"
