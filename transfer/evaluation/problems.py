"""All that is missing or wrong before a command runs, as one error."""

import contextlib
from collections.abc import Iterator, Sequence

from backbones.errors import MissingInput, UsageError, UserError

Block = tuple[str, ...]
"""A line of a message with the indented lines below it."""


class Problems:
    """Errors of a command's inputs, for one message that says once what several data sets have in common."""

    def __init__(self) -> None:
        self.errors: list[UserError] = []
        self._datasets: list[str] = []

    @contextlib.contextmanager
    def collected(self, dataset: str = "") -> Iterator[None]:
        """Keep a UserError that is raised inside, with the name of the data set that it is about."""
        try:
            yield
        except UserError as error:
            self.errors.append(error)
            self._datasets.append(dataset)

    def raise_if_any(self) -> None:
        """Raise one error for all; its exit status is 2 when all of them are usage errors."""
        if not self.errors:
            return
        kinds: tuple[type[UserError], ...] = (UsageError, MissingInput)
        common = [kind for kind in kinds if all(isinstance(error, kind) for error in self.errors)]
        summary = (common or [UserError])[0](joined(list(zip(self._datasets, map(str, self.errors), strict=True))))
        summary.exit_status = min(2, *(error.exit_status for error in self.errors))
        raise summary


def joined(messages: Sequence[tuple[str, str]]) -> str:
    """Return one text for (data set, message) pairs; messages whose first lines agree but for the name become one.

    What these have in common is said once, below the names of the data sets; the rest below the name of its own.
    """
    groups: dict[str, list[tuple[str, list[Block]]]] = {}
    for place, (dataset, message) in enumerate(messages):
        first, *rest = _blocks(message)
        title = first[0].removeprefix(f"{dataset}: ") if dataset else first[0]
        key = f"{title}\0{first[0] == title}" if dataset else f"{title}\0{place}"
        groups.setdefault(key, []).append((dataset, [first[1:], *rest] if first[1:] else rest))
    return "\n".join(_group(key.partition("\0")[0], key.endswith("True"), group) for key, group in groups.items())


def _group(title: str, holds_for_any: bool, group: list[tuple[str, list[Block]]]) -> str:
    names = ", ".join(dataset for dataset, _ in group)
    if len(group) == 1:
        head = title if holds_for_any or not names else f"{names}: {title}"
        return "\n".join([head, *(line for block in group[0][1] for line in block)])
    shared = [block for block in group[0][1] if all(block in blocks for _, blocks in group)]
    lines = [f"{title} (for {names})" if holds_for_any else f"{names}: {title}", *(line for b in shared for line in b)]
    for dataset, blocks in group:
        own = [line for block in blocks if block not in shared for line in block]
        if own:
            lines += [f"{dataset}:", *(f"  {line}" for line in own)]
    return "\n".join(lines)


def _blocks(message: str) -> list[Block]:
    blocks: list[Block] = []
    for line in message.splitlines():
        if line.startswith(" ") and blocks:
            blocks[-1] += (line,)
        else:
            blocks.append((line,))
    return blocks or [("",)]
