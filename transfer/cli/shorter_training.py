"""Fits the schedule of a recipe to a training of fewer epochs. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backbones.runtime.needs import spans_of
from backbones.settings import CONFIGS, read_yaml
from transfer.cli.yaml_layers import flag_values, layer_values, names_of_flags

Layer = tuple[Path, dict[str, Any]]
HELD = ("warmup_epochs", "cooldown_epochs")
"""The spans that last whole epochs where the rate is held per epoch."""


def fitted_schedule(
    kind: type[Any], layers: Sequence[Layer], argv: list[str], base: Path | None, smoke: Path
) -> tuple[list[Layer], str]:
    """Return a layer in the place of what does not fit a training shorter than the recipe's, and the line that says so.

    A warm-up and cool-down, or another span (see `backbones.runtime.needs.Span`), that leave no epoch, and milestones
    behind the last one, are scaled by the epochs / the recipe's. If a span is then no whole number of epochs, a
    schedule that is held per epoch moves by step. What the user sets stays as it is, and is refused if it does not fit.

    Args:
        kind: the dataclass of the options.
        layers: the YAML files with their values, that of the recipe first; later ones win.
        argv: the flags.
        base, smoke: those of the recipe, see `transfer.cli.command.Recipe`.
    """
    shipped, users = _by_origin(layers, base, smoke)
    flags = [value for value in flag_values(argv, "--epochs") if value.isdecimal()]
    whole = shipped.get("epochs", 0)
    epochs = int(flags[0]) if flags else users.get("epochs", whole)
    if not (isinstance(epochs, int) and isinstance(whole, int) and 0 < epochs < whole):
        return [], ""
    given = {*users, *names_of_flags(argv)}
    values = {name: _numbers(shipped.get(name)) for name in spans_of(kind) if name not in given}
    held = shipped.get("schedule") == "epoch" and "schedule" not in given
    around = sum(sum(values.get(name, ())) for name in HELD) + held * max(-shipped.get("schedule_offset", 0), 0)
    fitted: dict[str, Any] = {
        name: _scaled(shipped[name], epochs / whole, spans_of(kind)[name].whole)
        for name, numbers in values.items()
        if any(numbers) and (around if name in HELD else max(numbers)) >= epochs
    }
    if held and any(fitted.get(name, 0) % 1 for name in HELD):
        fitted["schedule"] = "step"
    changes = ", ".join(f"{name} {shipped[name]} -> {value}" for name, value in fitted.items())
    line = f"--epochs {epochs}, where the recipe has {whole}: {changes}; as flags they are taken as given"
    return ([(Path(f"--epochs {epochs}"), fitted)], line) if fitted else ([], "")


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
    """Return a value or those in a list; none of what is no number, which the parser will name."""
    values = value if isinstance(value, list) else [value]
    return values if all(isinstance(one, int | float) for one in values) else []


def _scaled(value: Any, share: float, whole: bool) -> Any:
    if isinstance(value, list):
        return [_scaled(item, share, whole) for item in value]
    return round(value * share) if whole else float(f"{value * share:.4g}")
