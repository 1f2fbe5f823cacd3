"""Pretrained weights: where they lie and what identifies them. Never touches the network, and imports no torch."""

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from backbones import archs
from backbones.spec import BackboneSpec, resolve
from transfer.core import exports, live_modules, user_code
from transfer.core.cache import file_stamp
from transfer.core.errors import MissingInput, UsageError, UserError, did_you_mean
from transfer.core.files import file_sha256
from transfer.core.settings import config_names


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
            seeds = exports.seed_exports(str(path))
            fix = f"; use one of {', '.join(seeds)}" if seeds else ""
            files = ", ".join(exports.WEIGHT_FILES)
            raise MissingInput(f"backbone {spec.name}: the folder {path} holds none of {files}{fix}")
        return _locate_file(file, spec)
    recipe = next((name for name in config_names("pretrain") if spec.name.startswith(name)), "")
    names = ("config", "random", "timm", *exports.shipped_names())
    near = did_you_mean(source, names) or did_you_mean(f"weights/{source}", ()) or "."
    pretraining = ""
    if source.endswith(f"weights/{spec.name}"):  # where pretraining exports
        name = spec.name if spec.name in config_names("backbones") else "BACKBONE"
        words = f"{recipe or 'RECIPE'} --backbone {name} --dataset {'imagenet1k' if recipe else 'DATA'}"
        pretraining = f"`python -m transfer.pretrain {words} --data FOLDER`, with --stem and so on, makes them; or "
    raise MissingInput(
        f"backbone {spec.name}: there are no weights at {path}{near} {pretraining}"
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
        fault = "not the file that was exported: missing, renamed, damaged or changed since"
        fix = "Export it again, or set --allow-modified of a run, which its record keeps"
        raise UserError(f"{folder / modified[0]}: {fault}. {fix}")
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
    return _sha256(str(path.resolve()), file_stamp(path))


@lru_cache(maxsize=256)
def _sha256(path: str, stamp: str) -> str:
    return file_sha256(Path(path))


def _find_timm_weights(spec: BackboneSpec, tag: str) -> Located:
    """Find weights released through timm in the local Hugging Face cache."""
    from timm.models import get_pretrained_cfg, list_pretrained

    if not tag and spec.kind != "timm":
        raise UsageError(f"backbone {spec.name}: {spec.arch} is not timm's; name the weights, as in timm:<arch.tag>")
    name = tag or spec.arch
    config = None
    with suppress(RuntimeError):  # timm knows the architecture, but not the tag
        config = get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise UsageError(f"weights 'timm:{name}': timm has no such weights{did_you_mean(name, list_pretrained())}")
    full = f"{config.architecture}.{config.tag}" if config.tag else str(config.architecture)
    idle = [name for name in ("weights_key", "weights_size", "allow_dropped") if getattr(spec, name)]
    if idle and config.architecture == spec.arch.split(".")[0]:
        raise UsageError(f"--{idle[0].replace('_', '-')} has no effect on timm:{full}, which timm itself loads")
    if not config.hf_hub_id:
        fix = f"set --weights to a file of {config.url}"
        raise MissingInput(f"weights 'timm:{full}' are not on the Hugging Face hub; {fix}")
    files = (config.hf_hub_filename,) if config.hf_hub_filename else exports.WEIGHT_FILES[:2]
    return Located(exports.cached_file(config.hf_hub_id, files), f"timm:{full}", timm_name=full)


def exported_spec(spec: BackboneSpec) -> BackboneSpec | None:
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
    exported = exported_spec(spec) or spec
    ours, theirs = spec.identity(), exported.identity()
    changes = list[str]()
    for key in ("arch", *archs.ARCHITECTURE_FIELDS):
        if ours[key] == theirs[key] or not archs.changes_tensors(key, ours[key], theirs[key]):
            continue
        there, here = getattr(exported, key), getattr(spec, key)
        if key in spec.files and key in exported.files:
            changes.append(f"the file of {key} has changed since they were trained (as it was then: {there})")
        else:
            changes.append(f"{key} {there} there, {here} here")
    return changes


def head_digest(weights: str) -> str:
    """Return the sha256 (hex) of the head beside weights; empty if there is none."""
    folder = exports.export_folder(weights)
    return sha256(folder / exports.HEAD) if folder is not None and (folder / exports.HEAD).is_file() else ""
