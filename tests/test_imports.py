"""Imports point down: no circle between files or rooms, and heavy libraries stay where they belong.

A room is a folder of code. The rooms are listed below once, from top to bottom: a room imports only from rooms that
stand after it. `docs/architecture.md` has the same list.
"""

import ast
import re
from collections.abc import Callable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("transfer", "tasks", "backbones")

TASKS = sorted(path.parent.name for path in (ROOT / "tasks").glob("*/task.py"))
ROOMS = (
    # commands, and what these are made of
    *("transfer/sweep", "transfer/launch", "transfer/report", "transfer/report/claims", "transfer/report/page"),
    *(
        "transfer/report/published",
        "transfer/report/figures",
        "transfer/report/summary",
        "transfer/predict",
        "transfer/doctor",
    ),
    *("transfer/testing", "transfer/verify", "transfer/report/tables", "transfer/measure", "transfer/evaluation"),
    *("transfer/comparison", "transfer/experiments", "transfer/records", "transfer/cli"),
    # tasks
    *(f"tasks/{name}" for name in TASKS),
    *("tasks/detect/coco", "tasks/ranking"),
    # models and pretraining
    *("backbones/pretrain/dino", "backbones/pretrain/supervised", "backbones/pretrain", "backbones/diagnostics"),
    *("backbones/weights", "backbones/kernels"),
    # the framework
    *("transfer/engine", "transfer/data/coco", "transfer/data/reid"),
    *("transfer/data/formats", "transfer/data/toy", "transfer/data/splits", "transfer/data/loading"),
    *("transfer/statistics", "transfer/core"),
)
"""Every room that has an order among the others; a room imports only rooms after it. The files directly in `transfer`,
`transfer/data`, `tasks` and `backbones` are what people run and import; they stand between the rooms, one by one."""
BETWEEN_ROOMS = ("transfer", "transfer/data", "backbones", "tasks")
FRAMEWORK = ("core", "statistics", "data", "engine")
"""Rooms of `transfer` that `tasks` and `backbones` stand on, beside `transfer.task`."""

MOST_FILES = 16


def module_of(path: Path) -> str:
    """A file's dotted name; a package has that of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))}
FILES = sorted(path.relative_to(ROOT) for path in MODULES.values())


@cache
def imported(module: str, at_once: bool = False) -> frozenset[str]:
    """Dotted names that a module imports anywhere, within functions and for type checkers too, or only at once."""
    names, nodes = set[str](), list[ast.AST](ast.parse(MODULES[module].read_text(encoding="utf-8")).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif not at_once:
            nodes += ast.iter_child_nodes(node)
        elif isinstance(node, ast.Try) or (isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test)):
            nodes += node.body
    return frozenset(names)


def of_suite(name: str) -> str | None:
    """The module of this suite that an imported name is, or lies in."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def file_graph() -> dict[str, set[str]]:
    """Module -> modules of this suite that it imports."""
    return {name: {found for one in imported(name) if (found := of_suite(one))} - {name} for name in MODULES}


def docstring(folder: str) -> str:
    """What a room says of itself."""
    return ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8"))) or ""


def folder_of(module: str) -> str:
    """The folder that a module lies in."""
    return MODULES[module].parent.relative_to(ROOT).as_posix()


def room_of(module: str) -> str:
    """The room of a module: its folder; the module itself where it stands between the rooms."""
    return module if folder_of(module) in BETWEEN_ROOMS else folder_of(module)


def room_graph() -> dict[str, set[str]]:
    """Room -> rooms that it imports from."""
    graph: dict[str, set[str]] = {room_of(name): set() for name in MODULES}
    for name, others in file_graph().items():
        graph[room_of(name)] |= {room_of(other) for other in others} - {room_of(name)}
    return graph


@pytest.mark.parametrize("graph", [file_graph, room_graph])
def test_no_circle_between_files_or_rooms(graph: Callable[[], dict[str, set[str]]]) -> None:
    TopologicalSorter(graph()).prepare()  # which names a circle, if there is one


def test_rooms_import_from_rooms_below() -> None:
    order = {name: place for place, name in enumerate(ROOMS)}
    imports = [(room, other) for room, others in room_graph().items() for other in others]
    assert not [pair for pair in imports if {*pair} <= order.keys() and order[pair[1]] < order[pair[0]]]


def in_framework(module: str) -> bool:
    """Whether a module stands below the models."""
    return module.startswith(tuple(f"transfer.{room}" for room in FRAMEWORK))


def test_tasks_on_backbones_on_the_framework() -> None:
    for name, others in file_graph().items():
        if in_framework(name):
            assert {other for other in others if not in_framework(other)} <= {"transfer"}, name
        elif not name.startswith("transfer"):
            above = {other for other in others if other.startswith("transfer.") and not in_framework(other)}
            assert above <= {"transfer.task"}, name
        if not name.startswith("tasks") and name != "transfer.api":  # which hands on what users build on
            assert not {other for other in others if other.startswith("tasks")}, name


def test_no_task_imports_another() -> None:
    for name, others in file_graph().items():
        known = {task for task in TASKS if any(f"{other}.".startswith(f"tasks.{task}.") for other in (name, *others))}
        assert len(known) <= 1 or not name.startswith("tasks."), name


def test_every_room_is_listed_and_says_what_lives_there() -> None:
    assert {folder_of(name) for name in MODULES} == {*ROOMS, *BETWEEN_ROOMS}
    for folder in (*ROOMS, *BETWEEN_ROOMS):
        text = docstring(folder)
        sentences = text.count(". ") + text.count(".\n") + text.endswith(".")
        assert sentences >= 2, f"{folder}: say what lives here and what does not"


def test_no_room_is_crowded() -> None:
    folders = [folder_of(name) for name in MODULES]
    assert {folder: count for folder in set(folders) if (count := folders.count(folder)) > MOST_FILES} == {}


def test_a_library_of_an_extra_is_imported_where_it_is_used() -> None:
    extras, fast = {"cv2", "datasets", "pyarrow"}, "transfer.data.loading.fast_ops"
    names = {name: imported(name, at_once=True) for name in MODULES}
    assert [name for name in MODULES if {other.partition(".")[0] for other in names[name]} & extras] == [fast]
    assert not [name for name in MODULES if any(of_suite(other) == fast for other in names[name])]


def test_only_settings_reads_yaml_and_flags() -> None:
    readers = {name for name in MODULES if {other.partition(".")[0] for other in imported(name)} & {"yaml", "tyro"}}
    assert readers == {"transfer.core.settings"}


def test_what_is_printed_shows_control_characters() -> None:
    """But for pages and scripts of the suite's own text, and the colors of a report on a terminal."""
    plain = {"transfer.cli.help"}
    printing = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id == "print"
    }
    assert printing == {"transfer.core.errors"} | plain


def test_oracles_know_nothing_of_the_suite() -> None:
    ours = re.compile(r"^ *(from|import) (backbones|tasks|transfer)", re.MULTILINE)
    assert not [path for path in (ROOT / "tests" / "oracles").glob("*.py") if ours.search(path.read_text())]
