"""`Comparability`: the group of runs whose numbers may be compared, as a value. Imports neither torch nor pandas."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Comparability:
    """The group of rows whose numbers may be compared: equal in every field of the protocol.

    Attributes:
        letter: a short name within the table.
        fields: protocol field -> value, of the fields that are not the same in all groups of the task.
    """

    letter: str
    fields: tuple[tuple[str, Any], ...]
