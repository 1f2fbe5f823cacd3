"""Why an own number cannot be compared with a published one, as values; `report.published.texts` words them."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reason:
    """What an own run has otherwise than the published one.

    Attributes:
        step: the training behind a cell that has it; empty for the run of the cell itself.
    """

    step: str = ""

    @property
    def is_option(self) -> bool:
        """Whether it is an option or a part of the backbone; long lists of these are moved into a note."""
        return False

    def of_step(self, step: str) -> "Reason":
        """Return the same of a training behind a cell."""
        return replace(self, step=step)


@dataclass(frozen=True)
class Marked(Reason):
    """A run, or a training behind it, is marked: "smoke", "dirty", "subset 8"."""

    mark: str


@dataclass(frozen=True)
class UnreadableImages(Reason):
    """Some images of the data set could not be read."""

    count: int


@dataclass(frozen=True)
class Untrained(Reason):
    """Parameters stayed as they were drawn, since the weights have none of their names."""

    parameters: tuple[str, ...]


@dataclass(frozen=True)
class OtherDataset(Reason):
    """The data set is not one of those that the table has."""

    name: str
    published: tuple[str, ...]


@dataclass(frozen=True)
class ContentsNotRecorded(Reason):
    """The record does not say what its data set holds."""

    dataset: str


@dataclass(frozen=True)
class Differs(Reason):
    """A value is not the table's.

    Attributes:
        name: of the option, of the backbone's part, or of a fact about the data set.
        own: the run's value.
        published: the table's.
        taken: whether the paper leaves it open, so that the table's value is that of the shipped sweep.
        option: see `is_option`.
    """

    name: str
    own: Any
    published: Any
    taken: bool = False
    option: bool = False

    @property
    def is_option(self) -> bool:
        """See `Reason`."""
        return self.option


@dataclass(frozen=True)
class OtherTaskVersion(Reason):
    """The scores of another version of the task do not stand beside those of today's."""

    task: str
    own: int
    published: int


@dataclass(frozen=True)
class Lacks(Reason):
    """The published number was made with a download, and the own one without."""

    download: str


@dataclass(frozen=True)
class UnknownPretraining(Reason):
    """No run at hand left the weights that a run starts from."""

    weights_id: str


@dataclass(frozen=True)
class OtherWeights(Reason):
    """A run starts from other weights.

    Attributes:
        weights_id: empty for an own pretraining.
        published: those of the table.
        taken: see `Differs`.
    """

    weights_id: str
    published: str
    taken: bool = False


@dataclass(frozen=True)
class OtherMachine(Reason):
    """Two runs whose hours are compared were not made alike.

    Attributes:
        name: of the fact about their environment, as "device".
        own: the values of both.
    """

    name: str
    own: tuple[Any, Any]


def hashable(value: Any) -> Any:
    """Return a value of a YAML file or a record so that it can stand in a frozen value: lists become tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(hashable, value))
    return str(value) if isinstance(value, dict) else value
