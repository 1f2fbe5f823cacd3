"""How the network of a file gets into a model: positions and channels fitted, tensors compared by name and shape, and
the line that says what was taken.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path

import torch
from torch import Tensor, nn

from backbones import archs
from backbones.initialisation import make_ours
from backbones.positions import Grid, fit_positions, position_grid, source_grid
from backbones.spec import BackboneSpec, resolve
from backbones.stems import find_stem
from backbones.weights.load import StoredNetwork, check_values, fit_channels, read_network
from backbones.weights.locate import Located, exported_spec
from transfer.core import exports
from transfer.core.errors import UserError, shortened
from transfer.core.settings import config_names

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
_PARTS = {
    "stem": r"patch_embed\.",
    "attention": r".*\.attn\.(?![qk]_norm\.)",
    "alpha": r".*\.attn\.alpha$",
    "gate": r".*\.attn\.gate\.",
    "qk_norm": r".*\.attn\.[qk]_norm\.",
    "ffn": r".*\.(mlp|norm2)\.",
    "pre_logits": r"pre_logits\.",
}
"""Where the tensors of each part are that can be of another kind than in the weights."""


@dataclass(frozen=True)
class Loaded:
    """What was taken of weights and how it fits the model: facts for the record, and a line for the user."""

    weights: str
    "as the user named them"
    layout: str
    network: str
    others: tuple[str, ...]
    "see `StoredNetwork`"
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
            "": self.layout and f"{self.layout}{'' if self.layout == PLAIN else ' checkpoint'}{its}{others}",
            "tensors rounded to ": self.rounded,
            "positions ": self.positions,
            "mean and std ": "" if self.statistics in (AS_CONFIGURED, OF_EXPORT) else self.statistics,
            "activation ": self.gelu,
            "newly initialized: ": ", ".join(self.untrained),
            "dropped: ": ", ".join(self.dropped),
        }
        line = "; ".join(title + text for title, text in parts.items() if text)
        return f"weights {self.weights}: {line}" if line else ""


def read_weights(model: nn.Module, located: Located, spec: BackboneSpec, head: Names = ()) -> tuple[StoredNetwork, str]:
    """Return the network of a file under the model's names, the position grid resampled, without heads other than
    `head`; and in words what was done to the positions.

    Raises:
        UserError: the file is damaged, an export of another model, or does not tell its position grid.
    """
    assert located.path is not None
    config = exports.read_config(located.folder) if located.folder else None
    names, digest = {*model.state_dict(), *head}, located.weights_id.removeprefix("sha256:")
    network = read_network(located.path, digest, names, weights_key=spec.weights_key)
    heads = [getattr(getattr(block, "attn", None), "num_heads", None) for block in getattr(model, "blocks", [])]
    if network.heads and heads and heads[0] not in (None, network.heads):
        raise UserError(f"{located.path}: {network.layout} with {network.heads} heads; {spec.name} has {heads[0]}")
    stated = exports.image_size(config) if config and spec.kind != "user" else None
    size = spec.weights_size or stated
    # the projects of these do not train on squares alone
    squares = bool(located.timm_name) or network.layout not in ("", "lightly", "mmpretrain", "TransReID")
    try:
        old, new = source_grid(network.state, model, size, squares=squares), position_grid(model)
        network = replace(network, state=fit_channels(fit_positions(network.state, model, old), model))
    except ValueError as error:
        raise UserError(f"{located.path}: {error}") from None
    if not (config or located.timm_name or network.layout):
        network = replace(network, layout=PLAIN)
    if not old or not new:
        return network, ""
    known = bool(size) or network.state["pos_embed"].ndim == 4
    return network, _describe(old, new, known=known)


def _describe(old: Grid, new: Grid, *, known: bool) -> str:
    """Return what was done to positions, where another grid is possible or theirs changed."""
    if old != new:
        return f"{old[0]} x {old[1]} -> {new[0]} x {new[1]}"
    square = math.isqrt(old[0] * old[1]) ** 2 == old[0] * old[1] and old[0] != old[1]
    return f"{old[0]} x {old[1]} (--weights-size H W if its images had another shape)" if square and not known else ""


def load_weights(
    model: nn.Module, network: StoredNetwork, located: Located, spec: BackboneSpec, apart: Names = ()
) -> tuple[list[str], list[str]]:
    """Load the network that `read_weights` returned into a model.

    Args:
        apart: names of a classifier that is not loaded.

    Returns:
        Modules of the file that the model has no place for, and modules of the model that stay as initialised; none
        under `load: strict`.

    Raises:
        UserError: they do not fit.
    """
    state = {name: tensor for name, tensor in network.state.items() if name not in apart}
    target = {name: tensor for name, tensor in model.state_dict().items() if name not in apart}
    check_values(located.path or Path(), state, target)
    wrong = {name for name in target.keys() & state.keys() if target[name].shape != state[name].shape}
    missing, unexpected = target.keys() - state.keys(), state.keys() - target.keys()
    if spec.load == "strict" and (wrong or missing or unexpected):
        shapes = [f"{name} {tuple(state[name].shape)} for {tuple(target[name].shape)}" for name in sorted(wrong)]
        rows = {"missing": sorted(missing), "unexpected": sorted(unexpected), "of another shape": shapes}
        listed = "; ".join(f"{title}: {shortened(names)}" for title, names in rows.items() if names)
        which = f", its {network.name} (--weights-key: {', '.join(network.others)})," if network.others else ""
        remedy = "`--load partial` leaves new parts of the model as initialised"
        if names := _shipped_fits(state, spec):
            remedy = f"Use --backbone {' or '.join(names)}, whose tensors have these names and shapes"
        for there, here in ((state[name].shape, target[name].shape) for name in wrong):
            if len(there) == 4 and there[::2] == here[::2]:
                remedy = f"`--in-chans {there[1]}` gives the model the channels of the file"
        raise UserError(f"{located.path}{which} does not fit backbone {spec.name}: {listed}. {remedy}")
    # a bias without its weight is of no use: a module with one tensor that does not fit keeps none
    refused = {name.rpartition(".")[0] for name in wrong if "." in name}
    fitting = {name for name in target.keys() & state.keys() - wrong if name.rpartition(".")[0] not in refused}
    taken = {name: state[name] for name in fitting}
    missing = {name for name in target.keys() - taken.keys() if not name.endswith("num_batches_tracked")}
    unused = state.keys() - taken.keys()
    if spec.load == "partial":
        where = f"{located.path} in backbone {spec.name}"
        check_partial(where, taken, missing, unused, _new_parts(spec), allow=spec.allow_dropped)
    model.load_state_dict(taken, strict=False)
    return modules(unused, taken), modules(missing, taken)


def _shipped_fits(state: Mapping[str, Tensor], spec: BackboneSpec) -> list[str]:
    """Return the shipped backbones of the same architecture whose tensors have the names and shapes of a file's."""

    def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        # positions are brought to other grids
        return {name: tuple(tensor.shape) for name, tensor in tensors.items() if name != "pos_embed"}

    if spec.kind != "ours":
        return []
    shipped = [resolve(name, weights="random", in_chans=spec.in_chans) for name in config_names("backbones")]
    alike = [other for other in shipped if other.arch == spec.arch]
    with torch.device("meta"):
        return [other.name for other in alike if shapes(make_ours(other, (224, 224)).state_dict()) == shapes(state)]


def _new_parts(spec: BackboneSpec) -> tuple[str, str]:
    """Return patterns of the names that may be missing in weights, and that may be unused, because a part is of another
    kind than in the export, or, where there is none, than in released models.
    """
    if spec.kind == "user":  # a whole model may have anything new
        return "", "|".join(_PARTS.values())
    new = ["(?!)"]  # timm's have nothing
    if spec.kind == "ours":
        assert spec.patch is not None
        usual = archs.default_fields(spec.arch) | {"stem": str(find_stem("patchify").sized(spec.patch))}
        exported, ours = exported_spec(spec), spec.identity()
        theirs = exported.identity() if exported else usual
        # absent and off are the same
        new += [pattern for key, pattern in _PARTS.items() if (ours[key] or None) != (theirs.get(key) or None)]
    return "|".join(new), "|".join(new)


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
        lines = [f"{title}: {shortened(modules(names, taken))}" for title, names in rows.items()]
        raise UserError(f"{where}: {filled} of {len(blocks)} blocks are filled, less than half; {'; '.join(lines)}")
    # a whole block that is missing or unused is a model of another depth, which was asked for
    lost = {name for name in lost if _block(name) in {"", *touched}}
    changing = {name for name in unused if _block(name) in touched - {""}}
    changing |= {name for name in unused if _CHANGES_FEATURES.match(name)}
    changing |= {name for name in unused if re.sub("bias$", "weight", name) in taken}
    changing = {name for name in changing if not re.match(new[1], name)}
    if (lost or changing) and not allow:
        rows = {"missing in the file": lost, "without a place in the model": changing}
        lines = [f"{title}: {shortened(modules(names, taken))}" for title, names in rows.items() if names]
        fix = "Use an architecture that has the same parts, or --allow-dropped"
        raise UserError(f"{where}: the features would not be those of the weights; {'; '.join(lines)}. {fix}")


def modules(names: Names, taken: Names) -> list[str]:
    """Return the outermost modules that hold tensors of these names and none that is taken, and single tensors.

    Those that differ in a number only are one, with their count.
    """
    above_taken = {*chain.from_iterable(map(_prefixes, taken))}
    outermost = set[str]()
    for name in names:
        outermost.add(next((prefix for prefix in _prefixes(name) if prefix not in above_taken), name))
    counts = Counter(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in sorted(outermost))
    return [f"{name} ({count})" if count > 1 else name for name, count in counts.items()]


def _prefixes(name: str) -> list[str]:
    return list(accumulate(name.split("."), "{}.{}".format))


def _block(name: str) -> str:
    """Return the block of a tensor: what ends at the first number in its name, but for the stem; empty outside."""
    match = _BLOCK.match(name)
    return match[1] if match else ""
