"""`python -m transfer.sweep NAME|FILE [--tier TIER] [flags]` runs a grid of commands, one process each, and reports."""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from backbones.engine.options import check_ranges
from backbones.errors import UsageError, print_safe

if TYPE_CHECKING:
    from transfer.launch.base import Launcher
    from transfer.report.tables.cost_ratios import CostRatios
    from transfer.sweep.definition.sweep_file import SweepFile
    from transfer.sweep.lr_search import Searches
    from transfer.sweep.runner import Sweeper

USAGE = """usage: python -m transfer.sweep NAME|FILE [--tier smoke|reduced|full] [flags]
       python -m transfer.sweep --help-all     all flags
       python -m transfer.sweep --list         the shipped sweeps

examples:
  python -m transfer.sweep demo
  python -m transfer.sweep scaled_relu_table4 --tier smoke
  python -m transfer.sweep bench --tier smoke --stem my_stem.py:Stem --against conv patchify
  python -m transfer.sweep stability --tier reduced --data FOLDER --set pretrain.stem='[patchify, conv]'
  python -m transfer.sweep mine.yaml --launcher slurm --dry-run

exit status: 0 every cell has scores, 3 a training broke down (recorded), 1 a cell failed, 2 wrong arguments,
143 stopped by a signal; the same command goes on"""


_SCALES = {"smoke": "embedded data, in minutes", "reduced": "on a workstation", "full": "the paper's, on a cluster"}


@dataclass(kw_only=True)
class SweepOptions:
    """Run a sweep."""

    tier: Literal["full", "reduced", "smoke"] | None = None
    """The scale: the paper's, a workstation's, or embedded data in minutes; a sweep that has several needs it."""
    out: Path | None = None
    """The folder of the sweep with runs, weights, features, cells and report.html; by default sweeps/NAME-TIER, or
    sweeps/NAME if the sweep has no tiers."""
    data: Path | None = None
    """The folder with the datasets; by default $TRANSFER_DATA."""
    launcher: Literal["local", "slurm"] = "local"
    """Where cells run: in worker processes on this machine, or as job arrays of a Slurm cluster."""
    workers: int | None = None
    """How many processes run at once, on Slurm how many elements of an array; by default one per GPU, or without GPUs
    one per core. Whatever it is, a cell has the threads of the default, and so the same last bits;
    `--set STEP.threads=N` gives others."""
    gpus: int | None = None
    """The number of GPUs of a cell; by default what the sweep says."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device on which cells compute."""
    set: tuple[str, ...] = ()
    """STEP.KEY=VALUE settings that replace the sweep's: a key of a step or an option of its command. A list of values
    becomes an axis of the grid."""
    readings: Literal["one", "both"] | None = None
    """Which readings to run of rates that a paper prints ambiguously: the first one, as shipped sweeps do, or both."""
    stem: str | None = None
    """The stem to compare, named as in `transfer.run`; only for sweeps that vary a part, such as bench."""
    attention: str | None = None
    """The attention to compare."""
    ffn: str | None = None
    """The FFN to compare."""
    against: tuple[str, ...] = ()
    """The values of the same part that it is compared with."""
    dry_run: bool = False
    """List the cells with their commands and predicted cost, build every model, and stop."""
    speed: float | None = None
    """The TFLOP/s that a device sustains, for the predicted hours; by default what `transfer.doctor speed` measured
    on this machine."""

    def __post_init__(self) -> None:
        check_ranges(self, 1, None, "workers")
        check_ranges(self, 0, None, "gpus")
        check_ranges(self, 1e-3, None, "speed")


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    from transfer.cli.command import exit_on_user_error

    return exit_on_user_error(_main, argv, usage=USAGE)


def _main(argv: list[str]) -> int:
    from backbones.settings import parse
    from transfer.sweep.definition.sweep_file import sweep_names

    if argv[0] == "--list":
        print_safe("sweeps:\n  " + "\n  ".join(sweep_names()))
        return 0
    name, arguments = ("", ["--help"]) if argv[0] == "--help-all" else (argv[0], argv[1:])
    if name.startswith("-"):
        raise UsageError(f"the sweep comes first, before {name}\n{USAGE}")
    options = parse(SweepOptions, arguments, prog="python -m transfer.sweep NAME")
    sweep = _read(name, options)
    if sweep.tiers and not options.tier:
        scales = ", or ".join(f"--tier {tier} ({_SCALES[tier]})" for tier in (*sweep.tiers, "full"))
        raise UsageError(f"sweep {sweep.name} has several scales; add {scales}")
    return _sweep(sweep, options)


def _read(name: str, options: SweepOptions) -> "SweepFile":
    from transfer.sweep.definition.sweep_file import read_sweep

    sweep = read_sweep(name, options.tier or "full", options.set, options.readings)
    parts = {part: value for part in ("stem", "attention", "ffn") if (value := getattr(options, part))}
    if sweep.vary is None:
        if parts or options.against:
            raise UsageError(f"--{next(iter(parts), 'against')}: sweep {name} has no part to vary; use bench, or --set")
        return sweep
    if len(parts) != 1 or not options.against or len({*parts.values(), *options.against}) <= len(options.against):
        raise UsageError(
            f"sweep {name}: give the part to compare and others, each once, as --stem mine.py:Stem --against conv"
        )
    ((part, value),) = parts.items()
    return sweep.comparing(part, value, options.against)


def _sweep(sweep: "SweepFile", options: SweepOptions) -> int:
    from transfer.sweep.definition.grid import expand
    from transfer.sweep.lr_search import Searches
    from transfer.sweep.runner import Sweeper

    out = options.out or Path("sweeps") / (f"{sweep.name}-{sweep.tier}" if sweep.tiers else sweep.name)
    searches = Searches(sweep) if sweep.search else None
    jobs = searches.start() if searches else expand(sweep)
    if options.dry_run:
        from transfer.sweep.cost_estimate import plan
        from transfer.sweep.model_check import build_all

        built = build_all(jobs)
        print_safe(plan(sweep, jobs, out, _extra(options), options.gpus, options.speed, searches, built))
        built.raise_if_any(sweep.name)
        return 0
    sweeper = Sweeper(out, _launcher(options, out), _extra(options), gpus=options.gpus)
    if searches:
        sweeper.on_end = searches.next_jobs
    sweeper.add(jobs)
    if not _run(sweeper):
        print_safe(f"stopped; the same command goes on from {out}", file=sys.stderr)
        return 143
    return _report(sweep, sweeper, searches, _cost_ratios(out, options))


def _cost_ratios(out: Path, options: SweepOptions) -> "CostRatios":
    """Return the costs that were measured for the sweep before; on this machine others are measured when needed."""
    from transfer.doctor.speed_pairs import cost_ratios
    from transfer.report.tables.cost_ratios import CostRatios

    ratios = cost_ratios(options.device) if options.launcher == "local" else CostRatios()
    ratios.read(out)
    return ratios


def _launcher(options: SweepOptions, out: Path) -> "Launcher":
    if options.launcher == "slurm":
        from transfer.launch.slurm import SlurmLauncher

        return SlurmLauncher(out / "slurm", options.workers)
    from transfer.launch.local import LocalLauncher

    return LocalLauncher(options.workers)


def _extra(options: SweepOptions) -> tuple[str, ...]:
    """Return the arguments of this command that are passed on to every cell's command."""
    data = ("--data", str(options.data)) if options.data else ()
    return (*data, *(("--device", options.device) if options.device != "auto" else ()))


def _run(sweeper: "Sweeper") -> bool:
    """Run the cells; return False when a signal stopped them, with their states saved."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # a closed terminal stops the sweep as well, unless it was started with nohup
    signals = [signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else [])]
    previous = {number: signal.signal(number, stop) for number in signals}
    try:
        sweeper.run()
        return True
    except KeyboardInterrupt:
        return False
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _report(sweep: "SweepFile", sweeper: "Sweeper", searches: "Searches | None", ratios: "CostRatios") -> int:
    from transfer.sweep.report import SweepReport

    report = SweepReport(sweep, sweeper, searches, ratios)
    print_safe(report.text(), flush=True)  # before anything is written: the disk may be full
    print_safe(f"page: {report.write_page()}", file=sys.stderr)
    failed = [progress for progress in sweeper.jobs.values() if progress.status == "failed"]
    for progress in failed:
        print_safe(f"failed: {progress.job.name}: {progress.reason}", file=sys.stderr)
    if failed:
        return 1
    return 3 if any(progress.training_failed for progress in sweeper.jobs.values()) else 0


def command() -> None:
    """Run the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
