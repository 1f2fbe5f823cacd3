"""The epochs of a training after which tokens are measured."""

from collections.abc import Sequence

from backbones.errors import UsageError


def check_epochs(at: Sequence[int], epochs: int) -> None:
    """Raise UsageError for an epoch (from 1, or from -1 for the last) that a training does not have."""
    if any(not 1 <= abs(epoch) <= epochs for epoch in at):
        raise UsageError(
            f"--tokens-at {' '.join(map(str, at))}: epochs count from 1 to {epochs}, or from -1 for the last"
        )


def epochs_of(at: Sequence[int], epochs: int) -> list[int]:
    """Return the epochs, sorted and counted from 1, of epochs that may count from the end."""
    return sorted({epoch if epoch > 0 else epochs + 1 + epoch for epoch in at})
