"""`python -m transfer.new KIND NAME` writes a stem, attention or task of your own, with a test that passes as it is.

The files are the examples of docs/adding-a-part.md.
"""

import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from transfer.cli.entry import exit_on_user_error
from transfer.cli.help import read_options
from transfer.core.errors import UsageError, print_safe, unknown
from transfer.core.files import write_atomic
from transfer.core.settings import CONFIGS, Positional, config_names

TEMPLATES = CONFIGS / "templates"
EXAMPLE = {"stem": "MyStem", "attention": "Temperature", "task": "nearest_mean"}
"""The class of the example, or the name of its task, by which tables name it."""
NEXT_COMMAND = {
    "stem": "python -m transfer.run reid --backbone tiny --smoke --stem {name}.py:{part}",
    "attention": "python -m transfer.run reid --backbone tiny --smoke --attention {name}.py:{part}",
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
    if not re.fullmatch("[a-zA-Z][a-zA-Z0-9_]*", name) or iskeyword(name):
        raise UsageError(f"{name!r} cannot be the name; use letters, digits and _, such as my_stem")
    if options.kind == "task" and name in config_names("tasks"):
        raise UsageError(f"a task of the suite is named {name!r}; choose another name")
    files = {f"{before}{name}.py": f"{before}my_{options.kind}.py" for before in ("", "test_")}
    for file in files:
        if Path(file).exists():
            raise UsageError(f"{file} exists; choose another name, or remove it")
    if find_spec(name):
        raise UsageError(f"a module or folder is named {name!r}, which {name}.py would hide; choose another name")
    part = name if options.kind == "task" else "".join(word[:1].upper() + word[1:] for word in name.split("_"))
    for file, template in files.items():
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        text = text.replace(f"my_{options.kind}", name)
        text = re.sub(rf"\b{EXAMPLE[options.kind]}\b", part, text)
        write_atomic(Path(file), text.encode(), flag="`cd`")
    print_safe(f"wrote {' and '.join(files)}. Try them:")
    print_safe(f"  pytest test_{name}.py\n  {NEXT_COMMAND[options.kind].format(name=name, part=part)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
