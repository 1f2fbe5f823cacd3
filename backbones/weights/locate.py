"""Pretrained weights: where they lie, what identifies them, how they get into a model. Never touches the network."""

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from backbones import archs
from backbones.spec import BackboneSpec, resolve
from backbones.stems import find_stem
from backbones.weights.fitting import PLAIN, check_partial, modules
from transfer.core import exports, live_modules, user_code
from transfer.core.errors import MissingInput, UsageError, UserError, did_you_mean, shortened
from transfer.core.files import file_sha256
from transfer.core.settings import config_names

if TYPE_CHECKING:
    from torch import Tensor, nn

    from backbones.positions import Grid
    from backbones.weights.load import Network

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
class Located:
    """Weights that exist on this machine, or random ones."""

    path: Path | None
    "a file; None: random weights"
    weights_id: str
    "`sha256:<hex>` of the file, `timm:<arch.tag>`, or `random`"
    timm_name: str = ""
    "arch.tag of weights released through timm"
    folder: Path | None = None
    "the exported folder around the file"


def find_weights(spec: BackboneSpec) -> Located:
    """Return where the weights of a backbone are, without building it.

    Raises:
        UsageError: the source cannot be understood, or timm has no such tag.
        UserError: the weights are not on this machine; the message says how to get them.
    """
    source = spec.weights
    if source in ("random", "live") and live_modules.is_live(spec.arch):
        return Located(None, live_modules.find(spec.arch).weights_id)
    if source == "random":
        return Located(None, "random")
    if source == "timm" or source.startswith("timm:"):
        return _find_timm_weights(spec, source.removeprefix("timm").removeprefix(":"))
    if source.startswith("hf-hub:"):
        return _locate_file(exports.cached_file(source.removeprefix("hf-hub:"), exports.WEIGHT_FILES[:4]), spec)
    path = exports.inside_run(Path(source.removeprefix("local-dir:")))
    if path.is_file():
        return _locate_file(path, spec)
    if path.is_dir():
        file = next((path / name for name in exports.WEIGHT_FILES if (path / name).is_file()), None)
        if file is None:
            raise MissingInput(
                f"backbone {spec.name}: the folder {path} holds none of {', '.join(exports.WEIGHT_FILES)}"
                + "".join(f"; use one of {', '.join(seeds)}" for seeds in [exports.seed_exports(str(path))] if seeds)
            )
        return _locate_file(file, spec)
    recipe = next((one for one in config_names("pretrain") if spec.name.startswith(one)), "")
    names = ("config", "random", "timm", *exports.shipped_names())
    near = did_you_mean(source, names) or did_you_mean(f"weights/{source}", ()) or "."
    made = (
        f"`python -m transfer.pretrain {recipe or 'RECIPE'} --backbone {spec.name} "
        f"--dataset {'imagenet1k' if recipe else 'DATA'} --data FOLDER` makes them; or "
    ) * (not path.suffix)  # pretraining makes folders
    raise MissingInput(
        f"backbone {spec.name}: there are no weights at {path}{near} {made}"
        "set --weights to a file, a folder, timm:<arch.tag> (with --load partial for a new part) or random"
    )


def trained_size(spec: BackboneSpec) -> tuple[int, int] | None:
    """Return (H, W) in pixels of the images that the weights were last trained on; None if it is unknown."""
    if spec.weights_size:
        return spec.weights_size
    if folder := exports.export_folder(spec.weights):
        size = exports.pretraining_facts(folder).get("options", {}).get("size")
        stated = None if spec.kind == "user" else exports.image_size(exports.read_config(folder))
        return (size, size) if isinstance(size, int) else stated
    if spec.weights.startswith("timm") or spec.kind == "timm":
        from timm.models import get_pretrained_cfg

        with suppress(RuntimeError):  # an unknown tag, which `find_weights` reports
            config = get_pretrained_cfg(spec.weights.removeprefix("timm").removeprefix(":") or spec.arch)
            return config.input_size[1:] if config else None
    return spec.train_size


def _locate_file(path: Path, spec: BackboneSpec) -> Located:
    folder = path.parent
    if (modified := exports.modified_files(folder, path.name)) and not spec.allow_modified:
        raise UserError(
            f"{folder / modified[0]}: not the file that was exported: missing, renamed, damaged or changed since. "
            "Export it again, or use --allow-modified, which the record keeps"
        )
    exported = path.name in exports.WEIGHT_FILES and exports.is_export(folder)
    if spec.load == "strict" and (changed := changed_parts(spec)):
        raise UserError(
            f"{spec.weights} contains a different architecture than backbone {spec.name}: {'; '.join(changed)}. "
            "`--load partial` loads matching tensors; components that no flag sets stay those of the export"
        )
    digest = exports.digest_of_shards([sha256(file) for file in exports.shards(path)])
    return Located(path, f"sha256:{digest}", folder=folder if exported else None)


def sha256(path: Path) -> str:
    """Return the sha256 (hex) of a file, remembered as long as its size, times and inode stay the same."""
    status = path.stat()
    return _sha256(str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@lru_cache(maxsize=256)
def _sha256(path: str, *stamp: int) -> str:
    return file_sha256(Path(path))


def _find_timm_weights(spec: BackboneSpec, tag: str) -> Located:
    """Find weights released through timm in the local Hugging Face cache."""
    from timm.models import get_pretrained_cfg, list_pretrained

    if not tag and spec.kind != "timm":
        raise UsageError(f"backbone {spec.name}: {spec.arch} is not timm's; name the weights, as in timm:<arch.tag>")
    name = tag or spec.arch
    try:
        config = get_pretrained_cfg(name)
    except RuntimeError:  # timm knows the architecture, but not the tag
        config = None
    if config is None or not config.has_weights:
        raise UsageError(f"weights 'timm:{name}': timm has no such weights{did_you_mean(name, list_pretrained())}")
    full = f"{config.architecture}.{config.tag}" if config.tag else str(config.architecture)
    idle = [name for name in ("weights_key", "weights_size", "allow_dropped") if getattr(spec, name)]
    if idle and config.architecture == spec.arch.split(".")[0]:
        raise UsageError(f"--{idle[0].replace('_', '-')} has no effect on timm:{full}, which timm itself loads")
    if not config.hf_hub_id:
        raise MissingInput(
            f"weights 'timm:{full}' are not on the Hugging Face hub; set --weights to a file of {config.url}"
        )
    files = (config.hf_hub_filename,) if config.hf_hub_filename else exports.WEIGHT_FILES[:2]
    return Located(exports.cached_file(config.hf_hub_id, files), f"timm:{full}", timm_name=full)


def read_weights(
    model: "nn.Module", located: Located, spec: BackboneSpec, head: Collection[str] = ()
) -> "tuple[Network, str]":
    """Return the network of a file under the model's names, the position grid resampled, without heads other than
    `head`; and in words what was done to the positions.

    Raises:
        UserError: the file is damaged, an export of another model, or does not tell its position grid.
    """
    from backbones.positions import fit_positions, grid_of, source_grid
    from backbones.weights.load import fit_channels, read_network

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
        old, new = source_grid(network.state, model, size, squares=squares), grid_of(model)
        network = replace(network, state=fit_channels(fit_positions(network.state, model, old), model))
    except ValueError as error:
        raise UserError(f"{located.path}: {error}") from None
    if not (config or located.timm_name or network.layout):
        network = replace(network, layout=PLAIN)
    if not old or not new:
        return network, ""
    known = bool(size) or network.state["pos_embed"].ndim == 4
    return network, _describe(old, new, known=known)


def _describe(old: "Grid", new: "Grid", *, known: bool) -> str:
    """Return what was done to positions, where another grid is possible or theirs changed."""
    if old != new:
        return f"{old[0]} x {old[1]} -> {new[0]} x {new[1]}"
    square = math.isqrt(old[0] * old[1]) ** 2 == old[0] * old[1] and old[0] != old[1]
    return f"{old[0]} x {old[1]} (--weights-size H W if its images had another shape)" if square and not known else ""


def load_weights(
    model: "nn.Module", network: "Network", located: Located, spec: BackboneSpec, apart: Collection[str] = ()
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
    from backbones.weights.load import check_values

    state = {name: tensor for name, tensor in network.state.items() if name not in apart}
    target = {name: tensor for name, tensor in model.state_dict().items() if name not in apart}
    check_values(located.path or Path(), state, target)
    wrong = {name for name in target.keys() & state.keys() if target[name].shape != state[name].shape}
    missing, unexpected = target.keys() - state.keys(), state.keys() - target.keys()
    if spec.load == "strict" and (wrong or missing or unexpected):
        shapes = [f"{name} {tuple(state[name].shape)} for {tuple(target[name].shape)}" for name in sorted(wrong)]
        rows = {"missing": sorted(missing), "unexpected": sorted(unexpected), "of another shape": shapes}
        listed = "; ".join(f"{title}: {shortened(names)}" for title, names in rows.items() if names)
        which = f", its {network.name} (--weights-key: {', '.join(network.others)})," * bool(network.others)
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
    missing = {name for name in target if name not in taken and not name.endswith("num_batches_tracked")}
    unused = state.keys() - taken.keys()
    if spec.load == "partial":
        where = f"{located.path} in backbone {spec.name}"
        check_partial(where, taken, missing, unused, _new_parts(spec), allow=spec.allow_dropped)
    model.load_state_dict(taken, strict=False)
    return modules(unused, taken), modules(missing, taken)


def _shipped_fits(state: "Mapping[str, Tensor]", spec: BackboneSpec) -> list[str]:
    """Return the shipped backbones of the same architecture whose tensors have the names and shapes of a file's."""
    import torch

    from backbones.initialisation import make_ours

    def shapes(tensors: "Mapping[str, Tensor]") -> dict[str, tuple[int, ...]]:
        # positions are brought to other grids
        return {name: tuple(tensor.shape) for name, tensor in tensors.items() if name != "pos_embed"}

    shipped = [resolve(name, weights="random", in_chans=spec.in_chans) for name in config_names("backbones")]
    alike = [one for one in shipped if one.arch == spec.arch and spec.kind == "ours"]
    with torch.device("meta"):
        return [one.name for one in alike if shapes(make_ours(one, (224, 224)).state_dict()) == shapes(state)]


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
        exported, ours = _exported(spec), spec.identity()
        theirs = exported.identity() if exported else usual
        # absent and off are the same
        new += [pattern for key, pattern in _PARTS.items() if (ours[key] or None) != (theirs.get(key) or None)]
    return "|".join(new), "|".join(new)


def _exported(spec: BackboneSpec) -> BackboneSpec | None:
    """Return the backbone that the weights of one of ours, or of a user's whole model, are an export of; None for other
    weights.
    """
    folder = None if spec.kind == "timm" or live_modules.is_live(spec.arch) else exports.export_folder(spec.weights)
    if folder is None:
        return None
    copies = {part: copy for part, copy in exports.users_parts(folder).items() if part in spec.files}
    same = {part: getattr(spec, part) for part, copy in copies.items() if user_code.digest(copy) == spec.files[part]}
    exported = resolve(f"local-dir:{folder}", **same)
    return exported if exported.kind == spec.kind else None


def changed_parts(spec: BackboneSpec) -> list[str]:
    """Return the parts with tensors in which a backbone differs from the export of its weights.

    Names and shapes do not tell: softmax and ReLU attention, say, have the same tensors.
    """
    exported = _exported(spec) or spec
    ours, theirs = spec.identity(), exported.identity()
    return [
        f"the file of {key} has changed since they were trained (as it was then: {getattr(exported, key)})"
        if key in spec.files and key in exported.files
        else f"{key} {getattr(exported, key)} there, {getattr(spec, key)} here"
        for key in ("arch", *archs.ARCHITECTURE_FIELDS)
        if ours[key] != theirs[key] and archs.changes_tensors(key, ours[key], theirs[key])
    ]


def head_digest(weights: str) -> str:
    """Return the sha256 (hex) of the head beside weights; empty if there is none."""
    folder = exports.export_folder(weights)
    return sha256(folder / exports.HEAD) if folder is not None and (folder / exports.HEAD).is_file() else ""
