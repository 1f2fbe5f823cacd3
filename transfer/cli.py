"""From the words of a command to checked options: names first, then YAML layers, then flags. Imports no torch."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from backbones.data.spec import dataset_names, resolve_dataset
from backbones.errors import UserError, WrongWords, nearest
from backbones.settings import CONFIGS, as_flags, config_names, flat_schema, parse, read_yaml


@dataclass(kw_only=True)
class RunOptions:
    """What to run and where. Only backbone, data set, seed, smoke and subset belong to a run's identity."""

    backbone: str = ""
    """A name of configs/backbones, a timm model, a YAML file, file.py:Name, or an exported folder."""
    dataset: tuple[str, ...] = ()
    """Names of configs/datasets, YAML files, or torchreid:NAME."""
    data: Path | None = None
    """Folder with the data sets; else $TRANSFER_DATA."""
    seeds: tuple[int, ...] = (0,)
    """One record for each."""
    subset: int | None = None
    """Train and test on this many identities of the real set, chosen by content digest; marked in the record."""
    smoke: bool = False
    """Embedded data and sizes that end in seconds; marked in the record, and left out of reports."""
    config: tuple[Path, ...] = ()
    """YAML files with any of these options; later ones win, flags win over all."""
    out: Path = Path("runs")
    """Folder of the runs."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes the GPU if there is one."""
    workers: int | None = None
    """Processes that load images, for each rank; by default from the number of usable cores."""
    threads: int | None = None
    """Threads of torch on the CPU, for each rank; by default its share of the usable cores."""
    checkpoint_seconds: float = 300.0
    """Seconds between two saved states."""
    skip_unreadable: bool = False
    """Leave out images that cannot be read, and record how many, instead of stopping."""
    track: bool = False
    """Write TensorBoard events beside history.jsonl."""
    dry_run: bool = False
    """Print the resolved options and stop."""

    def __post_init__(self) -> None:
        if self.subset is not None and self.subset < 2:
            raise WrongWords(f"--subset {self.subset}: must be at least 2")
        if self.workers is not None and self.workers < 0:
            raise WrongWords(f"--workers {self.workers}: must be 0 or more")
        if self.threads is not None and self.threads < 1:
            raise WrongWords(f"--threads {self.threads}: must be 1 or more")
        if self.checkpoint_seconds < 0:
            raise WrongWords(f"--checkpoint-seconds {self.checkpoint_seconds}: must be 0 or more")
        if any(seed < 0 for seed in self.seeds) or not self.seeds or len({*self.seeds}) < len(self.seeds):
            raise WrongWords("--seeds: give one or more different numbers, 0 or above")
        if len({*self.dataset}) < len(self.dataset):
            raise WrongWords("--dataset: a name stands there twice")


# How a run is executed, not what it is: never part of its identity.
EXECUTION = ("data", "out", "device", "workers", "threads", "checkpoint_seconds", "skip_unreadable", "track")


@dataclass(kw_only=True)
class BackboneOptions:
    """Parts of the backbone, in place of what its configuration says."""

    weights: str = "config"
    """config, random, timm, a folder, a file, hf-hub:NAME or timm:NAME."""
    load: Literal["strict", "partial"] | None = None
    """partial puts a new part on released weights; what stays untrained is named and recorded."""
    arch: str | None = None
    """vit_ti, vit_s, vit_b, vit_l, a timm model, or file.py:Name."""
    stem: str | None = None
    """A name, components such as 3Conv+3BN+3ReLU+1Proj@2,1,1,8, or file.py:Name."""
    attention: str | None = None
    """A name, or file.py:Name."""
    ffn: str | None = None
    """A name, or file.py:Name."""
    patch: int | None = None
    """Patch size in pixels."""
    depth: int | None = None
    """Number of blocks."""
    pool: str | None = None
    """cls or gap."""
    pos: str | None = None
    """learned or sincos2d."""
    qk_norm: bool | None = None
    """LayerNorm on queries and keys; on by default with point-wise attention."""
    gate: bool | None = None
    """Gate on the attention's output."""
    alpha: float | Literal["learned"] | None = None
    """Exponent of the sequence length in point-wise attention."""
    length: Literal["tokens", "image", "train"] | None = None
    """What the sequence length counts."""
    mean: tuple[float, float, float] | None = None
    """Pixel mean in [0, 1]; by default the backbone's own."""
    std: tuple[float, float, float] | None = None
    """Pixel standard deviation; by default the backbone's own."""

    def overrides(self) -> dict[str, Any]:
        """What `backbones.resolve` gets besides the name."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}


@dataclass
class Command:
    """One command, read: a task's name and its three groups of options."""

    task: str
    run: RunOptions
    backbone: BackboneOptions
    options: Any = field(default=None)


def task_names() -> list[str]:
    """The tasks: each has a YAML of its name."""
    return config_names("tasks")


def check_task(name: str) -> None:
    """Raises WrongWords for an unknown task."""
    if name not in task_names():
        raise WrongWords(f"unknown task {name!r}{nearest(name, task_names())} (tasks: {', '.join(task_names())})")


def check_names_in(words: list[str]) -> None:
    """Looks at data sets named in flags before anything heavy is imported.

    Raises:
        WrongWords: an unknown one, with the nearest names.
    """
    for position, word in enumerate(words):
        if word.startswith("--dataset="):
            resolve_dataset(word.partition("=")[2])
        elif word == "--dataset":
            for name in words[position + 1 :]:
                if name.startswith("--"):
                    break
                resolve_dataset(name)


def read_command(task: str, options: type[Any], words: list[str]) -> Command:
    """Stacks the task's YAML, each --config file, the smoke layer and the flags; later layers win.

    Raises:
        WrongWords: a layer with a wrong key or value (it is named), no backbone, no data set.
        SystemExit: after `--help`, or a wrong flag; tyro has printed why.
    """
    schema = flat_schema(run=RunOptions, backbone=BackboneOptions, options=options)
    prog = f"python -m transfer.run {task}"
    recipe = CONFIGS / "tasks" / f"{task}.yaml"
    layers = [recipe, *_config_files(words)]
    if "--smoke" in words:
        layers.append(CONFIGS / "smoke" / f"{task}.yaml")
    stacked = None
    for layer in layers:
        flags = as_flags(_beside(layer, read_yaml(layer)))
        stacked = parse(schema, flags, prog=prog, default=stacked, layer=str(layer))
    parsed = parse(schema, words, prog=prog, default=stacked)
    command = Command(task, parsed.run, parsed.backbone, parsed.options)
    if not command.run.backbone:
        raise WrongWords("--backbone is missing; `python -m transfer.run --list` shows the shipped ones")
    if not command.run.dataset:
        raise WrongWords(f"--dataset is missing (shipped: {', '.join(dataset_names())})")
    return command


def _beside(layer: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The layer with the files that it names, and that lie beside it, by their full paths."""
    if "config" in content:
        raise WrongWords(f"{layer}: `config` cannot stand in a YAML; give both files to --config")

    def found(value: Any) -> Any:
        if isinstance(value, list):
            return [found(item) for item in value]
        path = value.rpartition(":")[0] if isinstance(value, str) and ".py:" in value else value
        if isinstance(path, str) and path and (layer.parent / path).is_file():
            return str((layer.parent / path).resolve()) + value[len(path) :]
        return value

    named = ("arch", "stem", "attention", "ffn", "backbone", "dataset", "weights")
    return {key: found(value) if key in named else value for key, value in content.items()}


def _config_files(words: list[str]) -> list[Path]:
    files: list[Path] = []
    for position, word in enumerate(words):
        if word.startswith("--config="):
            files.append(Path(word.partition("=")[2]))
        elif word == "--config":
            for name in words[position + 1 :]:
                if name.startswith("--"):
                    break
                files.append(Path(name))
    return files


def guarded(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """Runs a command's body; errors meant for the user become one message on stderr and an exit status."""
    try:
        return main(argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BrokenPipeError:
        # The reader of a table has had enough, as `head` does.
        sys.stderr.close()
        return 0
