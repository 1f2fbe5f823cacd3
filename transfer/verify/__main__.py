"""`python -m transfer.verify RUN...` checks that runs were not changed, and that their results give their scores.

The checks of each run: the record's own digest, the sha256 of its files, its key, and its scores (recomputed bit-exact
from the per-sample results). Nothing is trained, and nothing is written.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from transfer.cli.entry import exit_on_user_error
from transfer.cli.help import read_options
from transfer.core.errors import UsageError, UserError, count, print_safe
from transfer.core.settings import Positional
from transfer.core.user_code import allow, is_in_file, locate
from transfer.records.store import RECORD, StoredRun, Unfinished, has_record, merged, store_in, unfinished_in
from transfer.verify.checks import Verification, verify


@dataclass(kw_only=True)
class VerifyOptions:
    """Verify runs."""

    runs: Positional[tuple[Path, ...]] = (Path("runs"),)
    """The runs to verify: their folders, or folders of runs or sweeps."""
    trust_code: tuple[str, ...] = ()
    """Custom metrics, tasks, methods, readers and components, FILE.py:NAME, that may run from now on; read them
    first. What you have run yourself, and is unchanged, need not be named."""


def main(argv: list[str] | None = None) -> int:
    """Print a verdict on each run; return 1 if anything is wrong, or a folder has no record and no process."""
    return exit_on_user_error(_main, argv)


def _main(argv: list[str]) -> int:
    options = read_options(VerifyOptions, argv, "python -m transfer.verify")
    for part in options.trust_code:
        if not is_in_file(part):
            raise UsageError(f"--trust-code {part}: name a file and what is in it, as my_metric.py:NAME")
        allow(locate(part))
    print_safe(f"verify: reading {', '.join(map(str, options.runs))}", file=sys.stderr, flush=True)
    verdicts, unfinished = list[Verification](), list[Unfinished]()
    for path in options.runs:
        for folder in _folders(path, unfinished):
            verdicts.append(verify(folder))
            print_safe(str(verdicts[-1]))
    runs = [StoredRun(verdict.folder, verdict.record) for verdict in verdicts if verdict.record]
    disputes = merged(runs)[1]
    for dispute in disputes:
        print_safe(f"WRONG  {dispute}")
    wrong = sum(bool(verdict.wrong) for verdict in verdicts)
    disputed = f", but {count(len(disputes), 'record')} in dispute" if disputes else ""
    print_safe(f"{len(verdicts) - wrong} of {len(verdicts)} runs are right{disputed}")
    for run in unfinished:
        print_safe(f"no record  {run}")
    if lacking := sum(run.state != "under way" for run in unfinished):
        print_safe(f"exit status 1: {lacking} without a record; rerun the command, or delete the folder")
    return int(bool(wrong or disputes or lacking))


def _folders(path: Path, unfinished: list[Unfinished]) -> list[Path]:
    """Return the folders of the runs that an argument means, in order.

    Args:
        unfinished: gets the folders of runs without a record.
    """
    folder = path.parent if path.name == RECORD else path
    if folder.is_file():
        raise UserError(f"{path}: a file; `python -m transfer.report import {path}` verifies a bundle")
    if (folder / RECORD).exists():
        return [folder]
    store = store_in(folder)
    folders = [run for run in store.folders() if has_record(run)]
    if not folders:
        neither = f"{path}: neither a run with a {RECORD}, nor a folder with such runs"
        raise UserError(str(unfinished_in(folder) or neither))
    unfinished += store.unfinished()
    return folders


if __name__ == "__main__":
    sys.exit(main())
