"""Recipes: the YAML files with the values of a task or of a pretraining, found by name. Imports no torch."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import backbones
from transfer.cli.layers import layer_values
from transfer.core.errors import UsageError, errors_naming, unknown
from transfer.core.settings import CONFIGS, config_names, read_yaml
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
        own = {key: value for key, value in layer_values(self.path).items() if key != BASE}
        if self.base is None:
            return own
        skipped = {"method"} if is_in_file(self.name) else set[str]()
        shipped = {key: value for key, value in read_yaml(self.base).items() if key not in skipped}
        return {key: value for key, value in shipped.items() if known is None or key in known} | own

    def smoke_values(self, known: Collection[str] | None = None) -> dict[str, Any]:
        """Return the sizes of `--smoke`, as `values` does."""
        own = known is None or self.base is None or self.smoke.parent != CONFIGS / "smoke"
        return {key: value for key, value in read_yaml(self.smoke).items() if own or key in (known or ())}


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
    if name not in config_names(room):
        raise unknown(kinds[0], name, config_names(room), f"; {more}")
    return Recipe(name, f"{program} {name}", CONFIGS / room / f"{name}.yaml", CONFIGS / "smoke" / f"{name}.yaml")


def _with_base(recipe: Recipe, room: str) -> Recipe:
    """Return a user's recipe with the shipped one that it names, if it does. Raises UsageError for an unknown one."""
    name = layer_values(recipe.path).get(BASE)
    if name is None:
        return recipe
    if name not in config_names(room):
        with errors_naming(str(recipe.path)):
            raise unknown(BASE, str(name), config_names(room))
    smoke = recipe.smoke if recipe.smoke.is_file() else CONFIGS / "smoke" / f"{name}.yaml"
    return replace(recipe, base=CONFIGS / room / f"{name}.yaml", smoke=smoke)


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
