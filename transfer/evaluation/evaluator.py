"""Command -> records: those that exist, and runs for the others; then scores on the datasets of `--test-dataset`."""

import contextlib
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import torch

from backbones.diagnostics.recorder import BlockWatch
from transfer.cli.command import WEIGHTS_WORDS, Command
from transfer.core.errors import DeviceLost, MissingInput, Notice, UsageError, UserError, count, print_safe, shortened
from transfer.core.exports import EXPORT
from transfer.core.files import write_atomic
from transfer.core.machine_errors import in_one_line
from transfer.core.process import ranks_from_environment
from transfer.data.loading.loader import steps_taken
from transfer.data.loading.workers import start_server
from transfer.data.spec import resolve_dataset
from transfer.data.splits.integrity import overlap_notes
from transfer.data.understood import statement, understood
from transfer.engine import dist
from transfer.engine.checkpoint import PREVIOUS, STATE
from transfer.engine.context import Context, auto_threads, auto_workers, peak_mib
from transfer.engine.cost import Cost
from transfer.engine.device import choose_device, choose_precisions, device_name
from transfer.engine.outcome import Outcome
from transfer.engine.trackers import TrackedRun, tracking
from transfer.evaluation.environment import environment
from transfer.evaluation.planned_run import (
    Evaluation,
    PlannedRun,
    RunFailed,
    absolute_path,
    planned_runs,
    reuse_messages,
)
from transfer.evaluation.preflight import ResolvedInputs, check_inputs, find_inputs, open_dataset
from transfer.evaluation.users_metrics import add_metrics, check_users_results
from transfer.records.baselines import copy_baseline, protocol_mismatch
from transfer.records.record import Record
from transfer.records.store import ERROR, OPTIONS, RECORD, Store, StoredRun, has_state, without_weights
from transfer.task import Scores, Task


def evaluate_each(commands: list[tuple[Command, ResolvedInputs]], task: Task, *, progress: bool = True) -> Evaluation:
    """Evaluate commands, one after the other, and then what each run trained on the datasets of `--test-dataset`, and
    with `--joint` on each of its own, without training.

    Every such score is that of `--epochs 0 --weights RUN` on the test set: the same run, found again either way.

    Args:
        commands: each with its inputs.
        progress: whether bars and lines about the runs go to stderr.

    Raises:
        UserError: as `evaluate_runs`; also if a test set holds training images, see `overlap_notes`. Nothing of that
            command has run then.
    """
    result = Evaluation()
    for command, inputs in commands:
        joined = command.run.dataset if command.joined else ()
        names = (*joined, *getattr(command.options, "test_dataset", ()))
        for line in _checked_sets(command, task, names) if names else ():
            if progress:
                print_safe(line, file=sys.stderr)
        trained = evaluate_runs(command, task, inputs, progress)
        result.add(trained)
        for record in trained.records if names else []:
            if not record.training_failed:
                run = StoredRun(command.run.out / record.run_id, record)
                if not (run.folder / EXPORT).is_dir():
                    raise MissingInput(f"{without_weights(run)}; delete the folder to train again")
                scoring = _scoring(command, record, names)
                test_inputs = find_inputs(scoring, task, scoring.resolved(task.from_scratch))
                result.add(evaluate_runs(scoring, task, test_inputs, progress))
    return result


def _checked_sets(command: Command, task: Task, names: tuple[str, ...]) -> list[str]:
    """Check that test sets suit what a command trains on, and return lines on images of both."""
    flag = "--joint" if command.joined else "--test-dataset"
    if command.options.epochs == 0:
        raise UsageError("--test-dataset: with --epochs 0 nothing is trained; set the dataset with --dataset")
    if command.run.save_weights == "none":
        raise UsageError(f"{flag} evaluates the weights that a run saves: remove --save-weights none")
    trained = [open_dataset(resolve_dataset(name), command, task) for name in command.run.dataset]
    scoring = replace(command, options=replace(command.options, epochs=0))
    tested = [open_dataset(resolve_dataset(name), scoring, task) for name in names]
    lines = list[str]()
    for training in trained:
        for test in tested:
            if command.joined and test.digest == training.digest:
                continue  # checked when it was opened
            if unknown := [name for name in getattr(test, "classes", ()) if name not in training.classes]:
                has_none = f"{training.name} has no class {shortened(unknown, 3)}"
                raise UserError(f"--test-dataset {test.name}: {has_none}; remove these from the dataset")
            images = test.images() | {"train": training.images()["train"]}
            overlap = overlap_notes(f"{flag} {test.name}", images, trained=training.name)
            lines += [f"{test.name}: {line}" for line in overlap]
    return lines  # no notes of the run, which is the same without a training


def _scoring(command: Command, record: Record, names: tuple[str, ...]) -> Command:
    """Return the command that scores what a run trained on the test sets."""
    run = replace(command.run, dataset=names, seeds=(record.seed,))
    weights = str(command.run.out / record.run_id / EXPORT)
    backbone = replace(command.backbone, weights=(weights,), weights_key=None, weights_size=None)
    options = replace(command.options, epochs=0, test_dataset=(), **({"joint": False} if command.joined else {}))
    if getattr(options, "detector", "") is None:  # its default depends on the data, and here on that of the training
        options = replace(options, detector=record.details["detector"])
    return replace(command, run=run, backbone=backbone, options=options, fitted=())


def new_record(planned: PlannedRun, context: Context, scores: Scores, started: str) -> Record:
    """Return the record of the finished run from its scores and what `context` collected."""
    cost, dataset, backbone = context.cost, planned.dataset, context.backbone or planned.inputs.spec.as_dict()
    hours = (cost.train_seconds + cost.eval_seconds) * context.ranks.world / 3600
    facts = ("name", "version", "counts", "digest", "skipped")
    custom = {users.name: users.metric for users in planned.metrics}
    names = {**planned.task.metrics, **scores, **custom}
    return Record(
        run_id=planned.run_id,
        run_key=planned.run_key.digest,
        config_digest=planned.run_key.config_digest,
        task=planned.task.name,
        task_version=planned.task.version,
        dataset={name: getattr(dataset, name) for name in facts} | {"understood": understood(dataset)},
        backbone=backbone | {"weights": absolute_path(backbone["weights"], WEIGHTS_WORDS)},
        weights_id=planned.inputs.weights_id,
        untrained=context.untrained,
        options=planned.options,
        seed=planned.seed,
        smoke=planned.command.run.smoke,
        subset=planned.command.run.subset,
        outcome=asdict(context.outcome),
        scores=scores,
        primary=planned.task.primary,
        metrics={name: (custom.get(name) or planned.task.metric(name)).as_dict() for name in names},
        cost=cost.summary() | {"peak_mib": peak_mib(context.device), "device_hours": hours},
        environment=environment(context, trains=planned.trains) | {"started": started},
        notes=context.notes,
        details=context.details,
        export=context.exported,
        run_key_content=planned.run_key.content,
        origin=planned.inputs.origin,
        recipe=planned.command.task,
        user_code=planned.user_code,
    )


def evaluate_runs(command: Command, task: Task, inputs: ResolvedInputs, progress: bool) -> Evaluation:
    """Execute every run of a command that has no record yet; the others continue if one fails.

    Args:
        inputs: what the command needs, found without its data.
        progress: whether bars and lines about the runs go to stderr.

    Raises:
        UserError: something is missing; raised before anything runs, with all that is missing in one message.
        Stopped: a signal arrived; the state of the run is saved.
    """
    context, store = replace(make_context(command), progress=progress, quiet=not progress), Store(command.run.out)
    if context.ranks.token_ranks > 1 and not task.shares_tokens:
        raise UsageError(f"--sequence-parallel: {task.name} does not support sharding the tokens of an image")
    if context.on_gpu and context.workers:
        start_server(task.module)  # it imports for seconds, while the model is built
    dist.start(context.ranks, context.device)
    check_inputs(command, task, context, inputs)
    result = Evaluation()
    settled = (context.precision, context.eval_precision, context.device.type)
    for planned in planned_runs(command, task, inputs, settled):
        if command.run.dry_run:
            plan = _plan(planned, replace(context, folder=store.folder(planned.run_id)))
            begins = "resume" if has_state(store.folder(planned.run_id)) else "start"
            begins = f"be copied from {folder}" if (folder := planned.baseline) else begins
            recorded = store.find(planned.run_id, planned.run_key)
            would = "has a record, which would be reused" if recorded else f"would {begins}"
            context.say("\n  ".join([f"{planned.run_id}: {would}", *plan, *planned.command.fitted]))
            continue
        _evaluate_run(planned, context, store, result)
    dist.stop()  # after an error the others may be inside a collective, which this would wait for
    return result


def make_context(command: Command) -> Context:
    """Return where and how a command executes: device, precision, ranks, threads and workers."""
    run = command.run
    ranks = ranks_from_environment(run.sequence_parallel)
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
        features=run.feature_cache,
        save_weights=run.save_weights == "last",
        watch=BlockWatch if getattr(command.options, "watch", "none") == "blocks" else None,
        notes=[*command.fitted],  # printed already
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
        # A killed loader process raises wherever the main thread is, even while `_run` reports the first error.
        folder = store.folder(planned.run_id)
        reported = in_one_line(error, saved=has_state(folder), more=f"see {folder / ERROR}")
        if isinstance(reported, DeviceLost):
            raise reported from None
        context.say(f"error: {planned.run_id}: {reported}")
        result.failures.append(RunFailed(planned.run_id, reported))


def _record(planned: PlannedRun, context: Context, store: Store) -> Record:
    """Return the run's existing record or a new one; the first rank decides for all ranks."""
    run_id, run_key = planned.run_id, planned.run_key
    waiting = f"{run_id}: another process runs it; waiting for its record"
    with contextlib.ExitStack() as stack:
        record: Record | None = None
        if context.ranks.first:
            record = store.find(run_id, run_key)
            if record is None:
                stack.enter_context(store.lock(run_id, lambda: context.say(waiting)))
                record = store.find(run_id, run_key)
                if record is None and (folder := planned.baseline):
                    copy_baseline(folder, store, run_id)
                    record = store.find(run_id, run_key)
        record = dist.broadcast_object(record)
        if record is None:
            return _run(planned, context, store)
    for line in reuse_messages(record, planned, store, context.ranks.data.world):
        context.say(line)
    return record


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
        details={"preprocessing": planned.preprocessing} if planned.preprocessing else {},
        exported=None,
        about=planned.about,
        weights_id=planned.inputs.weights_id,
        head_digest=planned.run_key.content.get("head", ""),
    )
    if context.on_gpu:
        torch.cuda.reset_peak_memory_stats(context.device)
    context.say("\n  ".join([f"{planned.run_id}: starts", *_plan(planned, context)]))
    for line in (*getattr(planned.dataset, "notes", ()), *planned.command.fitted):  # a user's data need not have notes
        context.note(f"{planned.dataset.name}: {line}")
    baselines = planned.command.run.baselines
    if baselines and (mismatch := protocol_mismatch(baselines, planned.run_key, planned.task.name)):
        context.note(mismatch)
    try:
        if context.ranks.first:
            write_atomic(folder / OPTIONS, planned.options_yaml.encode())  # so that an unfinished run can be recognised
        task, spec, dataset = planned.task, planned.inputs.spec, planned.dataset
        tags = {"task": task.name, "dataset": dataset.name, "backbone": spec.name}
        run = TrackedRun(planned.run_id, folder, planned.options, tags) if context.ranks.first else None
        with tracking(planned.command.run.tracker, run, context.note) as context.tracker, _notices(context):
            with context.signals():
                scores, outcomes = task.execute(spec, dataset, planned.command.options, context)
            try:
                planned.check_files()
            except UserError:  # a file was replaced, and the state was trained on both
                for state in (STATE, PREVIOUS):
                    (folder / state).unlink(missing_ok=True)
                raise
            if planned.task.file and context.ranks.first:
                check_users_results(planned.task, scores, outcomes)
            if scores and context.ranks.first:
                scores, outcomes = add_metrics(planned.metrics, scores, outcomes)
            record = new_record(planned, context, scores, started)
            if context.ranks.first:
                record = store.write(record, planned.options_yaml, outcomes)
                context.tracker.attach(folder / RECORD, scores, context.outcome.status)
    except (Exception, SystemExit) as error:  # a user's file may call sys.exit
        if context.ranks.first:
            with contextlib.suppress(UserError):  # the failure may be that the disk is full
                write_atomic(folder / ERROR, traceback.format_exc().encode())
        reported = in_one_line(error, saved=has_state(folder), more=f"see {folder / ERROR}")
        if reported is not error:
            traceback.clear_frames(error.__traceback__)  # they hold the model, and the next run needs the memory
            raise reported from None
        raise
    return dist.broadcast_object(record)


@contextlib.contextmanager
def _notices(context: Context) -> Iterator[None]:
    """Make a note of each `Notice` within, once; other warnings are shown as they are."""
    with warnings.catch_warnings():  # also forgets what has been said in the run before
        show: Any = warnings.showwarning
        warnings.showwarning = lambda text, *rest: (
            context.note(str(text)) if isinstance(text, Notice) else show(text, *rest)
        )
        yield


def _plan(planned: PlannedRun, context: Context) -> list[str]:
    """Return lines on what is about to run: where, on how much data, for how long, and where to."""
    precision = (f"{context.precision}, evaluated in " if planned.trains else "") + context.eval_precision
    processes = f"{context.ranks.world} processes, " if context.ranks.world > 1 else ""
    options = planned.command.options
    threads = context.threads
    most = "" if threads.requested or threads.count == 1 or context.on_gpu else "up to "  # see `Threads.for_model`
    lines = [
        f"{device_name(context.device)}: {processes}{precision}; threads: {most}{threads.count} ({threads.reason}); "
        f"{context.workers} image-loading processes",
        *(f"{planned.dataset.name}: {line}" for line in statement(planned.dataset)),
    ]
    if planned.trains:
        images = getattr(options, "num_identities", 0) * getattr(options, "num_instances", 0)
        images = getattr(options, "batch_size", images)
        of_step = f", {images} images per step" if images else ""
        steps = planned.task.epoch_steps(planned.dataset, options)
        of_epoch = f" of {steps:,} steps, {steps_taken(steps, options.epochs):,} in all" if steps else ""
        lines.append(f"{count(options.epochs, 'epoch')}{of_epoch}{of_step}")
    return [*lines, f"written to {context.folder}"]
