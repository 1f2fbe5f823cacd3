"""`python -m transfer.new KIND NAME` writes a stem, attention or task of your own, with a test that passes as it is.

The files are the examples of docs/adding-a-part.md.
"""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from transfer.cli.entry import exit_on_user_error
from transfer.cli.help import read_options
from transfer.core.errors import UsageError, print_safe, unknown
from transfer.core.files import write_atomic
from transfer.core.settings import CONFIGS, Positional

TEMPLATES = CONFIGS / "templates"
TASK_NAME = "nearest_mean"
"""The name by which records know the task of the example."""
NEXT_COMMAND = {
    "stem": "python -m transfer.run reid --backbone tiny --smoke --stem {name}.py:Stem",
    "attention": "python -m transfer.run reid --backbone tiny --smoke --attention {name}.py:Temperature",
    "task": "python -m transfer.run {name}.py:TASK --backbone tiny --weights random --dataset toy_digits --size 32",
}


@dataclass(kw_only=True)
class NewOptions:
    """Write a custom component with a test."""

    kind: Positional[str]
    """What to write: stem, attention or task."""
    name: Positional[str]
    """Its name, of letters, digits and `_`. The files NAME.py and test_NAME.py are written to the working directory."""


def main(argv: list[str] | None = None) -> int:
    """Write the files and print the commands to try them."""
    return exit_on_user_error(_main, argv)


def _main(argv: list[str]) -> int:
    options = read_options(NewOptions, argv, "python -m transfer.new")
    name = options.name
    if options.kind not in NEXT_COMMAND:
        raise unknown("kind of part", options.kind, NEXT_COMMAND)
    if not name.isidentifier() or iskeyword(name):
        raise UsageError(f"{name!r} cannot be the name of a Python module; use letters, digits and _, such as my_stem")
    files = {f"{before}{name}.py": f"{before}my_{options.kind}.py" for before in ("", "test_")}
    for file in files:
        if Path(file).exists():
            raise UsageError(f"{file} exists; choose another name, or remove it")
    if find_spec(name):
        raise UsageError(f"an installed module is named {name!r}, which {name}.py would hide; choose another name")
    for file, template in files.items():
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        text = text.replace(f"my_{options.kind}", name).replace(TASK_NAME, name)
        write_atomic(Path(file), text.encode(), flag="the working directory")
    print_safe(f"wrote {' and '.join(files)}. Try them:")
    print_safe(f"  pytest test_{name}.py\n  {NEXT_COMMAND[options.kind].format(name=name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
