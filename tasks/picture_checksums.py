"""Checksums of a run's pictures, by which later changes of them are detected."""

from collections.abc import Iterable
from pathlib import Path

from backbones.errors import UserError
from backbones.runtime.files import read_regular, write_atomic
from backbones.weights import sha256

PICTURES = "pictures"  # in a run's folder
SUMS = "SHA256SUMS"
"""Digests in the form of `sha256sum`, which checks them too."""


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """Add the digests of new pictures to those of earlier ones.

    Raises:
        UserError: the file cannot be written.
    """
    digests = read_sums(folder) | {name: sha256(folder / name) for name in names}
    if digests:
        lines = (f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
        write_atomic(folder / SUMS, "".join(lines).encode())


def read_sums(folder: Path) -> dict[str, str]:
    """Read the sha256 (hex) of the pictures in a folder, by name; empty if the file is missing.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        lines = read_regular(folder / SUMS).decode("utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / SUMS}: cannot be read ({error}); delete it and draw the pictures anew") from None
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
