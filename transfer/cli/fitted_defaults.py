"""Fits defaults of a recipe to the epochs, the size, the backbone or the dataset of a command. Imports no torch."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transfer.cli.layers import Layer, flag_values, layer_values, names_of_flags
from transfer.core.options import Span, noted
from transfer.core.settings import CONFIGS, as_flags, read_yaml

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
    given = {*users, *names_of_flags(argv)}
    fitted, lines = list[Layer](), []
    for option, fit in (("epochs", _fitted_spans), ("size", _fitted_resize)):
        flags = [value for value in flag_values(argv, f"--{option}") if value.isdecimal()]
        new, old = int(flags[0]) if flags else users.get(option), shipped.get(option)
        if not (isinstance(new, int) and isinstance(old, int) and 0 < new != old > 0):
            continue
        if values := fit(kind, shipped, given, new):
            changes = ", ".join(f"{name} {shipped[name]} -> {value}" for name, value in values.items())
            fitted.append((Path(f"--{option} {new}"), values))
            lines.append(f"--{option} {new}, where the recipe has {old}: {changes}; as flags they are taken as given")
    return fitted, tuple(lines)


def _fitted_spans(kind: type[Any], shipped: dict[str, Any], given: set[str], epochs: int) -> dict[str, Any]:
    whole = shipped["epochs"]
    values = {name: _numbers(shipped.get(name)) for name in noted(kind, Span) if name not in given}
    held = shipped.get("schedule") == "epoch" and "schedule" not in given
    around = sum(sum(values.get(name, ())) for name in HELD) + held * max(-shipped.get("schedule_offset", 0), 0)
    fitted: dict[str, Any] = {
        name: _scaled(shipped[name], epochs / whole, noted(kind, Span)[name].whole)
        for name, numbers in values.items()
        if any(numbers) and (name == "milestones" or (around if name in HELD else max(numbers)) >= epochs)
    }
    if held and any(fitted.get(name, 0) % 1 for name in HELD):
        fitted["schedule"] = "step"
    return fitted


def _fitted_resize(kind: type[Any], shipped: dict[str, Any], given: set[str], size: int) -> dict[str, Any]:
    resize = None if "resize" in given else shipped.get("resize")
    return {"resize": resize * size // shipped["size"]} if resize else {}


def fitted_options(
    options: Any, defaults: Mapping[str, tuple[Any, str]], given: Collection[str]
) -> tuple[Any, tuple[str, ...]]:
    """Return options with the defaults that fit better than the recipe's, and a line for each with its reason.

    Args:
        options: the options of a task.
        defaults: see `transfer.task.Task.defaults_for_backbone`.
        given: the names of the options that the user set, which are not changed.
    """
    changed = {k: v for k, (v, _) in defaults.items() if k not in given and v != getattr(options, k)}
    lines = [
        f"{_as_flag(k, v)}, where the recipe has {_as_flag(k, getattr(options, k))}: {defaults[k][1]}"
        for k, v in changed.items()
    ]
    return replace(options, **changed) if changed else options, tuple(lines)


def _as_flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{'no-' * (not value)}{name.replace('_', '-')}"
    return " ".join(as_flags({name: list(value) if isinstance(value, tuple) else value}))


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
    return values if all(isinstance(one, int | float) for one in values) else []


def _scaled(value: Any, share: float, whole: bool) -> Any:
    if isinstance(value, list):
        return [_scaled(item, share, whole) for item in value]
    return round(value * share) if whole else float(f"{value * share:.4g}")
