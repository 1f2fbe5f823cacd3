"""Parses and checks one step of a sweep's YAML. Imports no torch."""

import re
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from backbones.data.spec import dataset_names, resolve_dataset
from backbones.errors import UsageError, did_you_mean
from backbones.user_code import is_in_file
from transfer.cli.command import Recipe, pretraining_recipe, task_recipe
from transfer.cli.options import MINIMUM, RESOURCES, BackboneOptions, PretrainRunOptions
from transfer.cli.recipe_method import method_of
from transfer.published.checks import check_keys

if TYPE_CHECKING:
    from backbones.pretrain.method import Method
    from tasks.task import Task

STEP_KEYS = ("pretrain", "run", "after", "backbone", "dataset", "seeds", "options", "grid", "resources")
BACKBONE_OPTIONS = tuple(option.name for option in fields(BackboneOptions))
# options that the runner sets, so that a sweep cannot
RESERVED = ("backbone", "dataset", "seeds", "out", "name", "weights_to", "result_file", "config", "dry_run", "replace")


@dataclass(frozen=True)
class Step:
    """A step of a sweep: a pretraining recipe or a task, and what it runs on."""

    name: str
    kind: str
    """pretrain or run"""
    recipe: str
    after: str | None
    backbone: tuple[str, ...]
    dataset: tuple[str, ...]
    seeds: tuple[int, ...] | None
    """The seeds; None means those of the step before it."""
    options: dict[str, Any]
    grid: dict[str, list[Any]]
    """The values by axis; see `options_of`."""
    resources: dict[str, Any]

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of the options that the step's grid varies."""
        return tuple(option for axis in self.grid for option in options_of(axis))

    @property
    def source(self) -> Recipe:
        """Recipe from which the step's command takes values."""
        return (task_recipe if self.kind == "run" else pretraining_recipe)(self.recipe)

    def on_a_gpu(self) -> "Step":
        """Return the step with one GPU, the default at full scale, unless it sets a number or is a smoke run."""
        return self if self.options.get("smoke") else replace(self, resources={"gpus": 1, **self.resources})

    @property
    def task(self) -> str:
        """Task in the records of the step: `pretrain-METHOD` for a pretraining, else the task itself."""
        return _task_of(self.kind, self.source)


def parse_step(name: str, content: dict[str, Any], shared: dict[str, Any], file: str) -> Step:
    """Parse the step `name` of a sweep's YAML. Raises UsageError that names the place."""
    where = f"{file}: steps.{name}"
    check_keys(content, STEP_KEYS, where)
    if not isinstance(name, str):
        raise UsageError(f"{where}: the name of a step is a word, not {name!r}")
    kinds = [kind for kind in ("pretrain", "run") if kind in content]
    if len(kinds) != 1:
        raise UsageError(f"{where}: give either `pretrain: RECIPE` or `run: TASK`")
    backbone, dataset, seeds = (as_list(content.get(key)) for key in ("backbone", "dataset", "seeds"))
    for key, values in (("backbone", backbone), ("dataset", dataset)):
        if None in values:
            raise UsageError(f"{where}: {key}: a list holds an empty value (null)")
    if not backbone and not content.get("after"):
        raise UsageError(f"{where}: `backbone` is missing")
    if not dataset:
        raise UsageError(f"{where}: `dataset` is missing (shipped: {', '.join(dataset_names())})")
    resources = shared | mapping(content.get("resources") or {}, f"{where}: resources")
    check_keys(resources, (*RESOURCES, "extra"), f"{where}: resources")
    for key, minimum in MINIMUM.items():
        value = resources.get(key)
        if value is not None and (type(value) is not int or value < minimum):
            raise UsageError(f"{where}: resources: `{key}` is a whole number, not {value!r} (at least {minimum})")
    memory = resources.get("memory_gb")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int | float) or memory <= 0):
        raise UsageError(f"{where}: resources: `memory_gb` is a number above 0, not {memory!r}")
    step = Step(
        name=name,
        kind=kinds[0],
        recipe=str(content[kinds[0]]),
        after=content.get("after"),
        backbone=tuple(map(str, backbone)),
        dataset=tuple(map(str, dataset)),
        seeds=parse_seeds(seeds, where) if content.get("seeds") is not None else None,
        options=plain_numbers(mapping(content.get("options") or {}, f"{where}: options")),
        grid=_grid(mapping(content.get("grid") or {}, f"{where}: grid"), f"{where}: grid"),
        resources={key: value for key, value in resources.items() if value is not None},
    )
    try:
        _check_step(step)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return step


def _grid(content: dict[str, Any], where: str) -> dict[str, list[Any]]:
    """Return the distinct values of each axis; tuples for an axis of several options (`attention, qk_norm`)."""
    axes = {}
    for name, values in content.items():
        if _holds_mapping(values):
            raise UsageError(f"{where}: `{name}` is a list of values; printed and used ones stand in rows")
        options = options_of(str(name))
        if len(options) > 1:
            values = [_together(value, options, where) for value in as_list(values)]
        axes[",".join(options)] = list(dict.fromkeys(map(number, as_list(values))))
    names = [option for axis in axes for option in options_of(axis)]
    if twice := sorted({option for option in names if names.count(option) > 1}):
        raise UsageError(f"{where}: `{twice[0]}` stands in two axes")
    return axes


def _holds_mapping(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_holds_mapping, value)))


def options_of(axis: str) -> tuple[str, ...]:
    """Return the options that an axis of a grid varies: usually one, or several together."""
    return tuple(name.strip() for name in axis.split(","))


def _together(value: Any, options: tuple[str, ...], where: str) -> tuple[Any, ...]:
    """Return one value for each option of an axis. Raises UsageError unless there are as many."""
    if not isinstance(value, list) or len(value) != len(options):
        raise UsageError(f"{where}: `{', '.join(options)}` takes lists of {len(options)} values, not {value!r}")
    return tuple(map(number, value))


def _check_step(step: Step) -> None:
    """Raise UsageError unless the recipe, data sets and options exist and no axis is empty."""
    known = step_options(step)
    for dataset in step.dataset:
        resolve_dataset(dataset)
    for option in (*step.options, *step.varied):
        check_option(option, known)
    for option, values in step.grid.items():
        if not values:
            raise UsageError(f"the grid of `{option}` is empty")


def check_option(name: str, known: Collection[str]) -> None:
    """Raise UsageError for an option that the step does not have, or that the runner sets."""
    if name not in known:
        raise UsageError(f"unknown option {name!r}{did_you_mean(name, known)}")
    if name in RESERVED:
        raise UsageError(f"`{name}` is not an option of a cell; the sweep sets it")


def step_options(step: Step) -> set[str]:
    """Return the names of all options of a step's command."""
    return _options_in(step.source) | _users_options(step.kind, step.source)


@cache
def _options_in(recipe: Recipe) -> set[str]:
    return {*recipe.values(), *(item.name for item in fields(PretrainRunOptions)), *BACKBONE_OPTIONS}


def _users_options(kind: str, recipe: Recipe) -> set[str]:
    """Return the options that the dataclass of a user's task or method has; none for one of the suite."""
    part = _users_part(kind, recipe)
    return {item.name for item in fields(part.options)} if part else set()


def _task_of(kind: str, recipe: Recipe) -> str:
    """Return the task in the records of a recipe."""
    part = _users_part(kind, recipe)
    if kind == "run":
        return part.name if part else recipe.name
    return f"pretrain-{part.name if part else recipe.values().get('method')}"


def _users_part(kind: str, recipe: Recipe) -> "Task | Method | None":
    """Return the user's task or method that a recipe is for; None for one of the suite."""
    named = recipe.name if kind == "run" else str(recipe.values().get("method"))
    if not is_in_file(recipe.name) and not is_in_file(named):
        return None
    from backbones.pretrain.method import load_method
    from tasks.task import load_task

    return load_task(named) if kind == "run" else load_method(method_of(recipe))


def parse_seeds(values: list[Any], where: str) -> tuple[int, ...]:
    """Return the seeds as a tuple. Raises UsageError unless they are distinct whole numbers from 0."""
    if not values or any(not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 for seed in values):
        raise UsageError(f"{where}: `seeds` is a list of numbers, 0 or above")
    if len({*values}) < len(values):
        raise UsageError(f"{where}: `seeds` names one twice")
    return tuple(values)


def number(value: Any) -> Any:
    """Convert a number that YAML reads as text, such as 1e-3; a list becomes a tuple, other values stay."""
    if isinstance(value, list):
        return tuple(map(number, value))
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?e[-+]?\d+", value, re.IGNORECASE):
        return float(value)
    return value


def plain_numbers(options: dict[str, Any]) -> dict[str, Any]:
    """Convert the numbers among option values that YAML reads as text."""
    return {name: number(value) for name, value in options.items()}


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a value that is a mapping. Raises UsageError for any other."""
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected `key: value` lines, not {value!r}")
    return value


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, None as an empty list, and any other value as a list of one."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
