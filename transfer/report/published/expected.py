"""Options and backbone of a step of a published table's sweep at its full tier. Imports no torch."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from backbones.archs import VOLOS
from backbones.settings import read_yaml
from backbones.spec import FIELDS, LEFT_TO_RECIPES, BackboneSpec, resolve
from transfer.cli.command import pretraining_recipe, task_recipe
from transfer.published.rows import used_values
from transfer.published.schema import Row
from transfer.sweep.definition.step import Step
from transfer.sweep.definition.sweep_file import SweepFile


def expected_options(step: Step, row: Row) -> dict[str, Any]:
    """Return all options of a step, overridden by those of a row."""
    return _recipe(step) | step.options | row.steps.get(step.name, {})


def expected_backbone(sweep: SweepFile, step: Step, row_options: Mapping[str, dict[str, Any]]) -> BackboneSpec:
    """Return the backbone of a step, whose parts the preceding steps may name.

    Args:
        row_options: options of a row, by step.
    """
    parts: dict[str, Any] = {}
    names: tuple[str, ...] = ()
    current: Step | None = step
    while current is not None:
        values = _recipe(current) | current.options | row_options.get(current.name, {})
        parts = {name: item for name, item in values.items() if name in FIELDS and name != "drop_path"} | parts
        names = names or current.backbone
        current = sweep.steps[current.after] if current.after else None
    parts = {name: used_values(item)[0] for name, item in parts.items()} | {"weights": "random"}
    return _resolved(names[0], json.dumps(parts, sort_keys=True))


def expects_volo(sweep: SweepFile, step: Step) -> bool:
    """Return whether a step trains or evaluates a VOLO."""
    return expected_backbone(sweep, step, {}).arch in VOLOS


def _recipe(step: Step) -> dict[str, Any]:
    return read_yaml((pretraining_recipe if step.kind == "pretrain" else task_recipe)(step.recipe).path)


@lru_cache
def _resolved(name: str, parts: str) -> BackboneSpec:
    named = json.loads(parts)
    usual = {key: named.pop(key) for key in LEFT_TO_RECIPES if key in named}
    return resolve(name, usual=usual, **named)
