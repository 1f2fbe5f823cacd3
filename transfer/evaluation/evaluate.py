"""Command -> records: those that exist, runs that the evaluator makes for the others, and scores on other datasets."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from transfer.cli.command import Command
from transfer.core.errors import UsageError, UserError, print_safe, shortened
from transfer.core.exports import EXPORT
from transfer.data.spec import resolve_dataset
from transfer.data.splits.integrity import overlap_notes
from transfer.evaluation.planned_run import Evaluation, reuse
from transfer.evaluation.preflight import ResolvedInputs, find_inputs, open_dataset
from transfer.records.record import Record
from transfer.task import Task


def evaluate_each(commands: list[tuple[Command, ResolvedInputs]], task: Task, *, progress: bool = True) -> Evaluation:
    """Evaluate commands, one after the other, and then what each run trained on the datasets of `--test-dataset`, and
    with `--joint` on each of its own, without training.

    Every such score is that of `--epochs 0 --weights RUN` on the test set: the same run, found again either way.

    Args:
        commands: each with its inputs.
        progress: whether bars and lines about the runs go to stderr.

    Raises:
        UserError: as `evaluate_command`; also if a test set holds training images, see `overlap_notes`. Nothing of that
            command has run then.
    """
    result = Evaluation()
    for command, inputs in commands:
        joined = command.run.dataset if command.joined else ()
        names = (*joined, *getattr(command.options, "test_dataset", ()))
        if names:
            _check(command, task, names, _printer(progress))
        trained = evaluate_command(command, task, inputs, progress)
        result.add(trained)
        for record in trained.records if names else []:
            if not record.training_failed:
                scoring = _scoring(command, record, names)
                test_inputs = find_inputs(scoring, task, scoring.resolved(task.from_scratch))
                result.add(evaluate_command(scoring, task, test_inputs, progress))
    return result


def _check(command: Command, task: Task, names: tuple[str, ...], say: Callable[[str], None]) -> None:
    flag = "--joint" if command.joined else "--test-dataset"
    if command.options.epochs == 0:
        raise UsageError("--test-dataset: with --epochs 0 nothing is trained; set the dataset with --dataset")
    if command.run.save_weights == "none":
        raise UsageError(f"{flag} evaluates the weights that a run saves: remove --save-weights none")
    trained = [open_dataset(resolve_dataset(name), command, task) for name in command.run.dataset]
    scoring = replace(command, options=replace(command.options, epochs=0))
    tested = [open_dataset(resolve_dataset(name), scoring, task) for name in names]
    for training in trained:
        for test in tested:
            if command.joined and test.digest == training.digest:
                continue  # checked when it was opened
            if unknown := [name for name in getattr(test, "classes", ()) if name not in training.classes]:
                has_none = f"{training.name} has no class {shortened(unknown, 3)}"
                raise UserError(f"--test-dataset {test.name}: {has_none}; remove these from the dataset")
            images = test.images() | {"train": training.images()["train"]}
            for line in overlap_notes(f"{flag} {test.name}", images, trained=training.name):
                say(f"{test.name}: {line}")  # the run is the same without a training: no note of it


def _scoring(command: Command, record: Record, names: tuple[str, ...]) -> Command:
    """Return the command that scores what a run trained on the test sets."""
    run = replace(command.run, dataset=names, seeds=(record.seed,))
    backbone = replace(command.backbone, weights=(str(command.run.out / record.run_id / EXPORT),))
    options = replace(command.options, epochs=0, test_dataset=(), **({"joint": False} if command.joined else {}))
    if getattr(options, "detector", "") is None:  # its default depends on the data, and here on that of the training
        options = replace(options, detector=record.details["detector"])
    return replace(command, run=run, backbone=backbone, options=options, fitted=())


def _printer(progress: bool) -> Callable[[str], None]:
    return partial(print_safe, file=sys.stderr) if progress else lambda text: None


def evaluate_command(command: Command, task: Task, inputs: ResolvedInputs, progress: bool) -> Evaluation:
    """Execute every run of a command that has no record yet; the others continue if one fails.

    Args:
        inputs: what the command needs, found without its data.
        progress: whether bars and lines about the runs go to stderr.

    Raises:
        UserError: something is missing; raised before anything runs, with all that is missing in one message.
        Stopped: a signal arrived; the state of the run is saved.
    """
    if not command.run.dry_run and (finished := reuse(command, task, inputs, _printer(progress))):
        return finished
    from transfer.evaluation.evaluator import evaluate_runs

    return evaluate_runs(command, task, inputs, progress)
