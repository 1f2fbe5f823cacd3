"""`python -m transfer` names the commands; `transfer run` is `python -m transfer.run`."""

import importlib
import sys

from transfer.cli.entry import exit_on_user_error
from transfer.core.errors import unknown

USAGE = """usage: python -m transfer.COMMAND --help

  run        train or probe a backbone on a task, and record its scores
  pretrain   pretrain a backbone and export its weights
  sweep      run a grid of commands, such as `bench`, and report on it
  report     show records as tables, comparisons and a page
  predict    apply a trained run to new images
  verify     check that records are unmodified and reproduce their scores
  doctor     check this machine, datasets and backbones; measure speed
  new        write a custom stem, attention or task with a test

--list [KIND] lists names: tasks, recipes, backbones, weights, datasets, stems, attentions, ffns, detectors, sweeps.
--version prints versions."""


COMMANDS = {
    **{name: f"transfer.{name}" for name in ("run", "pretrain", "new")},
    **{name: f"transfer.{name}.__main__" for name in ("sweep", "report", "predict", "verify", "doctor")},
}
"""Command -> the module of its `main`."""


def main(argv: list[str] | None = None) -> int:
    """Run the command that the first word names, or print the commands."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in COMMANDS:
        return int(importlib.import_module(COMMANDS[words[0]]).main(words[1:]))
    return exit_on_user_error(_unknown, words, usage=USAGE)


def _unknown(words: list[str]) -> int:
    raise unknown("command", words[0], COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
