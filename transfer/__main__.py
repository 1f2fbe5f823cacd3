"""`python -m transfer` names the commands."""

import sys

from transfer.cli.entry import exit_on_user_error

USAGE = """usage: python -m transfer.COMMAND --help

  run        train or probe a backbone on a task, and record its scores
  pretrain   pretrain a backbone and export its weights
  sweep      run a grid of commands, such as `bench`, and report on it
  report     show records as tables, comparisons and a page
  predict    use what a run trained on new images
  verify     check that records are unchanged and give their scores
  doctor     check this machine, datasets and backbones; measure speed

--list [KIND] lists names: tasks, recipes, backbones, weights, datasets, stems, attentions, ffns, detectors, sweeps,
steps.
--version prints versions."""


def main(argv: list[str] | None = None) -> int:
    """Print the commands."""
    return exit_on_user_error(lambda words: 2, argv, usage=USAGE)


if __name__ == "__main__":
    sys.exit(main())
