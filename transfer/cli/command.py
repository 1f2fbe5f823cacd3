"""Turn argv into checked options: names first, then YAML layers, then flags. Imports no torch."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.data.spec import dataset_names, resolve_dataset
from backbones.errors import UsageError, UserError, did_you_mean
from backbones.settings import (
    CONFIGS,
    as_flags,
    config_names,
    copy_to_schema,
    flat_schema,
    parse,
    plain,
    read_yaml,
    without_checks,
)
from transfer.cli.old_names import renamed_flag
from transfer.cli.options import BackboneOptions, LaunchOptions, PretrainRunOptions, RunOptions

if TYPE_CHECKING:
    from backbones.spec import BackboneSpec


@dataclass
class Command:
    """One command, read: a task's name and its groups of options.

    Attributes:
        usual: what the recipe alone says of the backbone, for architectures that take it.
        written: names of the options that the user's own flags say, in their order.
    """

    task: str
    run: RunOptions
    backbone: BackboneOptions
    options: Any = field(default=None)
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    usual: dict[str, Any] = field(default_factory=dict)
    written: tuple[str, ...] = ()

    @property
    def work(self) -> str:
        """The task, as records call it."""
        return f"pretrain-{self.run.method}" if isinstance(self.run, PretrainRunOptions) else self.task

    def check_flags(self, spec: "BackboneSpec | None" = None) -> None:
        """Raises UsageError for a flag that changes nothing, see `transfer.cli.ignored_options`.

        Args:
            spec: the backbone, as soon as it is known: what has no effect on it is refused too.
        """
        from transfer.cli.ignored_options import known, refused

        values = plain(self.options) | plain(self.launch)
        values |= {"dataset": self.run.dataset[0]} if len(self.run.dataset) == 1 else {}
        if self.run.idle_flags == "refuse" and (
            reason := refused(known(self.work, values, spec.as_dict() if spec else None), self.written)
        ):
            raise UsageError(reason)

    def resolved(self, from_scratch: bool, **more: Any) -> "BackboneSpec":
        """The backbone that the words name. Raises as `backbones.spec.resolve`."""
        from backbones.spec import resolve

        return resolve(self.run.backbone, usual=self.usual, **(self.overrides(from_scratch) | more))

    def overrides(self, from_scratch: bool) -> dict[str, Any]:
        """What `backbones.resolve` gets besides the name; training from scratch starts from random weights."""
        given = self.backbone.overrides()
        if from_scratch and given["weights"] == "config":
            given["weights"] = "random"
        return given


@dataclass(frozen=True)
class Recipe:
    """Where a command's values come from: a complete YAML, and one with the sizes of `--smoke`."""

    name: str
    program: str
    path: Path
    smoke: Path


def task_names() -> list[str]:
    """The tasks: each has a YAML of its name."""
    return config_names("tasks")


def task_recipe(name: str) -> Recipe:
    """The recipe of a task. Raises UsageError for an unknown one."""
    if name not in task_names():
        raise UsageError(f"unknown task {name!r}{did_you_mean(name, task_names())} (tasks: {', '.join(task_names())})")
    path, smoke = (CONFIGS / room / f"{name}.yaml" for room in ("tasks", "smoke"))
    return Recipe(name, f"python -m transfer.run {name}", path, smoke)


def pretraining_names() -> list[str]:
    """The shipped pretraining recipes."""
    return config_names("pretrain")


def pretraining_recipe(name: str) -> Recipe:
    """A shipped recipe, or a user's YAML (also the options.yaml of a run). Raises UsageError for an unknown one."""
    program = f"python -m transfer.pretrain {name}"
    if Path(name).suffix in (".yaml", ".yml"):
        return Recipe(Path(name).stem, program, Path(name), CONFIGS / "smoke" / Path(name).name)
    known = pretraining_names()
    if name not in known:
        raise UsageError(
            f"unknown recipe {name!r}{did_you_mean(name, known)} (recipes: {', '.join(known)}; or a YAML file)"
        )
    path, smoke = (CONFIGS / room / f"{name}.yaml" for room in ("pretrain", "smoke"))
    return Recipe(name, program, path, smoke)


def check_names_in(words: list[str]) -> None:
    """Looks at data sets named in flags before anything heavy is imported.

    Raises:
        UsageError: an unknown one, with the nearest names.
    """
    for position, word in enumerate(words):
        if word.startswith("--dataset="):
            resolve_dataset(word.partition("=")[2])
        elif word == "--dataset":
            for name in words[position + 1 :]:
                if name.startswith("--"):
                    break
                resolve_dataset(name)


def read_command(recipe: Recipe, options: type[Any], words: list[str], run: type[RunOptions] = RunOptions) -> Command:
    """Stacks the recipe, each --config file, the smoke layer and the flags; later layers win.

    Args:
        options: the dataclass of the task's or method's own options.
        run: the one of those that all commands of its kind share.

    Raises:
        UsageError: a layer with a wrong key or value (it is named), no backbone, no data set.
        SystemExit: after `--help`, or a wrong flag; tyro has printed why.
    """
    own_layers = _config_files(words)
    layers = [recipe.path, *own_layers]
    if "--smoke" in words:
        if not recipe.smoke.is_file():
            raise UsageError(
                f"--smoke: {recipe.path} has no sizes for it; give them as flags, with --subset for the data"
            )
        layers.append(recipe.smoke)
    groups = {"run": run, "backbone": BackboneOptions, "options": options, "launch": LaunchOptions}
    parsed = _stacked(recipe, groups, layers, words)
    said = {key.replace("-", "_") for layer in own_layers for key in read_yaml(layer)}
    usual = _left_to_recipe(parsed.backbone, words, said)
    written = _written(words)
    command = Command(recipe.name, parsed.run, parsed.backbone, parsed.options, parsed.launch, usual, written)
    command.check_flags()
    if not command.run.backbone:
        raise UsageError("--backbone is missing; `python -m transfer.run --list` shows the shipped ones")
    if not command.run.dataset:
        raise UsageError(f"--dataset is missing (shipped: {', '.join(dataset_names())})")
    return command


def _stacked(recipe: Recipe, groups: dict[str, type[Any]], layers: list[Path], words: list[str]) -> Any:
    """The groups of options from the layers and the words over them.

    Values are checked together when all are known, since a later layer may make a value fit that did not.
    """
    loose = flat_schema(**{name: without_checks(group) for name, group in groups.items()})
    schema = flat_schema(**groups)
    stacked, contradictions = None, dict[str, Path]()
    for layer in layers:
        flags = as_flags(with_full_paths(layer, read_yaml(layer)))
        _check_renamed(recipe.name, groups, flags, f"{layer}: ")
        stacked = parse(loose, flags, prog=recipe.program, default=stacked, layer=str(layer))
        wrong = _contradiction(copy_to_schema(stacked, schema))
        contradictions = {wrong: contradictions.get(wrong, layer)} if wrong else {}
    _check_renamed(recipe.name, groups, words)
    if {"-h", "--help"} & {*words}:
        from transfer.cli.help import help_page

        print(help_page(recipe.program, groups, copy_to_schema(stacked, schema)))
        raise SystemExit(0)
    try:
        return parse(schema, words, prog=recipe.program, default=copy_to_schema(stacked, schema))
    except UsageError as error:
        if str(error) not in contradictions:
            raise
        raise UsageError(f"{contradictions[str(error)]}: {error}") from None


def _contradiction(options: Any) -> str:
    """What the values say against each other, if they do."""
    try:
        for group in vars(options).values():
            if hasattr(group, "__post_init__"):
                group.__post_init__()
    except UsageError as error:
        return str(error)
    return ""


def _check_renamed(task: str, groups: dict[str, type[Any]], words: list[str], where: str = "") -> None:
    """Raises UsageError for a flag that had another name, and says its name of today."""
    known = [item.name for group in groups.values() for item in fields(group)]
    if sentence := renamed_flag(words, known, where):
        raise UsageError(sentence)
    for old, new in getattr(groups["options"], "renamed", {}).items():
        was, now = (f"--{name.replace('_', '-')}" for name in (old, new))
        if any(word == was or word.startswith(f"{was}=") for word in words):
            raise UsageError(f"{where}{was} is called {now} now: {task} trains no network")


def _left_to_recipe(backbone: BackboneOptions, words: list[str], said: set[str]) -> dict[str, Any]:
    """Takes out of the options what the recipe alone says and not every architecture takes.

    Args:
        said: keys of the user's own layers.
    """
    from backbones.spec import LEFT_TO_RECIPES

    left = {}
    for name in LEFT_TO_RECIPES:
        if getattr(backbone, name) is not None and name not in said.union(_written(words)):
            left[name] = getattr(backbone, name)
            setattr(backbone, name, None)
    return left


def _written(words: list[str]) -> tuple[str, ...]:
    """The names of the options that flags say, those of `--no-NAME` with and without the no."""
    flags = (word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--"))
    names = (flag.replace("-", "_") for flag in flags)
    return tuple(dict.fromkeys(found for name in names for found in (name, name.removeprefix("no_"))))


def with_full_paths(layer: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The layer with the files that it names, and that lie beside it, by their full paths."""
    if "config" in content:
        raise UsageError(f"{layer}: `config` cannot stand in a YAML; give both files to --config")

    def found(value: Any) -> Any:
        if isinstance(value, list):
            return [found(item) for item in value]
        path = value.rpartition(":")[0] if isinstance(value, str) and ".py:" in value else value
        if isinstance(path, str) and path and (layer.parent / path).is_file():
            return str((layer.parent / path).resolve()) + value[len(path) :]
        return value

    named = ("arch", "stem", "attention", "ffn", "backbone", "dataset", "weights", "detector")
    return {key: found(value) if key in named else value for key, value in content.items()}


def _config_files(words: list[str]) -> list[Path]:
    files: list[Path] = []
    for position, word in enumerate(words):
        if word.startswith("--config="):
            files.append(_config_file(word.partition("=")[2]))
        elif word == "--config":
            for name in words[position + 1 :]:
                if name.startswith("--"):
                    break
                files.append(_config_file(name))
    return files


def _config_file(name: str) -> Path:
    """A file of the user's, or one of configs/schedules by its name."""
    path = Path(name)
    if path.suffix or path.exists():
        return path
    shipped = config_names("schedules")
    if name not in shipped:
        known = f"{did_you_mean(name, shipped)} (schedules: {', '.join(shipped)})"
        raise UsageError(f"--config {name}: there is no such file or schedule{known}")
    return CONFIGS / "schedules" / f"{name}.yaml"


def exit_on_user_error(main: Callable[[list[str]], int], argv: list[str], *, usage: str = "") -> int:
    """Runs a command's body; errors meant for the user become one message on stderr and an exit status.

    Args:
        usage: what a command that needs words prints instead, without any or when help is asked for first.
    """
    try:
        if usage and (not argv or argv[0] in ("-h", "--help")):
            print(usage)
            return 0 if argv else 2
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
