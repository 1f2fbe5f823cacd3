"""What must come to something else: for every option a value that matters, and where its effect shows.

An option that changes nothing is a promise not kept; a changed result under an unchanged identity, a wrong table.
"""

from dataclasses import fields
from functools import cache
from typing import Any

from tests.interactions.bench import Bench, Finding, result
from tests.interactions.changes import CHANGES, EXEMPT, IDLE, Change
from tests.interactions.commands import Ran, command_of
from tests.interactions.options import USUAL, WORKS

BASES = {
    "finetune": {"stem": "conv"},
    "deit": {"stem": "conv"},
    "dino": {"stem": "conv"},
    "reid": {"stem": "conv"},
    "detect": {"stem": "conv"},
    "classify": {"weights": "export"},
}
"""What the command of a work has besides the usual choices: batch norm, so that its options matter."""


def options_without_change() -> set[str]:
    """Options of tasks, methods and backbones of which the table has no value and no reason for that."""
    known = {change.option for change in CHANGES} | {*EXEMPT}
    known |= {change.option for change in IDLE if "identity" in change.shows}
    return {field.name for kind in _kinds() for field in fields(kind)} - known


def _kinds() -> list[type[Any]]:
    from backbones.pretrain.method import load_method
    from tasks.task import load_task
    from transfer.cli.options import BackboneOptions

    tasks = [load_task(name).options for name, work in WORKS.items() if work.program == "run"]
    return [*tasks, *(load_method(name).options for name in ("supervised", "dino")), BackboneOptions]


class Differences:
    """Tries changes; commands that several of them start from are run once."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._base = cache(self._of_base)

    def tried(self, change: Change) -> list[Finding]:
        """What is wrong: a command that fails, an identity that stays, a result that stays."""
        base, changed = self._base(change.work, change.base), self._run(change.work, f"{change.base} {change.words}")
        failed = [ran for ran in (base, changed) if ran.status not in (0, 3)]
        if failed:
            return [
                Finding(f"{change}: exit status {ran.status}: {ran.stderr.strip()[-300:]}", ran.line) for ran in failed
            ]
        found = []
        if base.record.run_key == changed.record.run_key:
            found.append(f"{change}: the identity stays")
        if change.shows != "identity" and result(base.runs[0])[change.shows] == result(changed.runs[0])[change.shows]:
            found.append(f"{change}: the {change.shows} stay")
        return [Finding(f"{text}; compared with {base.line}", changed.line) for text in found]

    def idled(self, change: Change) -> list[Finding]:
        """What is wrong with a change that must leave a result as it is."""
        base, changed = self._base(change.work, change.base), self._run(change.work, f"{change.base} {change.words}")
        if changed.status not in (0, 3):
            return [Finding(f"{change}: exit status {changed.status}: {changed.stderr.strip()[-300:]}", changed.line)]
        one, two = (result(ran.runs[0]) | {"identity": ran.record.run_key} for ran in (base, changed))
        return [
            Finding(f"{change}: other {part}; compared with {base.line}", changed.line)
            for part in change.shows.split()
            if one[part] != two[part]
        ]

    def _of_base(self, work: str, words: str) -> Ran:
        return self._run(work, words)

    def _run(self, work: str, words: str) -> Ran:
        row = USUAL | BASES.get(work, {}) | {"work": work} | ({"family": "volo"} if work == "volo" else {})
        places = self.bench.places
        given = [str(places.export("tiny")) if word == "EXPORT" else word for word in words.split()]
        return self.bench.run(command_of(row, places).with_words(*given))
