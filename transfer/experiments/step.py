"""Parses and checks one step of a sweep's YAML. Imports no torch."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from transfer.cli.command import Recipe, pretraining_recipe, task_recipe
from transfer.cli.early_checks import method_of
from transfer.cli.options import BackboneOptions, PretrainRunOptions, check_resources
from transfer.core.errors import UsageError, did_you_mean, errors_naming, errors_together, kept
from transfer.core.options import check_keys, mapping
from transfer.core.user_code import is_in_file
from transfer.data.spec import dataset_names, resolve_dataset

if TYPE_CHECKING:
    from transfer.task import Task

STEP_KEYS = ("pretrain", "run", "after", "backbone", "dataset", "seeds", "options", "grid", "resources")
BACKBONE_OPTIONS = tuple(option.name for option in fields(BackboneOptions))
# options that the runner sets, so that a sweep cannot
RESERVED = ("backbone", "dataset", "seeds", "out", "name", "export_dir", "result_file", "config", "dry_run", "replace")


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
        return source_of(self.kind, self.recipe)

    @property
    def option_type(self) -> type[Any]:
        """The dataclass of the options of the step's task or method."""
        return _option_type(self.kind, self.source)

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
    kinds = [kind for kind in ("pretrain", "run") if kind in content]
    backbone, dataset = (as_list(content.get(key)) for key in ("backbone", "dataset"))
    missing = ["`pretrain: RECIPE` or `run: TASK`, one of them,"] * (len(kinds) != 1)
    missing += ["`backbone`"] * (not backbone and not content.get("after"))
    missing += [f"`dataset` ({', '.join(dataset_names())}, or a YAML file)"] * (not dataset)
    if missing:
        raise UsageError(f"{where}: {' and '.join(missing)} is missing")
    options, grid, resources = (
        mapping(content.get(key) or {}, f"{where}: {key}") for key in ("options", "grid", "resources")
    )
    check_resources(shared | resources, f"{where}: resources")
    axes = {",".join(options_of(name)): distinct(as_list(values)) for name, values in grid.items()}
    step = Step(
        name=name,
        kind=kinds[0],
        recipe=str(content[kinds[0]]),
        after=content.get("after"),
        backbone=tuple(map(str, backbone)),
        dataset=tuple(map(str, dataset)),
        seeds=parse_seeds(content["seeds"], where) if content.get("seeds") is not None else None,
        options=options,
        grid=axes,
        resources={key: value for key, value in (shared | resources).items() if value is not None},
    )
    with errors_naming(where), errors_together():
        for one in step.dataset:
            with kept():
                resolve_dataset(one)
        for option in (*step.options, *step.varied):
            with kept():
                check_option(option, step_options(step.kind, step.recipe))
    if empty := [axis for axis, values in axes.items() if not values]:
        raise UsageError(f"{where}: the grid of `{empty[0]}` is empty")
    return step


def distinct(values: list[Any]) -> list[Any]:
    """Return each value once."""
    return list({repr(value): value for value in values}.values())


def options_of(axis: str) -> tuple[str, ...]:
    """Return the options that an axis of a grid varies: usually one, or several together."""
    return tuple(name.strip() for name in axis.split(","))


def check_option(name: str, known: Collection[str]) -> None:
    """Raise UsageError for an option that the step does not have, or that the runner sets."""
    settable = {*known} - {*RESERVED}
    if name not in settable:
        hint = did_you_mean(name, {*settable, *STEP_KEYS}) or f" (known: {', '.join(sorted(settable))})"
        raise UsageError(f"unknown option {name!r}{hint}")


def source_of(kind: str, recipe: str) -> Recipe:
    """Return the recipe of a step of this kind, "run" or "pretrain"."""
    return (task_recipe if kind == "run" else pretraining_recipe)(recipe)


def step_options(kind: str, recipe: str) -> set[str]:
    """Return the names of all options of a step's command."""
    return _options_in(source_of(kind, recipe)) | _users_options(kind, source_of(kind, recipe))


@cache
def _options_in(recipe: Recipe) -> set[str]:
    return {*recipe.values(), *(item.name for item in fields(PretrainRunOptions)), *BACKBONE_OPTIONS}


@cache
def _option_type(kind: str, recipe: Recipe) -> type[Any]:
    from transfer.task import load_task

    return load_task(recipe.name if kind == "run" else method_of(recipe)).options


def _users_options(kind: str, recipe: Recipe) -> set[str]:
    """Return the options that the dataclass of a user's task or method has; none for one of the suite."""
    part = _users_part(kind, recipe)
    return {item.name for item in fields(part.options)} if part else set()


def _task_of(kind: str, recipe: Recipe) -> str:
    """Return the task in the records of a recipe."""
    part = _users_part(kind, recipe)
    return part.name if part else recipe.name if kind == "run" else f"pretrain-{recipe.values().get('method')}"


def _users_part(kind: str, recipe: Recipe) -> "Task | None":
    """Return the user's task or method that a recipe is for; None for one of the suite."""
    named = recipe.name if kind == "run" else str(recipe.values().get("method"))
    if not is_in_file(recipe.name) and not is_in_file(named):
        return None
    from transfer.task import load_task

    return load_task(named if kind == "run" else method_of(recipe))


def parse_seeds(value: Any, where: str) -> tuple[int, ...]:
    """Return the seeds as a tuple. Raises UsageError unless they are distinct whole numbers from 0."""
    seeds = as_list(value)
    if not seeds or any(type(seed) is not int or seed < 0 for seed in seeds) or len({*seeds}) < len(seeds):
        raise UsageError(f"{where}: `seeds` is a list of different numbers, 0 or above, not {value!r}")
    return tuple(seeds)


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, None as an empty list, and any other value as a list of one."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
