"""`python -m transfer.cli.option_table` prints the page docs/options.md: what each option counts for."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from transfer.cli.command import task_names
from transfer.cli.ignored_options import PER_PROCESS, RULES
from transfer.cli.option_rules import Rule
from transfer.cli.options import EXECUTION, BackboneOptions, LaunchOptions, PretrainRunOptions

METHODS = ("supervised", "dino")
PROTOCOL = ("skip_unreadable", "nodes", "gpus", "processes")
"""Options that belong to no identity but to the protocol: unreadable images left out, and the number of processes."""
_IDENTITY = ("backbone", "dataset", "seeds", "subset", "smoke", "method", "metric")
HEAD = """# What each option counts for

Made by `python -m transfer.cli.option_table > docs/options.md`; a test changes every option and looks at what changes.

- **identity**: part of what makes a run this run, and of the protocol that scores are compared by (the backbone's
  fields: of its configuration). Where one is *idle* it changes nothing: a flag is refused in one line, a recipe's or
  YAML's value is left out, and older records that have it are read as if they had not. `--idle-flags pass` passes over
  such flags, as the cells of a sweep do.
- **protocol**: no part of the identity, so that a run can go on elsewhere, but of what scores are compared by.
- **execution**: neither.
"""
RANKS = """
## The number of processes

It is part of the protocol where each process sees to its part of a batch by itself:

{seen}

Elsewhere (mining and the neck of `reid`, DINO's center, stochastic depth, augmentation, tasks that train nothing) any
number computes the same, but for rounding. So do other kinds of device and versions of torch; a row whose runs differ
from others of its task in these says so beside its data set.
"""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        option: the name of the option.
        where: the task, method or group that has it.
        kind: what it counts for: identity, protocol or execution.
        idle: the rules under which it has no effect there.
    """

    option: str
    where: str
    kind: str
    idle: tuple[Rule, ...]


def kinds() -> Iterator[tuple[str, type[Any]]]:
    """Yield the dataclasses of options with the task, method or group that has them."""
    from backbones.pretrain.method import load_method
    from tasks.task import load_task

    yield "every command", PretrainRunOptions
    yield "every command", LaunchOptions
    yield "backbone", BackboneOptions
    for name in task_names():
        yield name, load_task(name).options
    for name in METHODS:
        yield f"pretrain-{name}", load_method(name).options


def rows() -> list[Row]:
    """Return a row for each option of each task, method and backbone."""
    table = []
    for where, kind in kinds():
        names = [item.name for item in fields(kind)]
        for name in names:
            idle = tuple(rule for rule in RULES if name in rule.options and _can_hold(rule, where, names))
            table.append(Row(name, where, _kind(name, where), idle))
    return table


def _kind(name: str, where: str) -> str:
    if name in PROTOCOL:
        return "protocol"
    is_execution = where == "every command" and name not in _IDENTITY
    return "execution" if is_execution or name in EXECUTION else "identity"


def _can_hold(rule: Rule, where: str, names: list[str]) -> bool:
    """Return whether a rule can hold in a task: the options that it names are among `names` or the backbone's."""
    task = rule.when.get("task", where)
    here = task.holds(where) if hasattr(task, "holds") else task == where
    parts = {item.name for item in fields(BackboneOptions)}
    asked = {name for name in rule.when if name not in ("task", "batch_norm", "ours", "plain", "dataset")}
    return here and asked <= {*names, *parts}


def page() -> str:
    """Return the page, with one line for the tasks in which an option counts for the same."""
    merged: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for row in rows():
        conditions = tuple(dict.fromkeys(rule.condition() for rule in row.idle))
        merged.setdefault((row.option, row.kind, conditions), []).append(row.where)
    lines = ["| option | of | counts for | idle where |", "|---|---|---|---|"]
    for (option, kind, conditions), where in merged.items():
        lines.append(f"| `{option}` | {', '.join(dict.fromkeys(where))} | {kind} | {'; '.join(conditions)} |")
    counts = {kind: len({key[0] for key in merged if key[1] == kind}) for kind in ("identity", "protocol", "execution")}
    at_times = len({key[0] for key in merged if key[1] == "identity" and key[2]})
    summary = f"{counts['identity']} options are of the identity, {at_times} of them idle at times, "
    summary += f"{counts['protocol']} of the protocol alone, {counts['execution']} of the execution"
    reasons = "\n".join(f"- {text}" for text in dict.fromkeys(rule.because for rule in PER_PROCESS))
    return f"{HEAD}\n{summary}.\n\n" + "\n".join(lines) + "\n" + RANKS.format(seen=reasons)


if __name__ == "__main__":
    print(page(), end="")
