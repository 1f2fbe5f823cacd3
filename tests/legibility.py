"""What makes the project hard to read, counted: `python -m tests.legibility [FOLDER]`. No gate of style; see ruff."""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.documents import ROOT

PACKAGES = ("transfer", "backbones", "tasks")
GUIDE = ("README.md", "docs/*.md", "docs/guide/*.md", "docs/concepts/*.md", "docs/api/*.md")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def comprehensions(tree: ast.AST) -> list[ast.AST]:
    """All comprehensions of a file."""
    return [node for node in ast.walk(tree) if isinstance(node, COMPREHENSIONS)]


def loops(node: ast.AST) -> int:
    """How many loops run inside one another in a comprehension, 1 for a simple one; 0 for other nodes."""
    inner = max(map(loops, ast.iter_child_nodes(node)), default=0)
    return inner + len(node.generators) if isinstance(node, COMPREHENSIONS) else inner


def is_dense(node: ast.AST) -> bool:
    """Whether a comprehension has more than two loops, or two conditions."""
    conditions = [test for loop in node.generators for test in loop.ifs]
    both = any(isinstance(test, ast.BoolOp) for test in conditions)
    return loops(node) > 2 or len(conditions) > 1 or both


def is_times_condition(node: ast.AST) -> bool:
    """Whether a list or a text is multiplied by a condition, `[text] * (count > 1)`."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    repeated = text or isinstance(node.left, ast.List | ast.Tuple | ast.JoinedStr)
    negated = isinstance(node.right, ast.UnaryOp) and isinstance(node.right.op, ast.Not)
    return repeated and (negated or isinstance(node.right, ast.Compare | ast.BoolOp | ast.Call))


def code_lines(text: str, tree: ast.AST) -> Iterator[str]:
    """The lines of a file without blank ones, comments and docstrings."""
    documented = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.strip().startswith("#") and number not in documented:
            yield line


def counts(root: Path) -> dict[str, float]:
    """Every count of a checkout, by what is counted."""
    found, lines, defined = defaultdict[str, float](int), list[str](), defaultdict[str, set[str]](set)
    for path in (path for package in PACKAGES for path in (root / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines += code_lines(text, tree)
        found["files"] += 1
        found["files above 400 lines"] += len(text.splitlines()) > 400
        found["functions"] += sum(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))
        found["comprehensions"] += len(comprehensions(tree))
        found["nested comprehensions"] += sum(loops(one) > 1 for one in comprehensions(tree))
        found["comprehensions of three loops or two conditions"] += sum(map(is_dense, comprehensions(tree)))
        found["lists and texts times a condition"] += sum(map(is_times_condition, ast.walk(tree)))
        found["syntax nodes"] += sum(1 for _ in ast.walk(tree))
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
            for target in targets:
                name = getattr(target, "name", getattr(target, "id", ""))
                if isinstance(node, ast.ClassDef | ast.FunctionDef) or name.isupper():
                    defined[name].add(str(path))
    public = {name for name in defined if name and not name.startswith("_") and name != "main"}
    found["public names with several places"] = sum(len(defined[name]) > 1 for name in public)
    found["mean characters of a line"] = sum(map(len, lines)) / len(lines)
    pages = [page.read_text(encoding="utf-8") for pattern in GUIDE for page in root.glob(pattern)]
    found["words of README and guide"] = sum(len(page.split()) for page in pages)
    prose = [line for page in pages for line in re.sub(r"```.*?```", "", page, flags=re.DOTALL).splitlines()]
    found["lines of text over 120 characters"] = sum(len(line) > 120 and line[:1] != "|" for line in prose)
    return dict(found)


if __name__ == "__main__":
    for name, value in counts(Path(sys.argv[1]) if sys.argv[1:] else ROOT).items():
        print(f"{name:48} {value:10,.1f}" if value % 1 else f"{name:48} {value:10,.0f}")
