"""Pretrained weights: where they lie, what identifies them, how they get into a model. Never touches the network."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from backbones import archs
from backbones.checkpoints import exports, hub
from backbones.errors import MissingInput, UsageError, UserError, did_you_mean, shortened
from backbones.runtime import live_modules
from backbones.runtime.files import file_sha256
from backbones.spec import BackboneSpec, resolve

if TYPE_CHECKING:
    from torch import Tensor, nn

_SOURCES = ("config", "random", "timm", "timm:<arch.tag>", "hf-hub:<owner/name>")


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
        return _locate_file(hub.cached_file(source.removeprefix("hf-hub:"), exports.WEIGHT_FILES[:2]), spec)
    path = exports.inside_run(Path(source.removeprefix("local-dir:")))
    if path.is_file():
        return _locate_file(path, spec)
    if path.is_dir():
        file = next((path / name for name in exports.WEIGHT_FILES if (path / name).is_file()), None)
        if file is None:
            raise MissingInput(
                f"backbone {spec.name}: the folder {path} holds none of {', '.join(exports.WEIGHT_FILES)}"
            )
        return _locate_file(file, spec)
    if not path.suffix and len(path.parts) == 1:
        raise UsageError(
            f"weights '{source}': no file, no folder, and none of {', '.join(_SOURCES)}{did_you_mean(source, _SOURCES)}"
        )
    raise MissingInput(
        f"backbone {spec.name}: there are no weights at {path}; put an export there, "
        "or give --weights a file, a folder, timm:<arch.tag> (with --load partial for a new part) or random. "
        f"`python -m transfer.pretrain RECIPE --backbone {spec.name} --dataset DATA` makes them"
    )


def _locate_file(path: Path, spec: BackboneSpec) -> Located:
    folder = path.parent
    if (modified := exports.modified_files(folder, path.name)) and not spec.allow_modified:
        raise UserError(
            f"{folder / modified[0]}: not the file that was exported: missing, renamed, damaged or changed since. "
            "Export it again, or give --allow-modified, which the record keeps"
        )
    exported = path.name in exports.WEIGHT_FILES and exports.is_export(folder)
    return Located(path, f"sha256:{sha256(path)}", folder=folder if exported else None)


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
    if not config.hf_hub_id:
        raise MissingInput(
            f"weights 'timm:{full}' are not on the Hugging Face hub; give --weights a file of {config.url}"
        )
    files = (config.hf_hub_filename,) if config.hf_hub_filename else exports.WEIGHT_FILES[:2]
    return Located(hub.cached_file(config.hf_hub_id, files), f"timm:{full}", timm_name=full)


def load_weights(
    model: "nn.Module",
    state: "dict[str, Tensor]",
    located: Located,
    spec: BackboneSpec,
    apart: Collection[str] = (),
) -> list[str]:
    """Load the tensors that `read_weights` returned into a model.

    Args:
        apart: names of a classifier that is not loaded.

    Returns:
        Names that stay as initialised (a module's where that is true of all it holds); none under `load: strict`.

    Raises:
        UserError: they do not fit.
    """
    state = {name: tensor for name, tensor in state.items() if name not in apart}
    target = {name: tensor for name, tensor in model.state_dict().items() if name not in apart}
    wrong = {name for name in target.keys() & state.keys() if target[name].shape != state[name].shape}
    missing, unexpected = target.keys() - state.keys(), state.keys() - target.keys()
    if spec.load == "strict" and (wrong or missing or unexpected):
        shapes = [f"{name} {tuple(state[name].shape)} for {tuple(target[name].shape)}" for name in sorted(wrong)]
        rows = {"missing": sorted(missing), "unexpected": sorted(unexpected), "of another shape": shapes}
        raise UserError(
            f"{located.path} does not fit backbone {spec.name}: "
            + "; ".join(f"{title}: {shortened(names)}" for title, names in rows.items() if names)
            + ". `--load partial` takes what fits and leaves the rest as initialised"
        )
    # a bias without its weight is of no use: a module with one tensor that does not fit keeps none
    refused = {name.rpartition(".")[0] for name in wrong if "." in name}
    fitting = {
        name: state[name]
        for name in target.keys() & state.keys()
        if name not in wrong and name.rpartition(".")[0] not in refused
    }
    if not fitting.keys() & dict(model.named_parameters()).keys():
        raise UserError(f"{located.path}: not one tensor fits backbone {spec.name}; it holds {shortened(list(state))}")
    model.load_state_dict(fitting, strict=False)
    return _untrained_names(target, fitting)


def read_weights(
    model: "nn.Module", located: Located, spec: BackboneSpec, head: Collection[str] = ()
) -> "dict[str, Tensor]":
    """Return the tensors of a file under the model's names, the position grid resampled, without heads other than
    `head`.

    Raises:
        UserError: the file is damaged, or an export of another model.
    """
    from backbones.checkpoints.state_dicts import read_network
    from backbones.positions import fit_positions

    if located.path is None:
        return {}
    grid = None
    if located.folder is not None:
        config = exports.read_config(located.folder)
        changed = exports.changed_sources(located.folder, spec.files)
        if changed and spec.load == "strict":
            raise UserError(f"weights {located.folder}: {'; '.join(changed)}. `--load partial` takes them all the same")
        if spec.kind == "ours" and config["architecture"] in archs.ARCHS:
            same = {part: getattr(spec, part) for part in exports.same_sources(located.folder, spec.files)}
            exported = resolve(f"local-dir:{located.folder}", **same)
            # names and shapes do not tell: softmax and ReLU attention, say, have the same tensors
            if spec.load == "strict" and (differing := _differing_parts(exported, spec)):
                raise UserError(
                    f"{exported.weights} holds another model than backbone {spec.name}: {'; '.join(differing)}. "
                    "`--load partial` takes what fits, and keeps each part that the export names and no flag does"
                )
            height, width = exports.image_size(config)
            assert exported.patch is not None
            grid = (height // exported.patch, width // exported.patch)
    known = {*model.state_dict(), *head}
    network = read_network(
        located.path, located.weights_id.removeprefix("sha256:"), known, weights_key=spec.weights_key
    )
    try:
        return fit_positions(network.state, model, grid)
    except ValueError as error:
        raise UserError(f"{located.path}: {error}") from None


def _differing_parts(exported: BackboneSpec, spec: BackboneSpec) -> list[str]:
    """Return the parts with tensors in which a backbone and an export differ."""
    ours, theirs = spec.identity(), exported.identity()
    keys = [key for key in ours if key in ("arch", *archs.ARCHITECTURE_FIELDS) and ours[key] != theirs[key]]
    return [
        f"{key} {theirs[key]} there, {ours[key]} here"
        for key in keys
        if archs.changes_tensors(key, ours[key], theirs[key])
    ]


def changed_parts(spec: BackboneSpec) -> list[str]:
    """Return, under `load: partial`, the parts of a backbone that differ from the export of its weights."""
    folder = exports.export_folder(spec.weights)
    if spec.load != "partial" or folder is None:
        return []
    changed = exports.changed_sources(folder, spec.files)
    exported = resolve(f"local-dir:{folder}") if spec.kind == "ours" else None
    return changed + (_differing_parts(exported, spec) if exported and exported.kind == "ours" else [])


def _untrained_names(target: Collection[str], loaded: Collection[str]) -> list[str]:
    """Return the names that were not loaded: the outermost modules of which nothing was loaded, and single tensors."""
    names = set()
    for name in target:
        if name in loaded or name.endswith("num_batches_tracked"):
            continue
        pieces = name.split(".")
        prefixes = [".".join(pieces[:end]) for end in range(1, len(pieces) + 1)]
        names.add(next(p for p in prefixes if not any(known == p or known.startswith(p + ".") for known in loaded)))
    return sorted(names)


def head_digest(weights: str) -> str:
    """Return the sha256 (hex) of the head beside weights; empty if there is none."""
    folder = exports.export_folder(weights)
    return sha256(folder / exports.HEAD) if folder is not None and (folder / exports.HEAD).is_file() else ""
