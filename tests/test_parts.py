"""What a part of the suite needs in other files, as `docs/adding-a-part.md` says: one test names what is missing."""

from collections.abc import Iterator

import pytest

from backbones.attention import ATTENTIONS
from backbones.kernels import blocked, functions
from backbones.stems import ACTIVATIONS, STEM_NORMS
from tests.documents import ROOT, read
from transfer.engine.trackers import TRACKERS

TASKS = sorted(path.parent.name for path in (ROOT / "tasks").glob("*/task.py"))
RECIPES = sorted(path.stem for path in (ROOT / "configs/pretrain").glob("*.yaml"))
METHODS = sorted(path.parent.name for path in (ROOT / "backbones/pretrain").glob("*/method.py"))
PARTS = (
    [("task", name) for name in TASKS]
    + [("recipe", name) for name in RECIPES]
    + [("method", name) for name in METHODS]
    + [("score function", name) for name in functions.SCORE_FUNCTIONS]
    + [("attention", name) for name in ATTENTIONS]
    + [("stem component", name) for name in (*STEM_NORMS, *ACTIVATIONS)]
    + [("tracker", name) for name in TRACKERS]
)


def missing(kind: str, name: str) -> Iterator[str]:
    """What a part lacks in other files."""

    def absent(path: str, text: str = "") -> bool:
        return not (ROOT / path).is_file() or text not in read(path)

    if kind == "task":
        if absent(f"configs/tasks/{name}.yaml"):
            yield f"configs/tasks/{name}.yaml, with a value for each option"
        if absent("README.md", f"`{name}`"):
            yield "its name in README.md, 'What is supported'"
        if absent("docs/architecture.md", f"`tasks/{name}/`"):
            yield "its row in docs/architecture.md: run `python -m tests.tables`"
        if not any(f'"{name}"' in path.read_text(encoding="utf-8") for path in (ROOT / "tests/tasks").rglob("*.py")):
            yield "a test in tests/tasks/"
    if kind in ("task", "recipe") and absent(f"configs/smoke/{name}.yaml"):
        yield f"configs/smoke/{name}.yaml, with sizes for --smoke"
    if kind == "method" and all(absent(f"configs/pretrain/{recipe}.yaml", f"method: {name}") for recipe in RECIPES):
        yield f"a recipe in configs/pretrain/ with `method: {name}`"
    if kind == "score function":
        if name not in blocked.BUFFERED_FUNCTIONS:
            yield "value and slope in backbones/kernels/blocked.py"
        if name != "identity" and absent("backbones/kernels/fused.py", f'H == "{name}"'):  # identity is its else
            yield "value and slope in backbones/kernels/fused.py"
    if kind == "attention" and absent("docs/guide/attention.md", f"`{name.removesuffix('_sum')}`"):
        yield "its name in docs/guide/attention.md"
    if kind == "stem component" and absent("backbones/stem_layers.py", f'"{name}"'):
        yield "its module in backbones/stem_layers.py"
    if kind == "tracker" and f'"{name}"' not in read("transfer/cli/options.py"):
        yield "its name in the option of transfer/cli/options.py"


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_a_part_has_what_it_needs_elsewhere(kind: str, name: str) -> None:
    lacks = [*missing(kind, name)]
    assert not lacks, f"{kind} {name} lacks: {'; '.join(lacks)}"
