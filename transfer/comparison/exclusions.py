"""Reasons why runs that were chosen for a comparison are not compared, as values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UnusedRuns:
    """Runs of an arm that are in no row.

    Attributes:
        label: task and data set of the runs, such as "reid on market1501".
        arm: selector of the arm.
        count: number of unused runs.
        broken: number of unused runs that broke down.
    """

    label: str
    arm: str
    count: int
    broken: int


@dataclass(frozen=True)
class NoCounterpart:
    """An arm has no counterpart of some runs, because all trainings that it would have started from broke down.

    Attributes:
        label: task and data set of the runs without a counterpart.
        arm: selector of the arm that lacks the counterpart.
        trainings: number of trainings of that arm that broke down.
    """

    label: str
    arm: str
    trainings: int


@dataclass(frozen=True)
class ProtocolsDiffer:
    """Several arms have runs of one task and data set, but never under one protocol.

    Attributes:
        label: task and data set of the runs.
        runs: ids of the nearest two, one of each arm.
        fields: fields in which these differ, with both values.
    """

    label: str
    runs: tuple[str, str]
    fields: dict[str, tuple[object, object]]


@dataclass(frozen=True)
class MixedArm:
    """An arm has runs of several backbones or pretrainings, whose mean would be meaningless.

    Attributes:
        label: task, data set and setting of the runs.
        arm: selector of the arm.
        fields: names of the fields in which the arm's runs differ.
    """

    label: str
    arm: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class BrokenCorners:
    """An interaction lacks corners because all their runs broke down.

    Attributes:
        label: task, data set and setting of the runs.
        corners: selectors of the missing corners.
    """

    label: str
    corners: tuple[str, ...]


Exclusion = UnusedRuns | NoCounterpart | ProtocolsDiffer | MixedArm | BrokenCorners
