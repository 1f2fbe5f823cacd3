"""Reads names and values of flags and of the YAML files that `--config` names. Imports no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from backbones.errors import UsageError, did_you_mean
from backbones.settings import CONFIGS, config_names, read_yaml

# Options whose values may be paths beside the YAML file that has them.
_PATH_OPTIONS = ("arch", "stem", "attention", "ffn", "backbone", "dataset", "weights", "detector", "metric", "method")


def flag_values(argv: list[str], flag: str) -> list[str]:
    """Return the values of a flag, written as `--flag A B` or `--flag=A`, in their order."""
    values: list[str] = []
    for position, argument in enumerate(argv):
        if argument.startswith(f"{flag}="):
            values.append(argument.partition("=")[2])
        elif argument == flag:
            for value in argv[position + 1 :]:
                if value.startswith("--"):
                    break
                values.append(value)
    return values


def names_of_flags(argv: list[str]) -> tuple[str, ...]:
    """Return the names of the options that flags set; `--no-NAME` gives NAME with and without its prefix."""
    flags = (argument.partition("=")[0].removeprefix("--") for argument in argv if argument.startswith("--"))
    names = (flag.replace("-", "_") for flag in flags)
    return tuple(dict.fromkeys(form for name in names for form in (name, name.removeprefix("no_"))))


def layer_values(path: Path) -> dict[str, Any]:
    """Return the values in a YAML file; none for the Python file of a user's task. Raises the errors of `read_yaml`."""
    return {} if path.suffix == ".py" else read_yaml(path)


def config_files(argv: list[str]) -> list[Path]:
    """Return the YAML files of `--config`: a user's own, or those of configs/schedules by name. Raises UsageError."""
    return [_config_file(name) for name in flag_values(argv, "--config")]


def _config_file(name: str) -> Path:
    path = Path(name)
    if path.suffix or path.exists():
        return path
    shipped = config_names("schedules")
    if name not in shipped:
        known = f"{did_you_mean(name, shipped)} (schedules: {', '.join(shipped)})"
        raise UsageError(f"--config {name}: file or schedule not found{known}")
    return CONFIGS / "schedules" / f"{name}.yaml"


def check_keys(layer: Path, content: Mapping[str, Any], groups: Iterable[type[Any]]) -> None:
    """Check that each key of a YAML file is an option. Raises UsageError with the nearest names."""
    known = [item.name for group in groups for item in fields(group)]
    for key in content:
        if key.partition(".")[0].replace("-", "_") not in known:
            raise UsageError(f"{layer}: unknown option `{key}`{did_you_mean(key, known)}")


def with_full_paths(layer: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a YAML file in which files that lie beside it have their full paths. Raises UsageError."""
    if "config" in content:
        raise UsageError(f"{layer}: `config` is not allowed in a YAML; use --config with both files")

    def full_path(value: Any) -> Any:
        if isinstance(value, list):
            return [full_path(item) for item in value]
        path = value.rpartition(":")[0] if isinstance(value, str) and ".py:" in value else value
        if isinstance(path, str) and path and (layer.parent / path).is_file():
            return str((layer.parent / path).resolve()) + value[len(path) :]
        return value

    return {name: full_path(value) if name in _PATH_OPTIONS else value for name, value in content.items()}
