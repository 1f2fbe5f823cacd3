"""`python -m transfer.sweep NAME|FILE [--tier TIER] [flags]` runs a grid of commands, one process each, and reports."""

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from transfer.core.errors import MissingInput, UsageError, attempt, errors_together, print_safe, shortened
from transfer.core.grouped import values_by_key
from transfer.core.options import Checked, Range
from transfer.core.user_code import VARIED_PARTS, builtin_names

if TYPE_CHECKING:
    from transfer.experiments.grid import SweepJob
    from transfer.experiments.sweep_file import SweepFile
    from transfer.launch import Launcher
    from transfer.measure.ratios import CostRatios
    from transfer.sweep.cost_estimate import Devices
    from transfer.sweep.lr_search import Searches
    from transfer.sweep.runner import Sweeper

USAGE = """usage: python -m transfer.sweep NAME|FILE [--tier smoke|reduced|full] [options]

`--list` shows the shipped sweeps, `--help-all` all options.

Compare a stem, an attention or both with others, by the same pretraining and the same tasks:
  python -m transfer.sweep bench --tier smoke --stem my_stem.py:MyStem --against conv patchify
  python -m transfer.sweep bench --tier full --stem xiao --attention relu --tasks reid --seeds 0 1
  ... --equal flops pretrains all of them with the same FLOPs instead of the same epochs
Use your data, change a step or a search, or run the sweep of a paper:
  ... --set pretrain.dataset=mine.yaml reid.dataset=people.yaml 'reid.lr=[0.001, 0.01]'
  python -m transfer.sweep stability --tier smoke --set search.budget=6
  python -m transfer.sweep scaled_relu_table4 --tier smoke --dry-run
Reproduce published numbers, each by one command:
  python -m transfer.sweep anchors --list

Rerun a command to resume it. Exit status: 0 every job has a result, 1 a job failed or was not run,
2 wrong arguments, 3 a training run failed (recorded), 143 stopped by a signal."""


@dataclass(kw_only=True)
class SweepOptions(Checked):
    """Run a sweep."""

    tier: str | None = None
    """Scale: smoke, reduced or full. A sweep that has several needs it."""
    stem: str | None = None
    """Stem of the variant to compare, named as in `transfer.run`. For sweeps such as bench."""
    attention: str | None = None
    """Attention of the variant to compare."""
    ffn: str | None = None
    """FFN of the variant to compare."""
    against: tuple[str, ...] = ()
    """Variants to compare it with, such as conv or stem=conv,attention=relu. Default: the backbone's own parts. A part
    that a variant does not name is the backbone's own. Folders and bundles of finished runs stand for the variants in
    them, unless others are named; runs with the same run key are copied instead of run."""
    equal: Literal["flops"] | None = None
    """Pretrain every variant with the training FLOPs of the first of --against, which has the recipe's epochs; the
    others get more or fewer. Only for pretraining: tasks keep their epochs."""
    tasks: tuple[str, ...] = ()
    """Tasks to run, by default all of the sweep."""
    seeds: tuple[int, ...] = ()
    """Seeds of the first steps, pretraining where there is one. Later steps take them over, unless their YAML has
    `seeds`."""
    set: tuple[str, ...] = ()
    """Settings as STEP.KEY=VALUE or search.KEY=VALUE. KEY is a key of the step in the YAML (such as dataset) or an
    option of its command; a list of values becomes an axis of the grid."""
    readings: Literal["one", "both"] = "one"
    """Readings of ambiguously reported learning rates to run: the first one, or both."""
    data: Path | None = None
    """Folder with the datasets, by default $TRANSFER_DATA."""
    out: Path | None = None
    """Folder of the sweep, by default sweeps/NAME-TIER. It gets runs, weights, features, jobs and report.html."""
    launcher: Literal["local", "slurm"] = "local"
    """Where jobs run: processes on this machine, or job arrays of a Slurm cluster."""
    workers: Annotated[int | None, Range(1)] = None
    """Jobs at once, by default --per-gpu on each GPU, one per core without GPUs, all on Slurm. It changes no result:
    threads per job stay as by default; `--set STEP.threads=N` changes them."""
    per_gpu: Annotated[int, Range(1)] = 1
    """Local jobs that share a GPU, for networks too small to fill one; each gets as large a share of its cores."""
    gpus: Annotated[int | None, Range(0)] = None
    """GPUs per job, by default as the sweep's YAML says. For a dry run they need not be here."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the jobs."""
    on_missing: Literal["run", "stop"] = "run"
    """What to do if jobs lack something: run the others, and list at the end what is missing, or start none."""
    dry_run: bool = False
    """Print jobs, commands, expected time and what is missing, build every model, and stop."""
    speed: Annotated[float | None, Range(1e-3)] = None
    """TFLOP/s that a GPU, or a core without GPUs, sustains, for the expected time. By default as measured by
    `transfer.doctor speed`, or assumed."""
    list: bool = False
    """Print the published numbers of NAME that can be reproduced, and which are, in --out [sweeps/NAME_*]."""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    from transfer.cli.entry import exit_on_user_error

    return exit_on_user_error(_main, argv, usage=USAGE, listed=("sweeps",))


def _main(argv: list[str]) -> int:
    from transfer.cli.help import read_options

    name, arguments = ("", argv) if argv[0] == "--help-all" else (argv[0], argv[1:])
    if name.startswith("-"):
        raise UsageError(f"the sweep comes first, before {name}\n{USAGE}")
    options = read_options(SweepOptions, arguments, "python -m transfer.sweep NAME")
    if options.list:
        from transfer.sweep.kits import kits_text

        folders = [options.out] if options.out else sorted(Path("sweeps").glob(f"{name}_*"))
        print_safe(kits_text(name, folders, options.speed))
        return 0
    options = replace(options, against=tuple(_imported(text, options) for text in options.against))
    print_safe(f"sweep {name}{f', tier {options.tier}' if options.tier else ''}", file=sys.stderr, flush=True)
    return _sweep(_read(name, options), options)


def _read(name: str, options: SweepOptions) -> "SweepFile":
    """Return the sweep that the command asks for. Raises UsageError that lists all mistakes."""
    from transfer.experiments.step import read_variants
    from transfer.experiments.sweep_file import read_sweep
    from transfer.records.baselines import baseline_variants, check_baselines

    check_baselines(_baselines(options))
    parts = {part: value for part in VARIED_PARTS if (value := getattr(options, part))}
    against = [text for text in options.against if not _is_folder(text)]
    if not against:
        own = ",".join(f"{part}={value}" for part, value in parts.items())
        against = [text for text in baseline_variants(_baselines(options), tuple(parts)) if text != own]
    with errors_together():
        variants = (attempt(read_variants, parts, against) if parts else None) or []
        sweep = read_sweep(name, options.tier, options.set, options.readings, tasks=options.tasks, seeds=options.seeds)
    if options.gpus is not None:
        gpus = {"gpus": options.gpus}
        steps = {step.name: replace(step, resources=step.resources | gpus) for step in sweep.steps.values()}
        sweep = replace(sweep, steps=steps)
    if sweep.vary is None and (parts or options.against or options.equal):
        flag = next(iter(parts), "against" if options.against else "equal")
        raise UsageError(f"--{flag}: sweep {name} has no variants to compare; use bench, or --set STEP.KEY=VALUE")
    if sweep.vary is not None and not parts:
        raise UsageError(f"sweep {name}: use --stem, --attention or --ffn for what to compare, as --stem mine.py:Stem")
    return sweep.comparing(variants) if sweep.vary else sweep


def _sweep(sweep: "SweepFile", options: SweepOptions) -> int:
    from transfer.experiments.grid import expand
    from transfer.sweep.lr_search import Searches
    from transfer.sweep.runner import Sweeper

    if options.equal:
        from transfer.sweep.equal_flops import with_equal_flops

        sweep = with_equal_flops(sweep)
    out = options.out or Path("sweeps") / (f"{sweep.name}-{sweep.tier}" if sweep.tiers else sweep.name)
    searches = Searches(sweep) if sweep.search else None
    jobs = searches.start() if searches else expand(sweep)
    launcher = None if options.dry_run else _launcher(options, out)
    missing = _announce(sweep, jobs, searches, out, options)
    not_run = _not_run(jobs, missing)
    runs = any(job.parent is None and job.name not in missing for job in jobs)
    if missing and (launcher is None or options.on_missing == "stop" or not runs):
        raise MissingInput(not_run)
    if launcher is None:
        return 0
    if missing:
        print_safe(not_run, file=sys.stderr, flush=True)
    sweeper = Sweeper(out, launcher, _extra(options))
    if searches:
        sweeper.on_end = searches.next_jobs
    sweeper.add(jobs)
    sweeper.leave_out(missing)
    if not _run(sweeper):
        print_safe(f"stopped; rerun the command to resume in {out}", file=sys.stderr)
        return 143
    status = _report(sweep, sweeper, searches, _cost_ratios(out, options))
    if missing:
        print_safe(not_run, file=sys.stderr)
    return 1 if missing else status


def _not_run(jobs: "Sequence[SweepJob]", missing: Mapping[str, Sequence[str]]) -> str:
    """Return a line for each thing that is missing, with the jobs that lack it; see `missing_inputs`."""
    lacking = values_by_key((text, job.title) for job in jobs for text in missing.get(job.name, ()))
    return "\n".join(f"not run: {shortened(titles, 2)}: {text}" for text, titles in lacking.items())


def _announce(
    sweep: "SweepFile", jobs: "Sequence[SweepJob]", searches: "Searches | None", out: Path, options: SweepOptions
) -> dict[str, list[str]]:
    """Print what will run and the expected time; in a dry run the commands, too. Return what is missing for jobs.

    Raises:
        UsageError: jobs cannot run; it lists what is missing, too. Where they will run on GPUs, models that cannot run
            are known only in a dry run, or by the jobs.
    """
    from transfer.sweep.cost_estimate import WorkEstimate, command, plan
    from transfer.sweep.earlier_results import done_file
    from transfer.sweep.inputs import JobData, missing_inputs

    stream, extra = None if options.dry_run else sys.stderr, _extra(options)
    print_safe(plan(sweep, jobs, out, searches.budget if searches else 0), file=stream, flush=True)
    waiting = list(jobs)
    if not options.dry_run:
        waiting = [job for job in jobs if not done_file(out, job).exists()]
    if not waiting:
        return {}
    data = JobData(extra)
    missing = missing_inputs(waiting, data, opens=options.dry_run)
    devices, opens = _devices(waiting, options), options.dry_run or options.launcher == "local"
    if options.launcher == "local" and (folders := _baselines(options)):
        from transfer.sweep.copies import planned_copies

        copied, text = planned_copies(waiting, data, folders)
        print_safe(text, file=stream, flush=True)
        waiting = [job for job in waiting if job.name not in copied]
    estimate = WorkEstimate(waiting, data if opens else None, builds=options.dry_run)
    times = dict.fromkeys(searches.group_of_job, searches.budget) if searches else {}
    if waiting:
        print_safe(estimate.text(devices, times), file=stream, flush=True)
    for job in jobs if options.dry_run else ():
        print_safe(f"\n# {job.title}\n{command(job, out, extra)}")
    if estimate.failures and (options.dry_run or devices.kind == "core"):
        number = sum(map(len, estimate.failed.values()))
        lines = [f"sweep {sweep.name}: {number} jobs cannot run:", estimate.failures, _not_run(jobs, missing)]
        raise UsageError("\n".join(filter(None, lines)))
    return missing


def _devices(jobs: "Sequence[SweepJob]", options: SweepOptions) -> "Devices":
    """Return the devices that jobs will run on. In a dry run, GPUs that are named or that a job needs count as here."""
    from transfer.core.process import usable_cores
    from transfer.launch.local import visible_gpus
    from transfer.sweep.cost_estimate import Devices, measured_speed

    unasked = 1 if options.launcher == "local" else 0  # Slurm gives a job no GPU that it does not ask for
    gpus, most = 0, max(int(job.step.resources.get("gpus", unasked)) for job in jobs)
    if options.device != "cpu" and options.gpus != 0:
        gpus = len(visible_gpus()) if options.launcher == "local" else most * (options.workers or len(jobs))
        if options.dry_run and (options.gpus or most > 1):  # without a GPU, one in a step's YAML means a core
            gpus = max(gpus, most)
    speed, source = (options.speed, "--speed") if options.speed else measured_speed(gpu=gpus > 0)
    return Devices("GPU" if gpus else "core", gpus or usable_cores(), speed, source)


def _cost_ratios(out: Path, options: SweepOptions) -> "CostRatios":
    """Return the costs measured earlier for the sweep; with the local launcher, missing ones are measured."""
    from transfer.measure.ratios import CostRatios
    from transfer.measure.steps import cost_ratios

    ratios = cost_ratios(options.device) if options.launcher == "local" else CostRatios()
    ratios.read(out)
    return ratios


def _launcher(options: SweepOptions, out: Path) -> "Launcher":
    if options.launcher == "slurm":
        from transfer.launch.slurm import SlurmLauncher

        return SlurmLauncher(out / "slurm", options.workers)
    from transfer.launch.local import LocalLauncher

    return LocalLauncher(options.workers, options.per_gpu)


def _imported(text: str, options: SweepOptions) -> str:
    """Import a bundle among `--against` and return the folder of its runs; return other texts as they are."""
    if not text.endswith(".zip"):
        return text
    from transfer.records.store import Store
    from transfer.verify.bundle import import_bundle

    folder = (options.out or Path("sweeps")) / "baselines" / Path(text).stem
    for conflict in import_bundle(Path(text), Store(folder)).conflicts:
        print_safe(conflict, file=sys.stderr)
    return str(folder)


def _baselines(options: SweepOptions) -> list[Path]:
    """Return the folders of records among `--against`."""
    return [Path(text) for text in options.against if _is_folder(text)]


def _is_folder(text: str) -> bool:
    """Return whether a text of `--against` names a folder; not where it is a part, as `conv` or `3Conv+1Proj@wD/8`."""
    if any(text in builtin_names(part) for part in VARIED_PARTS):
        return False
    return Path(text).is_dir() or ("/" in text and not re.search(r"[@=]|\.py:", text))


def _extra(options: SweepOptions) -> tuple[str, ...]:
    """Return the arguments of this command that every job's command gets."""
    data = ("--data", str(options.data)) if options.data else ()
    folders = _baselines(options)
    baselines = ("--baselines", *map(str, folders)) if folders else ()
    return (*data, *baselines, *(("--device", options.device) if options.device != "auto" else ()))


def _run(sweeper: "Sweeper") -> bool:
    """Run the jobs; return False when a signal stopped them, with their checkpoints saved."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # a closed terminal stops the sweep, unless it runs by nohup
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        sweeper.run()
        return True
    except KeyboardInterrupt:
        return False


def _report(sweep: "SweepFile", sweeper: "Sweeper", searches: "Searches | None", ratios: "CostRatios") -> int:
    from transfer.sweep.report import SweepReport

    report = SweepReport(sweep, sweeper, searches, ratios)
    print_safe(report.text(), flush=True)  # before anything is written: the disk may be full
    print_safe(f"page: {report.write_page()}", file=sys.stderr)
    failures = [progress for progress in sweeper.jobs.values() if progress.status == "failed"]
    failed = values_by_key((progress.reason.partition("; see ")[0], progress.job.title) for progress in failures)
    for reason, jobs in failed.items():
        print_safe(f"failed: {shortened(jobs, 2)}: {reason}; see {sweeper.out / 'jobs'}", file=sys.stderr)
    if failed:
        return 1
    return 3 if any(progress.training_failed for progress in sweeper.jobs.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
