"""What shows that the pictures of a run are as they were drawn: their digests in a file beside them."""

from collections.abc import Iterable
from pathlib import Path

from backbones.errors import UserError
from backbones.runtime.files import write_atomic
from backbones.weights import sha256

PICTURES = "pictures"  # in a run's folder
SUMS = "SHA256SUMS"
"""Digests in the form of `sha256sum`, which checks them too."""


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """Adds pictures that were drawn to the digests of those that were drawn before.

    Raises:
        UserError: the file cannot be written.
    """
    found = read_sums(folder) | {name: sha256(folder / name) for name in names}
    if found:
        lines = (f"{told}  {name}\n" for name, told in sorted(found.items()))
        write_atomic(folder / SUMS, "".join(lines).encode())


def read_sums(folder: Path) -> dict[str, str]:
    """sha256 (hex) of the pictures in a folder, by name; empty where there is no such file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / SUMS}: cannot be read ({error}); delete it and draw the pictures anew") from None
    return {name: told for told, _, name in (line.partition("  ") for line in lines)}
