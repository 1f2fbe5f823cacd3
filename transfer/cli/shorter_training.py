"""Fits the schedule of a recipe to a training of fewer epochs. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.runtime.needs import spans_of
from backbones.settings import CONFIGS, read_yaml
from transfer.cli.yaml_layers import flag_values, layer_values, names_of_flags

if TYPE_CHECKING:
    from transfer.cli.command import Recipe

Layer = tuple[Path, dict[str, Any]]
HELD = ("warmup_epochs", "cooldown_epochs")
"""The spans that last whole epochs where the rate is held per epoch."""


def fitted_schedule(
    kind: type[Any], recipe: "Recipe", layers: Sequence[Layer], argv: list[str]
) -> tuple[list[Layer], str]:
    """Return a layer in the place of what does not fit a training shorter than the recipe's, and the line that says so.

    A warm-up and cool-down, or another span (see `backbones.runtime.needs.Span`), that leave no epoch, and milestones
    behind the last one, are scaled by the epochs / the recipe's. If a span is then no whole number of epochs, a
    schedule that is held per epoch moves by step. What the user sets stays as it is, and is refused if it does not fit.

    Args:
        kind: the dataclass of the options.
        recipe: the recipe.
        layers: the YAML files with their values, that of the recipe first; later ones win.
        argv: the flags.
    """
    shipped, users = _by_origin(recipe, layers)
    flags = [value for value in flag_values(argv, "--epochs") if value.isdecimal()]
    whole = shipped.get("epochs", 0)
    epochs = int(flags[0]) if flags else users.get("epochs", whole)
    if not 0 < epochs < whole:
        return [], ""
    given = {*users, *names_of_flags(argv)}
    spans = {name: span for name, span in spans_of(kind).items() if shipped.get(name) and name not in given}
    held = shipped.get("schedule") == "epoch" and "schedule" not in given
    around = sum(shipped[name] for name in HELD if name in spans) + held * max(-shipped.get("schedule_offset", 0), 0)
    fitted: dict[str, Any] = {
        name: _scaled(shipped[name], epochs / whole, span.whole)
        for name, span in spans.items()
        if (around if name in HELD else _last(shipped[name])) >= epochs
    }
    if held and any(fitted.get(name, 0) % 1 for name in HELD):
        fitted["schedule"] = "step"
    changes = ", ".join(f"{name} {_text(shipped[name])} -> {_text(value)}" for name, value in fitted.items())
    line = f"--epochs {epochs}, where the recipe has {whole}: {changes}; as flags they are taken as given"
    return ([(Path(f"--epochs {epochs}"), fitted)], line) if fitted else ([], "")


def _by_origin(recipe: "Recipe", layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the recipe and of shipped files, and those of the user's files that stand above them."""
    shipped, users = (read_yaml(recipe.base), layer_values(recipe.path)) if recipe.base else (layers[0][1], {})
    for path, values in layers[1:]:
        if path == recipe.smoke or CONFIGS in path.parents:
            shipped, users = shipped | values, {key: value for key, value in users.items() if key not in values}
        else:
            users = users | {key.replace("-", "_"): value for key, value in values.items()}
    return shipped, users


def _last(value: Any) -> float:
    return float(max(value) if isinstance(value, list) else value)


def _scaled(value: Any, share: float, whole: bool) -> Any:
    if isinstance(value, list):
        return [_scaled(item, share, whole) for item in value]
    return round(value * share) if whole else float(f"{value * share:.4g}")


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
