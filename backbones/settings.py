"""YAML files and option dataclasses. The only file that imports yaml and tyro; it imports no torch."""

from pathlib import Path
from typing import Any

import yaml

from backbones.errors import UserError, WrongWords

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        WrongWords: the file is missing, is not YAML, or holds something else than a mapping with text keys.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise WrongWords(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise WrongWords(f"{path}: not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise WrongWords(f"{path}: expected `key: value` lines at the top level")
    return content


def write_yaml(content: dict[str, Any]) -> str:
    """YAML text with the keys in the order given."""
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def config_names(room: str) -> list[str]:
    """Names of the YAML files in one room of `configs/` ("tasks", "backbones", "datasets", ...), sorted."""
    return sorted(path.stem for path in (CONFIGS / room).glob("*.yaml"))
