"""Recipes: the YAML files with the values of a task or of a pretraining, found by name. Imports no torch.

Their defaults are fitted to the epochs, the size, the backbone or the dataset of a command.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import backbones
from transfer.cli.layers import Layer, flag_values, layer_values, names_of_flags
from transfer.core.errors import UsageError, errors_naming, unknown
from transfer.core.options import Span, noted
from transfer.core.settings import CONFIGS, as_words, read_value, read_yaml, shipped_path
from transfer.core.user_code import is_in_file, locate

BASE = "recipe"
"""The key of a user's YAML file that names the shipped recipe below it."""


@dataclass(frozen=True)
class Recipe:
    """The YAML files with the values of a command.

    Attributes:
        name: the name of the task or pretraining recipe; of a user's task or method `path/to/file.py:NAME`.
        program: the command in usage texts.
        path: the YAML file; of a user's task or method without one the Python file, whose dataclass has all values.
        smoke: the YAML file with the sizes of `--smoke`, which need not exist.
        base: the shipped recipe that the key `recipe` of a user's YAML file names; its values hold where that file has
            none, and options that it has besides are passed over. None: the YAML file is complete.
    """

    name: str
    program: str
    path: Path
    smoke: Path
    base: Path | None = None

    def values(self, known: Collection[str] | None = None) -> dict[str, Any]:
        """Return all values of the recipe; of those of `base` only the ones of `known` options, unless it is None."""
        values = {key: value for key, value in layer_values(self.path).items() if key != BASE}
        if self.base is None:
            return values
        shipped = read_yaml(self.base)
        skipped = set[str]() if known is None else shipped.keys() - {*known}
        skipped |= {"method"} if is_in_file(self.name) else set()
        return {key: value for key, value in shipped.items() if key not in skipped} | values

    def smoke_values(self, known: Collection[str] | None = None) -> dict[str, Any]:
        """Return the sizes of `--smoke`, as `values` does."""
        sizes = read_yaml(self.smoke)
        if known is None or self.base is None or self.smoke.parent != CONFIGS / "smoke":
            return sizes
        return {key: value for key, value in sizes.items() if key in known}


def task_recipe(name: str) -> Recipe:
    """Return the recipe of a task, or of a user's task `file.py:NAME`. Raises UsageError for an unknown task."""
    return _named_recipe(name, "tasks", "python -m transfer.run", ("task", "task"), "or path/to/file.py:NAME")


def _named_recipe(name: str, room: str, program: str, kinds: tuple[str, str], more: str) -> Recipe:
    """Return a shipped recipe, or that of a user's task or method: `my_task.yaml`, `my_task.smoke.yaml` beside it.

    Args:
        kinds: what the words are that name a shipped recipe, and a part of a user's file.
        more: what else can be named.
    """
    if is_in_file(name):
        part = locate(name)
        file = Path(part.rpartition(":")[0])
        path = file.with_suffix(".yaml") if file.with_suffix(".yaml").is_file() else file
        return _with_base(Recipe(part, f"{program} {part}", path, file.with_suffix(".smoke.yaml")), room)
    if name.endswith(".py"):
        raise UsageError(f"{name}: name the {kinds[1]} in this file, as in {name}:{kinds[1].upper()}")
    path = shipped_path(room, kinds[0], name, f"; {more}")
    return Recipe(name, f"{program} {name}", path, CONFIGS / "smoke" / path.name)


def _with_base(recipe: Recipe, room: str) -> Recipe:
    """Return a user's recipe with the shipped one that it names, if it does. Raises UsageError for an unknown one."""
    name = layer_values(recipe.path).get(BASE)
    if name is None:
        return recipe
    with errors_naming(str(recipe.path)):
        base = shipped_path(room, BASE, str(name))
    return replace(recipe, base=base, smoke=recipe.smoke if recipe.smoke.is_file() else CONFIGS / "smoke" / base.name)


def pretraining_recipe(name: str) -> Recipe:
    """Return a shipped recipe, that of a YAML file, such as a run's options.yaml, or of a user's method
    `file.py:NAME`. Raises UsageError.
    """
    program, path = "python -m transfer.pretrain", Path(name)
    if path.suffix in (".yaml", ".yml"):
        return _with_base(Recipe(path.stem, f"{program} {name}", path, CONFIGS / "smoke" / path.name), "pretrain")
    return _named_recipe(name, "pretrain", program, ("recipe", "method"), "a YAML file, or file.py:NAME")


def method_of(recipe: Recipe) -> str:
    """Return the task that a recipe is for: `pretrain-METHOD`, or a user's method, as `path/to/file.py:NAME`.

    Raises:
        UsageError: unknown method; the message has the nearest names.
    """
    if is_in_file(recipe.name):
        return recipe.name
    name = recipe.values().get("method")
    if isinstance(name, str) and is_in_file(name):
        return locate(name, recipe.path.parent)
    if name not in method_names():
        with errors_naming(str(recipe.path)):
            raise unknown("method", str(name), method_names(), "; or path/to/file.py:NAME")
    return f"pretrain-{name}"


def method_names() -> list[str]:
    """Return the names of the pretraining methods, the folders of `backbones/pretrain/`."""
    return sorted(path.parent.name for path in Path(next(iter(backbones.__path__))).glob("pretrain/*/method.py"))


HELD = ("warmup_epochs", "cooldown_epochs")
"""The spans that last whole epochs where the learning rate is held per epoch."""


def fitted_layers(
    kind: type[Any], layers: Sequence[Layer], argv: list[str], base: Path | None, smoke: Path
) -> tuple[list[Layer], tuple[str, ...]]:
    """Return layers that fit the recipe to `--epochs` and `--size`, each with the line that reports it.

    Milestones are scaled by the epochs / the recipe's. So are warm-up, cool-down and other spans (see
    `transfer.core.options.Span`) that leave no epoch of a shorter training run; if a span is then not a whole number
    of epochs, a schedule that is held per epoch moves by step. `resize` keeps the recipe's proportion to `size`.
    Options that the user sets are not changed.

    Args:
        kind: the dataclass of the options.
        layers: the YAML files with their values, that of the recipe first; later ones win.
        argv: the flags.
        base, smoke: those of the recipe, see `transfer.cli.recipe.Recipe`.
    """
    shipped, users = _by_origin(layers, base, smoke)
    set_by_user = {*users, *names_of_flags(argv)}
    fitted, lines = list[Layer](), []
    for option, fit in (("epochs", _fitted_spans), ("size", _fitted_resize)):
        flags = [value for value in flag_values(argv, f"--{option}") if value.replace(".", "", 1).isdecimal()]
        new, old = read_value(flags[0], option) if flags else users.get(option), shipped.get(option)
        if not (isinstance(new, int | float) and isinstance(old, int | float) and 0 < new != old > 0):
            continue
        if values := fit(kind, shipped, set_by_user, new):
            changes = ", ".join(f"{name} {shipped[name]} -> {value}" for name, value in values.items())
            fitted.append((Path(f"--{option} {new}"), values))
            lines.append(f"--{option} {new}, where the recipe has {old}: {changes}; as flags they are taken as given")
    return fitted, tuple(lines)


def _fitted_spans(kind: type[Any], shipped: dict[str, Any], set_by_user: set[str], epochs: float) -> dict[str, Any]:
    whole = shipped["epochs"]
    values = {name: _numbers(shipped.get(name)) for name in noted(kind, Span) if name not in set_by_user}
    held = shipped.get("schedule") == "epoch" and "schedule" not in set_by_user
    around = sum(sum(values.get(name, ())) for name in HELD)
    around += max(-shipped.get("schedule_offset", 0), 0) if held else 0
    short = []
    for name, numbers in values.items():
        last = around if name in HELD else max(numbers, default=0)
        if any(numbers) and (name == "milestones" or last >= epochs):
            short.append(name)
    return scaled_spans(kind, shipped if held else shipped | {"schedule": "step"}, epochs / whole, short)


def scaled_spans(kind: type[Any], values: Mapping[str, Any], share: float, names: Iterable[str]) -> dict[str, Any]:
    """Return spans of a dataclass of options, or its epochs, by name, in a training that has a share of these epochs.

    A learning rate that is held per epoch is moved by step instead if its warm-up or cool-down is no whole number then.
    """
    whole = {name for name, span in noted(kind, Span).items() if span.whole}
    scaled = {name: _scaled(values[name], share, name in whole) for name in names}
    held = values.get("schedule") == "epoch" and any(scaled.get(name, 0) % 1 for name in HELD)
    return scaled | ({"schedule": "step"} if held else {})


def _fitted_resize(kind: type[Any], shipped: dict[str, Any], set_by_user: set[str], size: float) -> dict[str, Any]:
    resize = None if "resize" in set_by_user else shipped.get("resize")
    return {"resize": int(resize * size // shipped["size"])} if resize else {}


def fitted_options(
    options: Any, defaults: Mapping[str, tuple[Any, str]], set_by_user: Collection[str]
) -> tuple[Any, tuple[str, ...]]:
    """Return options with the defaults that fit better than the recipe's, and a line for each with its reason.

    Args:
        options: the options of a task.
        defaults: see `transfer.task.Task.defaults_for_backbone`.
        set_by_user: the names of the options that the user set, which are not changed.
    """
    changed, lines = dict[str, Any](), list[str]()
    for name, (value, reason) in defaults.items():
        usual = getattr(options, name)
        if name not in set_by_user and value != usual:
            changed[name] = value
            fitting, shipped = (" ".join(as_words({name: each})) for each in (value, usual))
            lines.append(f"{fitting}, where the recipe has {shipped}: {reason}")
    return replace(options, **changed) if changed else options, tuple(lines)


def _by_origin(layers: Sequence[Layer], base: Path | None, smoke: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the recipe and of shipped files, and those of the user's files that stand above them."""
    (recipe, first), *further = layers
    shipped, users = (read_yaml(base), layer_values(recipe)) if base else (first, {})
    for path, values in further:
        if path == smoke or CONFIGS in path.parents:
            shipped, users = shipped | values, {key: value for key, value in users.items() if key not in values}
        else:
            users = users | {key.replace("-", "_"): value for key, value in values.items()}
    return shipped, users


def _numbers(value: Any) -> list[float]:
    """Return a value or those in a list; an empty list for other values, which the parser rejects."""
    values = value if isinstance(value, list) else [value]
    return values if all(isinstance(number, int | float) for number in values) else []


def _scaled(value: Any, share: float, whole: bool) -> Any:
    if isinstance(value, list):
        return [_scaled(item, share, whole) for item in value]
    return round(value * share) if whole else float(f"{value * share:.4g}")
