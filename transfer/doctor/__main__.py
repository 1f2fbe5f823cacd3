"""`python -m transfer.doctor [COMMAND]` checks software, machine, datasets and weights, and prints fixes.

Its commands have modules of their own.
"""

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from backbones.spec import resolve
from transfer.cli.entry import exit_on_user_error, package_version
from transfer.cli.help import read_options
from transfer.core.errors import UsageError, UserError, print_safe, unknown
from transfer.core.machine_errors import install_command
from transfer.core.settings import config_names
from transfer.doctor.datasets import CheckResult, check_datasets, fetch_all
from transfer.doctor.options import BackboneCheckOptions, DataOptions, DoctorOptions, GpuOptions, SpeedOptions
from transfer.evaluation.environment import RECORDED_PACKAGES

EXTRAS = {
    "parquet": ("datasets", "pyarrow"),
    "fast": ("opencv-python-headless",),
    "detection": ("onedl-mmengine", "onedl-mmcv", "onedl-mmdetection", "faster-coco-eval"),
    "sweep": ("submitit",),
    "track": ("tensorboard", "wandb"),
    "torchreid": ("torchreid", "gdown", "opencv-python-headless"),
}
# Distributions that install the same import names, so that the one installed last overwrites the other.
RIVALS = (("onedl-mmcv", "mmcv"), ("onedl-mmengine", "mmengine"), ("onedl-mmdetection", "mmdet"))


USAGE = """usage: python -m transfer.doctor [COMMAND] [options]

  [--data FOLDER]              check software, machine, datasets and weights
  data [NAME ...]              read datasets completely, or download them
  backbone NAME                check a backbone or a part, such as your own stem
  speed --backbone NAME        measure how fast this machine trains
  gpu                          check a GPU, and print a table for an issue

COMMAND --help lists its options. Exit status: 0; 1 a check failed; 2 wrong arguments."""


def main(argv: list[str] | None = None) -> int:
    """Print the results; return 1 when something is broken, with `data` also when a set is incomplete, and with
    `backbone` when a check failed.
    """
    return exit_on_user_error(_main, argv)


def _main(argv: list[str]) -> int:
    if {"-h", "--help"} & {*argv[:1]}:
        print_safe(USAGE)
        return 0
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    if name not in COMMANDS:
        raise unknown("command", name, [*COMMANDS][1:], "; or options")
    kind, command = COMMANDS[name]
    return command(read_options(kind, argv[bool(name) :], f"python -m transfer.doctor {name}".strip()))


def _backbone(options: BackboneCheckOptions) -> int:
    from transfer.testing import check_backbone

    arguments = {name: value for name, value in vars(options).items() if value is not None}
    factory = arguments.pop("name")
    report = check_backbone(factory, on_result=lambda result: print_safe(f"  {result}", flush=True), **arguments)
    print_safe(report.summary)
    return int(not report.ok)


def _run(module: str, options: Any) -> int:
    """Run the command of a module, which imports torch."""
    return importlib.import_module(module).main(options)


def _data(options: DataOptions) -> int:
    if options.look and len(options.names) != 1:
        raise UsageError("--look: name one dataset")
    if options.fetch:
        return _print(fetch_all(options.fetch, options.data), ("absent", "incomplete", "broken"))
    return _print(check_datasets(options.names, options.data, options.look), ("incomplete", "broken"))


def _check(options: DoctorOptions) -> int:
    sections = {
        "software": _software(),
        "machine": _machine(),
        "extras": _extras(),
        "datasets": _datasets(options.data),
        "weights": _weights(),
    }
    status = 0
    for title, results in sections.items():
        print_safe(f"{title}:")
        status |= _print(_without_errors(results), ("broken",))
    return status


def _print(results: Iterator[CheckResult], failed: Collection[str]) -> int:
    """Print results as they come; return the exit status, 1 if the state of one is among `failed`."""
    status = 0
    for result in results:
        print_safe(result)
        status |= result.state in failed
    return status


def _without_errors(results: Iterator[CheckResult]) -> Iterator[CheckResult]:
    try:
        yield from results
    except (ImportError, UserError) as error:  # such as a driver that is too old
        yield CheckResult("broken", f"cannot look: {error}")


def _software() -> Iterator[CheckResult]:
    yield CheckResult("ok", f"python {sys.version.split()[0]}")
    for name in RECORDED_PACKAGES:
        missing = CheckResult("broken", f"{name}: missing", "pip install -e .")
        if name == "triton":
            missing = CheckResult("absent", f"{name}: missing", "only attention on a GPU uses it")
        yield CheckResult("ok", f"{name} {installed}") if (installed := package_version(name)) else missing
    for name in ("torch", "torchvision", "timm"):
        try:
            importlib.import_module(name)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            # A CPU build of torch does not load the operators of a CUDA build of torchvision, and vice versa.
            fix = "pip install --force-reinstall torch torchvision   (both from the same index)"
            yield CheckResult("broken", f"import {name}: {reason}", fix)
    for maintained, original in RIVALS:
        if package_version(maintained) and package_version(original):
            fix = f"pip uninstall -y {original} {maintained} && {install_command('detection')}"
            yield CheckResult("broken", f"{maintained} and {original} are both installed and overwrite each other", fix)


def _machine() -> Iterator[CheckResult]:
    import torch

    from transfer.core.process import usable_cores
    from transfer.engine.device import choose_precision, why_no_gpu

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield CheckResult("ok", f"{usable_cores()} usable cores of {os.cpu_count()}, {memory:.0f} GiB of memory")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            size = torch.cuda.get_device_properties(number).total_memory / 2**30
            yield CheckResult("ok", f"GPU {number}: {torch.cuda.get_device_name(number)}, {size:.0f} GiB")
        device = torch.device("cuda")
    else:
        yield CheckResult("absent", "GPU", why_no_gpu())
        device = torch.device("cpu")
    precision = choose_precision("auto", device)
    speed = "" if precision == "bf16" else " (no native bf16: training takes about three times as long)"
    yield CheckResult("ok", f"precision auto is {precision} on {device.type}{speed}")


def _extras() -> Iterator[CheckResult]:
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if not package_version(name)]
        if missing:
            yield CheckResult("absent", f"{extra}: {', '.join(missing)} missing", install_command(extra))
        else:
            yield CheckResult("ok", f"{extra}: " + ", ".join(f"{name} {package_version(name)}" for name in packages))


def _datasets(data: Path | None) -> Iterator[CheckResult]:
    from transfer.data.spec import dataset_names, find_root, resolve_dataset

    absent = []
    for name in dataset_names():
        spec = resolve_dataset(name)
        try:
            if "generator" not in spec.options:
                yield CheckResult("ok", f"{name}: {find_root(spec, data)}")
        except UserError:
            absent.append(name)
    if absent:
        fix = "`python -m transfer.doctor data` looks at each thoroughly, also for Parquet files and hub copies"
        yield CheckResult("absent", f"no folder found of {', '.join(absent)}", fix)


def _weights() -> Iterator[CheckResult]:
    from backbones.weights.locate import find_weights

    for name in config_names("backbones"):
        try:
            yield CheckResult("ok", f"{name}: {find_weights(resolve(name)).weights_id}")
        except UserError as error:
            yield CheckResult("absent", name, str(error))


COMMANDS: dict[str, tuple[type[Any], Callable[[Any], int]]] = {
    "": (DoctorOptions, _check),
    "data": (DataOptions, _data),
    "backbone": (BackboneCheckOptions, _backbone),
    "speed": (SpeedOptions, partial(_run, "transfer.doctor.speed")),
    "gpu": (GpuOptions, partial(_run, "transfer.doctor.gpu")),
}


if __name__ == "__main__":
    sys.exit(main())
