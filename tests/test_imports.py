"""transfer -> tasks -> backbones, never back; heavy libraries stay where they belong."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {"backbones": {"tasks", "transfer"}, "tasks": {"transfer"}, "transfer": set()}
FILES = sorted(path.relative_to(ROOT) for room in FORBIDDEN for path in (ROOT / room).rglob("*.py"))
# What names are checked with, before anything heavy is loaded.
LIGHT = [
    "backbones/__init__.py",
    "backbones/errors.py",
    "backbones/settings.py",
    "backbones/spec.py",
    "backbones/data/spec.py",
    "backbones/stems.py",
    "backbones/user_code.py",
    "transfer/cli/command.py",
]


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_point_one_way(path: Path) -> None:
    assert not imported(path) & FORBIDDEN[path.parts[0]]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_only_settings_reads_yaml_and_flags(path: Path) -> None:
    assert path == Path("backbones/settings.py") or not imported(path) & {"yaml", "tyro", "argparse"} - {"argparse"}


@pytest.mark.parametrize("name", LIGHT)
def test_names_are_checked_without_torch(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    top = {node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in top if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in names} & {"torch", "timm", "torchvision", "numpy", "pandas"}
