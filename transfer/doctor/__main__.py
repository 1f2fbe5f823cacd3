"""`python -m transfer.doctor [data]`: versions, what this machine can do, which data sets are here; what mends each."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from backbones.errors import UsageError, UserError, did_you_mean
from backbones.settings import Positional, parse
from transfer.cli.command import exit_on_user_error
from transfer.doctor.check_result import CheckResult
from transfer.evaluation.environment import PACKAGES, package_version

EXTRAS = {
    "detection": ("onedl-mmengine", "onedl-mmcv", "onedl-mmdetection", "faster-coco-eval", "pycocotools"),
    "sweep": ("submitit",),
    "track": ("tensorboard",),
    "torchreid": ("torchreid", "gdown", "opencv-python-headless"),
}
# Distributions that install the same import names; the one installed last overwrites the other.
RIVALS = (("onedl-mmcv", "mmcv"), ("onedl-mmengine", "mmengine"), ("onedl-mmdetection", "mmdet"))
WORDS = ("data",)


@dataclass(kw_only=True)
class DoctorOptions:
    """Looks at everything; `python -m transfer.doctor data` at the data sets alone, and thoroughly."""

    data: Path | None = None
    """Folder with the data sets; else $TRANSFER_DATA."""


@dataclass(kw_only=True)
class DataOptions(DoctorOptions):
    """Which data sets to look at, or to fetch."""

    names: Positional[tuple[str, ...]] = ()
    """Names of configs/datasets, or YAML files; by default all shipped ones."""
    fetch: tuple[str, ...] = ()
    """Download these from their publishers into the data folder, where their licence permits it."""


def main(argv: list[str]) -> int:
    """Prints the findings; 1 when something is broken, or, of data sets alone, incomplete or not fetched."""
    return exit_on_user_error(_data if argv[:1] == ["data"] else _main, argv)


def _data(argv: list[str]) -> int:
    from transfer.doctor.datasets import fetch_all, look

    options = parse(DataOptions, argv[1:], prog="python -m transfer.doctor data")
    findings = fetch_all(options.fetch, options.data) if options.fetch else look(options.names, options.data)
    states = set()
    for finding in findings:
        print(finding)
        states.add(finding.state)
    return int(bool(states & {"broken", "incomplete"}))


def _main(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-"):
        raise UsageError(f"unknown word {argv[0]!r}{did_you_mean(argv[0], WORDS)} (`data`, or flags alone)")
    options = parse(DoctorOptions, argv, prog="python -m transfer.doctor")
    sections: dict[str, Callable[[], Iterator[CheckResult]]] = {
        "software": _software,
        "machine": _machine,
        "extras": _extras,
        "data sets": lambda: _datasets(options.data),
        "weights": _weights,
    }
    broken = False
    for title, look in sections.items():
        print(f"{title}:")
        for finding in _guarded(look):
            broken |= finding.state == "broken"
            print(finding)
    return 1 if broken else 0


def _guarded(look: Callable[[], Iterator[CheckResult]]) -> Iterator[CheckResult]:
    try:
        yield from look()
    except ImportError as error:
        yield CheckResult("broken", f"cannot look: {error}", "mend what is broken above first")


def _software() -> Iterator[CheckResult]:
    yield CheckResult("ok", f"python {sys.version.split()[0]}")
    for name in PACKAGES:
        found = package_version(name)
        yield (
            CheckResult("ok", f"{name} {found}")
            if found
            else CheckResult("broken", f"{name}: missing", "pip install -e .")
        )
    for name in ("torch", "torchvision", "timm"):
        try:
            importlib.import_module(name)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            # A CPU build of one and a CUDA build of the other do not load each other's operators.
            mend = "pip install --force-reinstall torch torchvision   (both from the same index)"
            yield CheckResult("broken", f"import {name}: {reason}", mend)
    found = package_version("timm")
    if found and not (1, 0, 31) <= _numbers(found) < (1, 1):
        yield CheckResult("broken", f"timm {found}: outside >=1.0.31,<1.1", "pip install 'timm>=1.0.31,<1.1'")
    for ours, theirs in RIVALS:
        if package_version(ours) and package_version(theirs):
            mend = f"pip uninstall -y {theirs} {ours} && pip install -e '.[detection]'"
            yield CheckResult("broken", f"{ours} and {theirs} are both installed and overwrite each other", mend)


def _numbers(text: str) -> tuple[int, ...]:
    digits = ("".join(filter(str.isdigit, part)) for part in text.split("+")[0].split(".")[:3])
    return tuple(int(part or 0) for part in digits)


def _machine() -> Iterator[CheckResult]:
    import torch

    from backbones.runtime.precision import choose_precision
    from backbones.runtime.threads import usable_cores

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield CheckResult("ok", f"{usable_cores()} usable cores of {os.cpu_count()}, {memory:.0f} GiB of memory")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            size = torch.cuda.get_device_properties(number).total_memory / 2**30
            yield CheckResult("ok", f"GPU {number}: {torch.cuda.get_device_name(number)}, {size:.0f} GiB")
        device = torch.device("cuda")
    else:
        build = torch.version.cuda
        mend = "" if build else "this torch is a CPU build; a CUDA build is needed for GPUs"
        yield CheckResult("absent", "GPU: torch sees none", mend)
        device = torch.device("cpu")
    precision = choose_precision("auto", device)
    speed = "" if precision == "bf16" else " (no native bf16: training takes about three times as long)"
    yield CheckResult("ok", f"precision auto is {precision} on {device.type}{speed}")


def _extras() -> Iterator[CheckResult]:
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if not package_version(name)]
        if missing:
            yield CheckResult("absent", f"{extra}: {', '.join(missing)} missing", f"pip install -e '.[{extra}]'")
        else:
            yield CheckResult("ok", f"{extra}: " + ", ".join(f"{name} {version(name)}" for name in packages))
            if extra == "detection":
                yield _operators()


def _operators() -> CheckResult:
    from tasks.detection.mmlab import ops_source

    told = {"compiled": "compiled ones of mmcv", "bridge": "built in, over torchvision's; no compiler needed"}
    return CheckResult("ok", f"operators of mmdetection: {told[ops_source()]}")


def _datasets(data: Path | None) -> Iterator[CheckResult]:
    from backbones.data.spec import dataset_names, find_root, resolve_dataset

    others = []
    for name in dataset_names():
        spec = resolve_dataset(name)
        try:
            if "generator" not in spec.options:
                yield CheckResult("ok", f"{name}: {find_root(spec, data)}")
        except UserError:
            others.append(name)
    if others:
        mend = "`python -m transfer.doctor data` looks at each thoroughly, also for Parquet files and hub copies"
        yield CheckResult("absent", f"no folder found of {', '.join(others)}", mend)


def _weights() -> Iterator[CheckResult]:
    from backbones.spec import backbone_names, resolve
    from backbones.weights import find_weights

    for name in backbone_names():
        try:
            yield CheckResult("ok", f"{name}: {find_weights(resolve(name)).weights_id}")
        except UserError as error:
            yield CheckResult("absent", name, str(error))


def command() -> None:
    """Run the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
