"""Turns argv into checked options: names first, then YAML layers, then flags. Imports no torch."""

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.spec import LEFT_TO_RECIPES, BackboneSpec, resolve
from transfer.cli.layers import combined_options, config_files, layer_values, names_of_flags
from transfer.cli.options import BackboneOptions, LaunchOptions, RunOptions
from transfer.cli.recipe import Recipe, fitted_layers, fitted_options
from transfer.core.errors import MissingInput, UsageError, errors_together, reject, unusable
from transfer.core.exports import CONFIG, EXPORT, why_not_exported
from transfer.core.options import Added, Needs, idle_options, noted, plain, with_value
from transfer.core.settings import CONFIGS, read_yaml
from transfer.engine.outcome import SCORED

if TYPE_CHECKING:
    from transfer.task import Task

RECORD, OPTIONS = "record.json", "options.yaml"
WEIGHTS_WORDS = ("config", "random", "live", "timm")
"""Values of `--weights` that are never paths."""


@dataclass
class Command:
    """A parsed command: the name of its task or recipe, and its groups of options.

    Attributes:
        task: the name of the task, or of the pretraining recipe.
        run: the options that all commands share.
        backbone: the parts of the backbone that the command or the user's YAML files name.
        options: the options of the task or method.
        launch: the options of the launcher.
        recipe_backbone: fields of the backbone that only the recipe sets, for architectures that have them.
        flags: the names of the options that the command line sets, in their order.
        set_by_user: the names of the options that the user set: in flags, in YAML files, or by `--smoke` the size.
        fitted: a line for each default that is not the recipe's, with its reason.
        recipe: the recipe, where the command was read from one.
    """

    task: str
    run: RunOptions
    backbone: BackboneOptions
    options: Any = field(default=None)
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    recipe_backbone: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    set_by_user: frozenset[str] = frozenset()
    fitted: tuple[str, ...] = ()
    recipe: Recipe | None = None

    def check_flags(self, spec: BackboneSpec | None = None) -> None:
        """Raise UsageError for a flag that does not act beside the other values, unless it turns something off; see
        `transfer.core.options`.

        Args:
            spec: the resolved backbone if it is known; then flags without effect on it are refused too.
        """
        kinds = (type(self.options), LaunchOptions, *([BackboneSpec] if spec else []))
        needs = {name: condition for kind in kinds for name, condition in noted(kind, Needs).items()}
        known = {name: value for name, value in spec.as_dict().items() if value is not None} if spec else {}
        values = known | plain(self.options) | plain(self.launch)
        idle = idle_options(needs, values)
        for name in self.flags:
            if name in idle and values.get(name):
                option = idle[name].option
                flag = f"--{name.replace('_', '-')}"
                reject(f"{flag} has no effect {with_value(option, values[option])}")

    @property
    def submitted(self) -> bool:
        """Whether the command is submitted as a job instead of running here."""
        return self.launch.launcher == "slurm" and not self.run.dry_run

    @property
    def joined(self) -> bool:
        """Whether its datasets are one training set, after which each is evaluated by itself (`--joint`)."""
        return bool(getattr(self.options, "joint", False) and self.options.epochs)

    def differences(self) -> list[str]:
        """Return a line for each option that differs from the recipe, or from its default where the recipe has none."""
        assert self.recipe is not None
        later = {name: note.recorded for name, note in noted(type(self.options), Added).items()}
        usual = plain(type(self.run)()) | plain(BackboneOptions()) | later | self.recipe.values()
        values = plain(self.run) | plain(self.backbone) | plain(self.options)
        shown = [name for name in values if name not in ("backbone", "config", "dry_run", *self.recipe_backbone)]
        return [
            f"  {name}: {_shown(values[name])} (recipe: {_shown(usual.get(name))})"
            for name in shown
            if values[name] != usual.get(name)
        ]

    def resolved(self, from_scratch: bool, **more: Any) -> BackboneSpec:
        """Return the backbone of the command. Raises the errors of `backbones.spec.resolve`."""
        return resolve(self.run.backbone, usual=self.recipe_backbone, **(self.overrides(from_scratch) | more))

    def fit_backbone(self, spec: BackboneSpec, task: "Task") -> None:
        """Replace the task's defaults that do not fit the backbone, and add the lines that report them."""
        defaults = task.defaults_for_backbone(spec, self.options, self.set_by_user)
        self.options, lines = fitted_options(self.options, defaults, self.set_by_user)
        self.fitted += (*lines, *filter(None, ["" if "size" in self.set_by_user else self._token_grid(spec, task)]))

    def _token_grid(self, spec: BackboneSpec, task: "Task") -> str:
        """Return a line on images over twice as large as those of the weights; empty for others."""
        from backbones.weights.locate import trained_size

        size, trained, patch = task.built_size(self.options), trained_size(spec), spec.patch
        if not (isinstance(size, tuple) and trained and patch) or size[0] * size[1] <= 2 * trained[0] * trained[1]:
            return ""
        grid = f"--size {size[0]} {size[1]}: {size[0] // patch} x {size[1] // patch} tokens of {patch} pixels"
        return f"{grid}; the weights were trained at {trained[0]} x {trained[1]}; use --size to change it"

    def fit_data(self, task: "Task", spec: BackboneSpec, dataset: Any) -> "Command":
        """Return the command with the defaults that fit a dataset, and with the lines that report them alone."""
        defaults = task.defaults_for_data(spec, dataset, self.options)
        options, lines = fitted_options(self.options, defaults, self.set_by_user)
        return replace(self, options=options, fitted=lines)

    def choices(self, spec: BackboneSpec, from_scratch: bool) -> list[str]:
        """Return lines on what the program chose in the place of the user: defaults, and a part of the backbone."""
        lines = [*self.fitted]
        others = self.resolved(from_scratch=False).weights if from_scratch else ""
        if others and self.backbone.weights == ("config",) and Path(others).exists():
            lines.append(f"pretraining starts from random weights; --weights {others} starts from those of {spec.name}")
        return lines

    def overrides(self, from_scratch: bool) -> dict[str, Any]:
        """Return the arguments of `backbones.resolve` besides the name; training from scratch has random weights."""
        overrides = self.backbone.overrides()
        if from_scratch and overrides["weights"] == "config":
            overrides["weights"] = "random"
        return overrides | {"weights": weights_of_run(overrides["weights"], self.run.out)}


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)


@errors_together(join=True)
def read_command(
    recipe: Recipe,
    options: type[Any],
    argv: list[str],
    run: type[RunOptions] = RunOptions,
    *,
    called: str | None = None,
) -> Command:
    """Combine the recipe, the smoke layer, each --config file and the flags; later layers win.

    Args:
        recipe: the recipe of the task or method.
        options: the dataclass of the options of the task or method.
        argv: the arguments after the name of the task or recipe.
        run: the dataclass of the options that all commands of this kind share.
        called: the Python function whose keywords `argv` stands for, see `transfer.cli.layers`; errors name it.

    Raises:
        UsageError: a layer has a wrong key or value (the layer is named), or backbone or dataset is missing.
        SystemExit: after `--help`.
    """
    user_layers = [(path, read_yaml(path)) for path in config_files(argv)]
    groups = {"run": run, "backbone": BackboneOptions, "options": options, "launch": LaunchOptions}
    known = {item.name for group in groups.values() for item in fields(group)}
    layers = [(recipe.path, recipe.values(known))]
    following = zip(argv, [*argv[1:], ""])
    if any(word in ("--smoke", "--smoke=True") and value != "False" for word, value in following):
        if not recipe.smoke.is_file():
            missing = f"{recipe.path} has no sizes for it ({recipe.smoke} is missing)"
            raise UsageError(f"--smoke: {missing}; set them as flags, with --subset for the data")
        layers.append((recipe.smoke, recipe.smoke_values(known)))
    layers += user_layers
    fitted, lines = fitted_layers(options, layers, argv, recipe.base, recipe.smoke)
    parsed = combined_options(recipe.program, groups, [*layers, *fitted], argv, called)
    flags = names_of_flags(argv)
    set_by_user = {*flags}
    for path, content in user_layers:
        if CONFIGS not in path.parents:
            set_by_user |= {key.replace("-", "_") for key in content}
    recipe_backbone = _take_recipe_fields(parsed.backbone, set_by_user)
    set_by_user |= {"size"} if parsed.run.smoke else set()
    if recipe.path.suffix in (".yaml", ".yml") and CONFIGS not in recipe.path.resolve().parents:  # of the user's own
        set_by_user |= layer_values(recipe.path).keys()
    groups_read = (parsed.run, parsed.backbone, parsed.options, parsed.launch)
    command = Command(recipe.name, *groups_read, recipe_backbone, flags, frozenset(set_by_user), lines, recipe)
    command.check_flags()
    if not command.run.backbone:
        raise UsageError("--backbone is missing; `python -m transfer --list backbones` shows the shipped ones")
    if not command.run.dataset:
        reject("--dataset is missing; `python -m transfer --list datasets` shows the shipped ones")
    return command


def run_of_weights(weights: str, out: Path) -> Path | None:
    """Return the folder of the run that `--weights` names by its path or by its id in `out`; None for other weights."""
    run = Path(weights) if "/" in weights or Path(weights).is_dir() else out / weights
    is_run = weights not in WEIGHTS_WORDS and ((run / RECORD).exists() or (run / OPTIONS).exists())
    return run if is_run else None


def weights_of_run(weights: str, out: Path) -> str:
    """Return the exported folder of a run that `weights` names; other weights are returned as they are.

    Args:
        weights: the value of `--weights`.
        out: the folder of runs, in which an id is looked for.

    Raises:
        MissingInput: the run is unfinished, its training failed, or it saved no weights.
        UserError: its record cannot be read.
    """
    run = run_of_weights(weights, out)
    if run is None:
        return weights
    if not (run / RECORD).is_file():
        raise MissingInput(f"--weights {weights}: the run in {run} is unfinished; rerun its command to finish it")
    with unusable(f"--weights {weights}: {run / RECORD} is not a readable record"):
        record = json.loads((run / RECORD).read_bytes())
        status, reason = record["outcome"]["status"], why_not_exported(record["options"], record.get("export"))
    if (run / EXPORT / CONFIG).is_file():
        return str(run / EXPORT)
    reason = reason if status in SCORED else f"its training ended as {status}"
    raise MissingInput(f"--weights {weights}: the run in {run} has no weights: {reason}")


def _take_recipe_fields(backbone: BackboneOptions, users_names: set[str]) -> dict[str, Any]:
    """Remove the fields that only the recipe sets and not every architecture has, and return them.

    Args:
        backbone: the options of the backbone, which are changed.
        users_names: the names of the options that the user's YAML files and flags set.
    """
    taken = {name: getattr(backbone, name) for name in LEFT_TO_RECIPES if name not in users_names}
    vars(backbone).update(dict.fromkeys(taken))
    return {name: value for name, value in taken.items() if value is not None}
