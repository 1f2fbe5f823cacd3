"""`python -m transfer.features list|free` manages the features that probes store for later runs."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.errors import UsageError, UserError, did_you_mean, print_safe
from backbones.settings import Positional
from transfer.cli.entry import exit_on_user_error
from transfer.cli.help import read_options

if TYPE_CHECKING:
    from tasks.probing.feature_store import Entry

USAGE = """usage: python -m transfer.features list   [ENTRY ...] [--feature-cache FOLDER] [--stale]
       python -m transfer.features free   ENTRY ... | --stale | --all

An entry holds the features of one backbone for one split; `stale` are those of another version of the code, which
nothing reads any more. Exit status: 0; 2 wrong arguments."""
VERBS = ("list", "free")


@dataclass(kw_only=True)
class FeaturesOptions:
    """Choose entries of the feature store."""

    entries: Positional[tuple[str, ...]] = ()
    """The entries, by their names or the beginnings of names; by default all that the other options select."""
    feature_cache: Path = Path("features")
    """The folder of the store."""
    stale: bool = False
    """Select only entries that another version of the code made."""
    all: bool = False
    """Let `free` remove every entry."""


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    return exit_on_user_error(_main, argv, usage=USAGE)


def _main(argv: list[str]) -> int:
    verb = argv[0]
    if verb not in VERBS:
        raise UsageError(f"unknown word {verb!r}{did_you_mean(verb, VERBS)}\n{USAGE}")
    options = read_options(FeaturesOptions, argv[1:], f"python -m transfer.features {verb}")
    chosen = _chosen(options)
    return _free(chosen, options) if verb == "free" else _list(chosen)


def _chosen(options: FeaturesOptions) -> "list[Entry]":
    """Return the entries that the options select. Raises UserError when a name matches none."""
    from tasks.probing.feature_store import entries
    from tasks.probing.features import code_version

    stored = entries(options.feature_cache)
    for name in options.entries:
        if not any(entry.folder.name.startswith(name) for entry in stored):
            raise UserError(f"--feature-cache {options.feature_cache}: no entry {name}; `list` shows those there are")
    chosen = [entry for entry in stored if not options.entries or entry.folder.name.startswith(options.entries)]
    if options.stale:
        chosen = [entry for entry in chosen if entry.about.get("key", {}).get("code") != code_version()]
    return chosen


def _list(chosen: "list[Entry]") -> int:
    from tasks.probing.features import code_version
    from transfer.report.render.text import markdown
    from transfer.report.tables.table import Table

    if not chosen:
        print_safe("no entries")
        return 0
    rows: list[dict[str, Any]] = []
    for entry in chosen:
        facts = entry.about
        key = facts.get("key", {})
        features = key.get("features", {})
        block = features.get("block")
        rows.append(
            {
                "entry": entry.folder.name,
                "backbone": facts.get("backbone"),
                "images": facts.get("images"),
                "features": "pooled" if block is None else f"block {block}",
                "view": f"{features.get('view')} {features.get('resize')}/{features.get('size')}",
                "precision": key.get("precision"),
                "rows": f"{entry.held()} of {facts.get('rows')}",
                "MiB": entry.bytes() / 2**20,
                "stale": "" if key.get("code") == code_version() else "stale",
            }
        )
    print_safe(markdown(Table.from_rows(rows)))
    return 0


def _free(chosen: "list[Entry]", options: FeaturesOptions) -> int:
    if not (options.entries or options.stale or options.all):
        raise UsageError("free: name entries, or give --stale or --all")
    freed = sum(entry.bytes() for entry in chosen)
    for entry in chosen:
        entry.remove()
    print_safe(f"{len(chosen)} entries freed, {freed / 2**20:.1f} MiB")
    return 0


def command() -> None:
    """Run the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
