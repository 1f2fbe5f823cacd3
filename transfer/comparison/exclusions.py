"""Reasons why runs that were chosen for a comparison are not compared, as values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UnusedRuns:
    """Runs of a variant that are in no row.

    Attributes:
        label: task and dataset of the runs, such as "reid on market1501".
        variant: selector of the variant.
        count: number of unused runs.
        broken: number of unused runs that broke down.
    """

    label: str
    variant: str
    count: int
    broken: int


@dataclass(frozen=True)
class NoCounterpart:
    """A variant has no counterpart of some runs, because all trainings that it would have started from broke down.

    Attributes:
        label: task and dataset of the runs without a counterpart.
        variant: selector of the variant that lacks the counterpart.
        trainings: number of trainings of that variant that broke down.
    """

    label: str
    variant: str
    trainings: int


@dataclass(frozen=True)
class ProtocolsDiffer:
    """Several variants have runs of one task and dataset, but never under one protocol.

    Attributes:
        label: task and dataset of the runs.
        runs: ids of the nearest two, one of each variant.
        fields: fields in which these differ, with both values.
    """

    label: str
    runs: tuple[str, str]
    fields: dict[str, tuple[object, object]]


@dataclass(frozen=True)
class MixedArm:
    """A variant has runs of several backbones or pretrainings, whose mean would be meaningless.

    Attributes:
        label: task, dataset and setting of the runs.
        variant: selector of the variant.
        fields: fields in which the variant's runs differ, with their values.
    """

    label: str
    variant: str
    fields: dict[str, tuple[object, ...]]


@dataclass(frozen=True)
class BrokenCorners:
    """An interaction lacks corners because all their runs broke down.

    Attributes:
        label: task, dataset and setting of the runs.
        corners: selectors of the missing corners.
    """

    label: str
    corners: tuple[str, ...]


Exclusion = UnusedRuns | NoCounterpart | ProtocolsDiffer | MixedArm | BrokenCorners
