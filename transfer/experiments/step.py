"""Parses and checks the steps of a sweep's YAML, its rows, and the variants that a command compares. Imports no torch.

Rows are the file's own or a published table's; variants are combinations of a stem, an attention and an FFN.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

from backbones.spec import parse_field, resolve
from transfer.cli.options import BACKBONE_OPTIONS, PretrainRunOptions, check_resources
from transfer.cli.recipe import Recipe, method_of, pretraining_recipe, task_recipe
from transfer.core.errors import UsageError, attempt, did_you_mean, errors_naming, errors_together, kept, reject
from transfer.core.grouped import without_repeats
from transfer.core.options import as_items, as_list, check_keys, mapping
from transfer.core.user_code import VARIED_PARTS, builtin_names, is_in_file, is_user_part, locate
from transfer.data.spec import dataset_names, resolve_dataset
from transfer.experiments.published_rows import rows_of, used_values
from transfer.task import Task, load_task

STEP_KEYS = ("pretrain", "run", "after", "backbone", "dataset", "seeds", "options", "grid", "resources")
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
        return tuple(chain.from_iterable(map(options_of, self.grid)))

    @property
    def source(self) -> Recipe:
        """Recipe from which the step's command takes values."""
        return source_of(self.kind, self.recipe)

    @property
    def task(self) -> Task:
        """Task in the records of the step: `pretrain-METHOD` for a pretraining, else the task itself."""
        return _task_of(self.kind, self.source)


def parse_step(name: str, content: dict[str, Any], shared: dict[str, Any], file: str) -> Step:
    """Parse the step `name` of a sweep's YAML. Raises UsageError that names the place; wrong names are `kept`."""
    where = f"{file}: steps.{name}"
    attempt(check_keys, content, STEP_KEYS, where)
    kinds = [kind for kind in ("pretrain", "run") if kind in content]
    backbone, dataset = (as_list(content.get(key)) for key in ("backbone", "dataset"))
    missing = []
    if len(kinds) != 1:
        missing.append("`pretrain: RECIPE` or `run: TASK`, one of them,")
    if not backbone and not content.get("after"):
        missing.append("`backbone`")
    if not dataset:
        missing.append(f"`dataset` ({', '.join(dataset_names())}, or a YAML file)")
    if missing:
        raise UsageError(f"{where}: {' and '.join(missing)} is missing")
    options, grid, resources = (
        mapping(content.get(key) or {}, f"{where}: {key}") for key in ("options", "grid", "resources")
    )
    attempt(check_resources, shared | resources, f"{where}: resources")
    # null removes an axis
    lists = {name: as_list(values) for name, values in grid.items() if values is not None}
    axes = {",".join(options_of(name)): without_repeats(values) for name, values in lists.items()}
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
    with kept(), errors_naming(where), errors_together():
        for dataset_name in step.dataset:
            attempt(resolve_dataset, dataset_name)
        for backbone_name in step.backbone:
            attempt(resolve, backbone_name)
        check_options((*step.options, *step.varied), step.kind, step.recipe)
    if empty := [axis for axis, values in axes.items() if not values]:
        raise UsageError(f"{where}: the grid of `{empty[0]}` is empty")
    for axis, values in axes.items():
        count = len(options_of(axis))
        if wrong := [value for value in values if count > 1 and len(as_list(value)) != count]:
            raise UsageError(f"{where}: `{axis}` varies lists of {count} values, not {wrong[0]!r}")
    return step


def options_of(axis: str) -> tuple[str, ...]:
    """Return the options that an axis of a grid varies: usually one, or several together."""
    return tuple(name.strip() for name in axis.split(","))


@errors_together()
def check_options(names: Iterable[str], kind: str, recipe: str) -> None:
    """Raise UsageError for options that a step of a kind and recipe does not have, or that the runner sets."""
    settable = step_options(kind, recipe) - {*RESERVED}
    for name in names:
        if name not in settable:
            hint = did_you_mean(name, {*settable, *STEP_KEYS}) or f" (known: {', '.join(sorted(settable))})"
            reject(f"unknown option {name!r}{hint}")


def source_of(kind: str, recipe: str) -> Recipe:
    """Return the recipe of a step of this kind, "run" or "pretrain"."""
    return (task_recipe if kind == "run" else pretraining_recipe)(recipe)


def step_options(kind: str, recipe: str) -> set[str]:
    """Return the names of all options of a step's command."""
    source = source_of(kind, recipe)
    items = (*fields(PretrainRunOptions), *fields(_task_of(kind, source).options))
    return {*source.values(), *BACKBONE_OPTIONS, *(item.name for item in items)}


def _task_of(kind: str, recipe: Recipe) -> Task:
    return load_task(recipe.name if kind == "run" else method_of(recipe))


def parse_seeds(value: Any, where: str) -> tuple[int, ...]:
    """Return the seeds as a tuple. Raises UsageError unless they are without_repeats whole numbers from 0."""
    seeds = as_list(value)
    if not seeds or any(type(seed) is not int or seed < 0 for seed in seeds) or len({*seeds}) < len(seeds):
        raise UsageError(f"{where}: `seeds` is a list of different numbers, 0 or above, not {value!r}")
    return tuple(seeds)


def read_rows(
    content: dict[str, Any], steps: dict[str, Step], readings: str, replaced: Collection[tuple[str, ...]], where: str
) -> list[dict[str, Any]]:
    """Return the label of each row, and the values of its options by step; a single empty row if the file has none.

    Args:
        content: the sweep's YAML.
        steps: the parsed steps of the tier.
        readings: how many readings of a published table's ambiguous options to use, "one" or "both".
        replaced: (step, option) of each option that a tier or a setting replaces, which is left out.
        where: the file's name for error messages.

    Raises:
        UsageError: a key or option is unknown; the message names its place.
    """
    if "rows" in content and "table" in content:
        raise UsageError(f"{where}: `rows` and `table` exclude each other")
    if "table" in content:
        rows = rows_of(str(content["paper"]), str(content.get("table")))
    elif "rows" in content:
        rows = [mapping(row, f"{where}: rows") for row in as_items(content["rows"], f"{where}: rows")]
    else:
        return [{"label": ""}]
    dropped, most = set(mapping(content["steps"], where)) - set(steps), 1 if readings == "one" else None
    parsed_rows = []
    for number, row in enumerate(rows, 1):
        attempt(check_keys, row, (*steps, *dropped, "label"), f"{where}: row {number}")
        parsed = {key: mapping(row[key] or {}, f"{where}: row {number}: {key}") for key in row if key in steps}
        for key, options in parsed.items():
            with kept(), errors_naming(f"{where}: row {number}: {key}"):
                check_options(options, steps[key].kind, steps[key].recipe)
            values = {
                name: used_values(value)[:most] if "table" in content else [value] for name, value in options.items()
            }
            parsed[key] = {name: value for name, value in values.items() if (key, name) not in replaced}
        if parsed or dropped.isdisjoint(row):
            parsed_rows.append({"label": str(row.get("label", "")), **parsed})
    return parsed_rows


def read_variants(asked: Mapping[str, str], against: Sequence[str]) -> list[dict[str, str]]:
    """Return the parts that each variant names: first the one that is asked for, then the ones to compare it with.

    Args:
        asked: the value of each part of the first variant.
        against: the others, as `conv` or `stem=conv,attention=relu`; if there are none, the backbone's own parts.

    Raises:
        UsageError: lists every unknown part, with the nearest names.
    """
    variants = [dict(asked)]
    with errors_together():
        for text in against or [""]:
            with kept():
                variants.append(_parts(text, tuple(asked)))
        for part, value in chain.from_iterable(variant.items() for variant in variants):
            with kept():
                parse_field(part, locate(value) if is_in_file(value) else value)  # a user's file is not run
    return variants


def selector(parts: Mapping[str, str]) -> str:
    """Return parts as reports select them: `stem=conv,attention=relu`."""
    return ",".join(f"{part}={value}" for part, value in parts.items())


def _parts(text: str, asked: Sequence[str]) -> dict[str, str]:
    """Return the parts that a text of `--against` names; a bare value is one of the parts asked for."""
    if not text or re.match(f"({'|'.join(VARIED_PARTS)})=", text):
        assignments = re.split(f",(?=(?:{'|'.join(VARIED_PARTS)})=)", text) if text else []
        return dict(assignment.split("=", 1) for assignment in assignments)
    fitting = asked if len(asked) == 1 else [part for part in asked if text in builtin_names(part)]
    if len(fitting) == 1:
        return {fitting[0]: text}
    near = "" if is_user_part(text) else did_you_mean(text, chain.from_iterable(map(builtin_names, asked)))
    choices = " or ".join(f"{part}={text}" for part in asked)
    raise UsageError(f"--against {text}: must be one of the {' or '.join(asked)} names, or {choices}{near}")
