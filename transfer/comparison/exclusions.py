"""Why runs that were chosen for a comparison are not compared, as values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UnusedRuns:
    """Runs of an arm that are in no row.

    Attributes:
        place: their task and data set, as "reid on market1501".
        arm: what chose the arm.
        count: how many runs there are.
        broken: how many of these broke down.
    """

    place: str
    arm: str
    count: int
    broken: int


@dataclass(frozen=True)
class NoCounterpart:
    """Nothing of an arm stands against some runs, since all trainings that it would have started from broke down.

    Attributes:
        place: task and data set of those runs.
        arm: what chose the arm that has nothing there.
        trainings: how many trainings broke down.
    """

    place: str
    arm: str
    trainings: int


@dataclass(frozen=True)
class ProtocolsDiffer:
    """Several arms have runs of one task and data set, but never under one protocol.

    Attributes:
        place: task and data set.
        fields: of the protocol, in which the runs differ; empty where an arm is missing instead.
    """

    place: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class MixedArm:
    """The runs of an arm are of several backbones or pretrainings, so that their mean would say nothing.

    Attributes:
        place: task, data set and setting.
        arm: what chose the arm.
        fields: in which its runs differ.
    """

    place: str
    arm: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class BrokenCorners:
    """An interaction lacks corners all of whose runs broke down.

    Attributes:
        place: task, data set and setting.
        corners: what chose them.
    """

    place: str
    corners: tuple[str, ...]


Exclusion = UnusedRuns | NoCounterpart | ProtocolsDiffer | MixedArm | BrokenCorners
