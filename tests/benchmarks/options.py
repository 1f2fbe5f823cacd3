"""The options of the benchmarks' command lines."""

import argparse
from collections.abc import Sequence
from typing import Any

import torch


def read(argv: Sequence[str], doc: str | None, **defaults: Any) -> argparse.Namespace:
    """Return the values of options, which have these names and defaults.

    A default that is a type has to be given; False makes a flag; `threads` is set for torch.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        kind: dict[str, Any] = {"type": type(default), "default": default}
        if isinstance(default, type):
            kind = {"type": default, "required": True}
        parser.add_argument(f"--{name.replace('_', '-')}", **({"action": "store_true"} if default is False else kind))
    given = parser.parse_args(argv)
    if "threads" in given:
        torch.set_num_threads(given.threads)
    return given
