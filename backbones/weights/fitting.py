"""How well the tensors of a file fit a model, by their names, and the line that says so. Imports no torch."""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate

from transfer.core.errors import UserError, shortened

Names = Collection[str]
PLAIN = "plain state dict"
AS_CONFIGURED, OF_EXPORT = "as configured", "of the export"
"""Mean and std that need no word."""
_BLOCK = re.compile(r"(?!patch_embed)((?:[^.]+\.)*?\d+)\.")
_CHANGES_FEATURES = re.compile(
    r"(norm|fc_norm|norm_pre|pre_norm|ln_pre|ln_post|pos_embed|sie_embed|\w+_tokens|(reg|dist)_token)\b"
)
"""Tensors outside the blocks without which a model gives other features."""
_SMALL = re.compile(r".*(\bls\d\.gamma|\bgamma_\d|norm\w*\.\w+|bias)$")
"""Tensors of a block beside its matrices."""


@dataclass(frozen=True)
class Loaded:
    """What was taken of weights and how it fits the model: facts for the record, and a line for the user."""

    weights: str
    "as the user named them"
    layout: str
    network: str
    others: tuple[str, ...]
    "see `Network`"
    left_out: int
    "tensors of the file that belong to no backbone: heads, decoders"
    positions: str
    "the grid of the file's positions and that of the model, where they differ or another one is possible"
    statistics: str
    "whose mean and std images are normalised by"
    dropped: list[str]
    "modules of the file that the model has no place for; see `modules`"
    untrained: list[str]
    "modules of the model that stay as initialised, likewise"
    gelu: str
    "that of the model, where the file leaves open which it has"
    rounded: str
    "the precision of the file's tensors where it is less than float32, as float16"

    def __str__(self) -> str:
        its = f", its {self.network}" if self.network else ""
        others = f" (others: {', '.join(self.others)})" if self.others else ""
        parts = {
            "": self.layout and f"{self.layout}{' checkpoint' * (self.layout != PLAIN)}{its}{others}",
            "tensors rounded to ": self.rounded,
            "positions ": self.positions,
            "mean and std ": "" if self.statistics in (AS_CONFIGURED, OF_EXPORT) else self.statistics,
            "activation ": self.gelu,
            "newly initialized: ": ", ".join(self.untrained),
            "dropped: ": ", ".join(self.dropped),
        }
        said = "; ".join(title + text for title, text in parts.items() if text)
        return f"weights {self.weights}: {said}" if said else ""


def check_partial(
    where: str, taken: Names, missing: Names, unused: Names, new: tuple[str, str], *, allow: bool
) -> None:
    """Check that weights fill half of a model's blocks, and that features change by nothing but new parts.

    A block is filled if all its matrices but those of new parts are taken.

    Args:
        where: the file and the backbone, for messages.
        taken, missing: the names of the model's tensors that the file has, and that it does not have.
        unused: those of the file that the model has no place for.
        new: patterns of the names that may be missing, and that may be unused, because of new parts.
        allow: whether all others may be, too.

    Raises:
        UserError: they do not.
    """
    lost = {name for name in missing if not re.match(new[0], name)}
    blocks = {block for name in (*taken, *missing) if (block := _block(name))} or {""}
    touched = blocks & {*map(_block, taken)}
    filled = len(touched - {_block(name) for name in lost if not _SMALL.match(name)})
    if 2 * filled < len(blocks):
        rows = {"missing": missing, "unused": unused}
        said = [f"{title}: {shortened(modules(names, taken))}" for title, names in rows.items()]
        raise UserError(f"{where}: {filled} of {len(blocks)} blocks are filled, less than half; {'; '.join(said)}")
    # a whole block that is missing or unused is a model of another depth, which was asked for
    lost = {name for name in lost if _block(name) in {"", *touched}}
    changing = {name for name in unused if _block(name) in touched - {""} or _CHANGES_FEATURES.match(name)}
    changing |= {name for name in unused if re.sub("bias$", "weight", name) in taken}
    changing = {name for name in changing if not re.match(new[1], name)}
    if (lost or changing) and not allow:
        rows = {"missing in the file": lost, "without a place in the model": changing}
        said = [f"{title}: {shortened(modules(names, taken))}" for title, names in rows.items() if names]
        raise UserError(
            f"{where}: the features would not be those of the weights; {'; '.join(said)}. Use an architecture that has "
            "the same parts, or --allow-dropped"
        )


def modules(names: Names, taken: Names) -> list[str]:
    """Return the outermost modules that hold tensors of these names and none that is taken, and single tensors.

    Those that differ in a number only are one, with their count.
    """
    kept = {prefix for name in taken for prefix in _prefixes(name)}
    found = {next((prefix for prefix in _prefixes(name) if prefix not in kept), name) for name in names}
    counts = Counter(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in sorted(found))
    return [f"{name} ({count})" if count > 1 else name for name, count in counts.items()]


def _prefixes(name: str) -> list[str]:
    return list(accumulate(name.split("."), "{}.{}".format))


def _block(name: str) -> str:
    """Return the block of a tensor: what ends at the first number in its name, but for the stem; empty outside."""
    found = _BLOCK.match(name)
    return found[1] if found else ""
