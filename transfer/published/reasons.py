"""Reasons why an own score cannot be compared with a published one; `transfer.report.published.texts` words them."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A condition under which an own run differs from the published one.

    Attributes:
        step: name of the sweep's step whose training has the condition; empty for the run of the cell itself.
    """

    step: str = ""

    @property
    def is_option(self) -> bool:
        """Whether the reason is an option or a part of the backbone; long lists of these are moved into a note."""
        return False

    def of_step(self, step: str) -> "Reason":
        """Return the reason for the training of an earlier step from whose weights the run starts."""
        return replace(self, step=step)


@dataclass(frozen=True)
class Marked(Reason):
    """A run, or a training that it starts from, has a mark such as "smoke", "dirty" or "subset 8"."""

    mark: str


@dataclass(frozen=True)
class UnreadableImages(Reason):
    """Some images of the data set could not be read."""

    count: int


@dataclass(frozen=True)
class Untrained(Reason):
    """Parameters kept their random initial values, because the weights have none of their names."""

    parameters: tuple[str, ...]


@dataclass(frozen=True)
class OtherDataset(Reason):
    """The data set is none of the published table's."""

    name: str
    published: tuple[str, ...]


@dataclass(frozen=True)
class ContentsNotRecorded(Reason):
    """The record does not list the contents of its data set."""

    dataset: str


@dataclass(frozen=True)
class Differs(Reason):
    """A value of a run differs from the table's.

    Attributes:
        name: name of the option, of the backbone's part, or of a fact about the data set.
        own: value of the own run.
        published: value of the table.
        assumed: whether the paper leaves the value open, so that the table's value is the shipped sweep's.
        option: see `is_option`.
    """

    name: str
    own: Any
    published: Any
    assumed: bool = False
    option: bool = False

    @property
    def is_option(self) -> bool:
        """See `Reason`."""
        return self.option


@dataclass(frozen=True)
class Lacks(Reason):
    """The published number needs a download that the own run did not use."""

    download: str


@dataclass(frozen=True)
class UnknownPretraining(Reason):
    """None of the runs at hand exported the weights from which a run starts."""

    weights_id: str


@dataclass(frozen=True)
class OtherWeights(Reason):
    """A run starts from other weights.

    Attributes:
        weights_id: id of the run's weights; empty for an own pretraining.
        published: weights of the table.
        assumed: see `Differs`.
    """

    weights_id: str
    published: str
    assumed: bool = False


@dataclass(frozen=True)
class OtherMachine(Reason):
    """Two runs whose hours are compared ran in different environments.

    Attributes:
        name: name of the fact about the environment, such as "device".
        own: values of both runs.
    """

    name: str
    own: tuple[Any, Any]


def hashable(value: Any) -> Any:
    """Return a value of a YAML file or a record as a hashable one: lists become tuples, mappings text."""
    if isinstance(value, list | tuple):
        return tuple(map(hashable, value))
    return str(value) if isinstance(value, dict) else value
