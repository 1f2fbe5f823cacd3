"""From a name to a `BackboneSpec`: plain values that say which model to build and where its weights are.

Imports neither torch nor timm, so that names can be checked before anything heavy is loaded.
"""

import math
import re
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from backbones import archs
from backbones.archs import ARCHS, export_of, exported_fields, timm_names
from backbones.stems import find_stem
from transfer.core import exports, live_modules, user_code
from transfer.core.errors import UsageError, did_you_mean, errors_naming, has_kept, kept
from transfer.core.options import Needs, Other
from transfer.core.settings import CONFIGS, choices_of, config_names, read_yaml

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LEFT_TO_RECIPES = ("pos_embed_interp",)
"""Fields that a recipe may say for those architectures that take them; no flag of a user's is dropped so."""
POINTWISE = tuple(h for h in user_code.builtin_names("attention") if h != "softmax" and not h.endswith("_sum"))
"""The attentions that a power of the length scales."""
_TAKES_LENGTH = Needs(attention=Other("softmax", *(f"{h}_sum" for h in POINTWISE)))


@dataclass(frozen=True, kw_only=True)
class BackboneSpec:
    """A backbone as plain values. What only our own architectures take is None for all others."""

    name: str
    arch: str
    "one of `ARCHS`, a timm name with or without tag, `file.py:Name`, or `live:NAME`"
    stem: str | None = None
    attention: str | None = None
    ffn: str | None = None
    patch: int | None = None
    depth: int | None = None
    pool: Literal["cls", "gap", "mean"] | None = None
    "cls; gap: mean over the tokens of a model without class token; mean: over the patch tokens of a model with one"
    pos: Literal["learned", "sincos2d"] | None = None
    pos_embed_interp: Literal["antialias", "bicubic", "dino", "bilinear", "corners"] | None = None
    "how positions are brought to the grids of other image sizes: see `positions.resample_positions`"
    cls_pos_embed: bool | None = None
    "whether the class token has a position too; else positions are added before it joins (big_vision)"
    pre_logits: bool | None = None
    "a dense layer and tanh behind the pooling, whose output is the representation (big_vision)"
    init: Literal["deit", "bigvision"] | None = None
    qk_norm: bool | None = None
    gate: Literal["off", "sigmoid", "silu", "linear"] | None = None
    "off, or the activation of a gate on the attention's output: see `attention.GATES`"
    alpha: Annotated[float | str | None, Needs(attention=POINTWISE)] = None
    "exponent of the token count in point-wise attention, or `learned`"
    length: Annotated[Literal["tokens", "image", "train"] | None, _TAKES_LENGTH] = None
    "what that token count is: tokens (the keys given), image (of the whole image), train (at `train_size`)"
    train_size: Annotated[tuple[int, int] | None, Needs(length="train")] = None
    "(H, W) in pixels of the images of pretraining"
    drop_path: float = 0.0
    "stochastic depth of the last block, linear over the blocks; a user's whole model keeps its own"
    in_chans: int = 3
    "channels of the images: see `docs/guide/data.md`"
    mean: tuple[float, ...] | None = None
    "of each channel of images in [0, 1]; None takes it from the weights, or else from the architecture's configuration"
    std: tuple[float, ...] | None = None
    weights: str = "random"
    "random (as initialised) | live (a module's own) | timm | timm:<arch.tag> | hf-hub:<owner/name> | a folder | a file"
    weights_key: Annotated[str | None, Needs(weights=Other("random"))] = None
    "the network of a file that holds several: its name or prefix in the file"
    weights_size: Annotated[tuple[int, int] | None, Needs(weights=Other("random"))] = None
    "(H, W) in pixels of the images that the file of weights was trained on, which give its position grid"
    load: Annotated[Literal["strict", "partial"], Needs(weights=Other("random"))] = "strict"
    allow_dropped: bool = False
    "take weights, under `load: partial`, of which more is dropped or missing than new parts; not part of the identity"
    files: dict[str, str] = field(default_factory=dict)
    "sha256 of the user's file behind each part that is one"
    allow_modified: bool = False
    "take exported weights that are not as they were written; no part of the identity"

    @property
    def kind(self) -> str:
        """Who builds the model: "ours", "timm" or "user"."""
        if user_code.is_user_part(self.arch):
            return "user"
        return "ours" if self.arch in ARCHS else "timm"

    @property
    def divisor(self) -> int:
        """Pixels that height and width must be multiples of; of timm's architectures by their name, else 1."""
        if self.patch is None:
            named = re.search(r"_patch(\d+)", self.arch)
            return int(named[1]) if named and self.kind == "timm" else 1
        return 2 * self.patch if self.arch in archs.VOLOS else self.patch

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BackboneSpec":
        """Return what `as_dict` gave. Raises UserError for a part of a file that the user has not named before."""
        for part in user_code.USER_PARTS:
            user_code.check_allowed(str(values.get(part)))
        known: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return cls(**known)

    def cover(self, side: int) -> int:
        """Return the smallest multiple of `divisor`, in pixels, that is at least `side`."""
        return -(-side // self.divisor) * self.divisor

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as values that JSON can hold."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        del values["allow_modified"]
        return values

    def identity(self) -> dict[str, Any]:
        """Return what decides the model, to be hashed: users' files by content, canonical stems, not the weights."""
        values = self.as_dict()
        del values["weights"], values["files"], values["allow_dropped"]
        if self.stem is not None and self.patch is not None and "stem" not in self.files:
            values["stem"] = str(find_stem(self.stem).sized(self.patch))
        for part, sha in self.files.items():
            values[part] = f"sha256:{sha}:{values[part].rpartition(':')[2]}"
        return values


_HINTS = get_type_hints(BackboneSpec)
SPEC_FIELDS = tuple(f.name for f in fields(BackboneSpec) if f.name not in ("name", "files", "allow_modified"))


def resolve(name: str, *, usual: dict[str, Any] | None = None, **overrides: Any) -> BackboneSpec:
    """Return the specification behind a name, with defaults filled in.

    Args:
        name: a file name in configs/backbones, an architecture of ours or of timm (with or without tag), a user's YAML
            file, `file.py:Name` (a whole model), a folder that `backbones.vit.export` wrote, or `hf-hub:<owner/name>`.
        usual: fields that hold for architectures that take them, unless the configuration or an override says more.
        overrides: fields of `BackboneSpec`; None, and "config" for `weights`, leave the field as it is.

    Raises:
        UsageError: an unknown name, key or value, with the nearest known ones.
    """
    title, values, where = _read_source(name)
    replacements, given_files = _check_fields(overrides, f"backbone {title}")
    replaced = replacements.keys() & {*user_code.USER_PARTS}
    values, files = _check_fields({key: values[key] for key in values if key not in replaced}, where)
    files |= given_files
    chosen = values | replacements
    exported = export_of(chosen.get("weights", "random"), chosen.get("arch", ""))
    weights = str(chosen.get("weights", "random"))
    by_name = re.search(rf"(^|/)weights/{re.escape(title)}(/seed\d+)?(/[^/]+\.safetensors)?/?$", weights)
    folder = exports.export_folder(weights)
    if folder and not where.endswith(exports.CONFIG) and ("weights" in replacements or by_name):
        # what the configuration says so is of other weights
        stated = exports.mean_and_std(exports.read_config(folder))
        names = {"train_size", "alpha", "length"} if by_name else set[str]()
        of_export = {*stated, *(names & exported.keys())} - replacements.keys()
        chosen = {key: value for key, value in chosen.items() if key not in of_export}
    if replacements.get("load") == "partial" and values.get("load") != "partial":
        # the flag asks for the weights: their parts stay, unless a flag of its own asks for another kind
        parts = exported.keys() & {*archs.ARCHITECTURE_FIELDS} - replacements.keys()
        parts_of_export = {key for key in parts if archs.changes_tensors(key, exported[key], chosen.get(key))}
        chosen = {key: value for key, value in chosen.items() if key not in parts_of_export}
        files = {part: sha for part, sha in files.items() if part not in parts_of_export}
    if "arch" not in chosen and not has_kept():  # else it was rejected
        raise UsageError(f"{where}: `arch` is missing (one of {', '.join(ARCHS)}, a timm name, or file.py:Name)")
    taken = archs.default_fields(chosen["arch"])
    for_arch = {key: value for key, value in (usual or {}).items() if key in taken}
    chosen = _check_fields(for_arch, where)[0] | chosen
    left_open = {key: value for key, value in exported.items() if key not in chosen}
    left_open, more_files = _check_fields(left_open, str(Path(exported.get("weights", "")) / exports.CONFIG))
    return _with_defaults(BackboneSpec(name=title, files=more_files | files, **(left_open | chosen)))


def override(spec: BackboneSpec, **overrides: Any) -> BackboneSpec:
    """Return the same backbone with fields replaced; None, and "config" for `weights`, leave a field as it is."""
    replacements, files = _check_fields(overrides, f"backbone {spec.name}")
    if "attention" in replacements and spec.attention and spec.qk_norm == default_qk_norm(spec.attention):
        replacements.setdefault("qk_norm", None)
    if "arch" in replacements:
        replacements.setdefault("pos_embed_interp", None)
    files = {part: sha for part, sha in spec.files.items() if part not in replacements} | files
    return _with_defaults(replace(spec, **replacements, files=files))


def sides(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width in pixels of a size that may be one number."""
    return (size, size) if isinstance(size, int) else size


def check_size(spec: BackboneSpec, size: int | tuple[int, int]) -> None:
    """Raise UsageError unless images of this size, (H, W) in pixels, can be cut into patches."""
    height, width = sides(size)
    if height % spec.divisor or width % spec.divisor:
        twice = "twice " if spec.arch in archs.VOLOS else ""
        side = f"use multiples of {spec.divisor}, {twice}the patch size of {spec.name}"
        raise UsageError(f"--size {height} x {width} (H x W): {side}")


def _read_source(name: str) -> tuple[str, dict[str, Any], str]:
    """Return (name of the backbone, its values, name of the place for messages: the file, where there is one)."""
    where = f"backbone {name}"
    path = exports.inside_run(Path(name.removeprefix("local-dir:")))
    if name in config_names("backbones"):
        file = CONFIGS / "backbones" / f"{name}.yaml"
        return name, _choose_weights(read_yaml(file), name), str(file)
    if name in ARCHS:
        return name, _choose_weights({"arch": name}, name), where
    if live_modules.is_live(name):
        module = live_modules.find(name)
        weights = "random" if module.is_reinitialized else "live"
        pixel_statistics = live_modules.pixel_statistics(module.example)
        return module.name, {"arch": name, "weights": weights, **pixel_statistics}, where
    if user_code.is_user_part(name):
        title = name.rpartition(":")[2]
        return title, _choose_weights({"arch": name, "weights": "random"}, title, asked=False), where
    if name.startswith("hf-hub:"):
        config = exports.cached_file(name.removeprefix("hf-hub:"), (exports.CONFIG,))
        return name.rpartition("/")[2], _over_recipe(config.parent) | {"weights": name}, str(config)
    if path.suffix in (".yaml", ".yml"):
        return path.stem, _choose_weights(read_yaml(path), path.stem), str(path)
    if ((first := Path([*exports.seed_exports(str(path)), str(path)][0])) / exports.CONFIG).is_file():
        place = path.resolve()
        title = place.parent.name if re.fullmatch(rf"{exports.EXPORT}|seed\d+", place.name) else place.name
        return title, _over_recipe(first) | {"weights": str(path)}, str(first / exports.CONFIG)
    if name.split(".")[0] in timm_names():
        return name, _choose_weights({"arch": name, "weights": "timm"}, name), where
    known = [*config_names("backbones"), *ARCHS, *timm_names()]
    near = did_you_mean(name, known) or did_you_mean(f"weights/{name}", ())
    raise UsageError(
        f"unknown backbone '{name}'{near} (`python -m transfer.run --list` lists the shipped; "
        "any name of timm, my.yaml, file.py:Name, hf-hub:<owner/name> or an exported folder is a backbone, too)"
    )


def _over_recipe(folder: Path) -> dict[str, Any]:
    """Return the fields of an exported folder that no recipe overrules: all but the resampling in its training."""
    return {key: value for key, value in exported_fields(folder).items() if key not in LEFT_TO_RECIPES}


def _choose_weights(values: dict[str, Any], name: str, *, asked: bool = True) -> dict[str, Any]:
    """Return the values with weights: those that pretraining exports below the working directory where none are named.

    Once there, these are also taken in the place of released ones, unless they come from a smoke run or a subset; not
    of random weights that the configuration asks for (`asked`).
    """
    weights, exported = values.get("weights"), f"weights/{name}"
    if weights in (None, "config"):
        return values | {"weights": exported}
    if (weights == "random" and asked) or not str(weights).startswith(("timm", "hf-hub:", "random")):
        return values
    facts = exports.pretraining_facts(Path([*exports.seed_exports(exported), exported][0]))
    real = facts and not facts.get("smoke") and facts.get("subset") is None
    return values | {"weights": exported} if real else values


def _check_fields(values: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values that are given, in their proper types, and the sha256 of each user's file among them.

    Paths in a YAML file are relative to its folder.
    """
    checked, files = {}, {}
    folder = Path(where).resolve().parent if where.endswith((".yaml", ".yml")) else None
    for key, value in values.items():
        with kept(), errors_naming(where):
            if key not in SPEC_FIELDS:
                raise UsageError(
                    f"unknown key '{key}'{did_you_mean(key, SPEC_FIELDS)} (known: {', '.join(SPEC_FIELDS)})"
                )
            if value is None or (key, value) == ("weights", "config"):
                continue
            try:
                parsed = parse_field(key, value)
            except (TypeError, ValueError, OverflowError):
                raise UsageError(f"`{key}: {value}` cannot be read") from None
            if key in user_code.USER_PARTS and user_code.is_user_part(value):
                if Path(where).name == exports.CONFIG and user_code.is_in_file(value):
                    exports.check_named_part(Path(where).parent, key, value)
                parsed = user_code.locate(value, folder)
                files[key] = user_code.digest(parsed)
            elif key == "weights" and folder is not None and (folder / value).exists():
                parsed = str(folder / value)
            checked[key] = parsed
    return checked, files


def parse_field(key: str, value: Any) -> Any:
    """Return the value of one field in its proper type.

    Raises:
        UsageError: with the values that there are.
        TypeError, ValueError: it cannot be read at all.
    """
    hint = _HINTS[key]
    if (choices := choices_of(hint)) and value not in choices:
        raise UsageError(f"`{key}: {value}` must be one of {', '.join(choices)}")
    if key in (*user_code.USER_PARTS, "weights"):
        if not isinstance(value, str):
            raise ValueError
        if not user_code.is_user_part(value):
            _check_known(key, value)
        return value
    if key in ("mean", "std"):
        of_channels = tuple(_finite(number) for number in value)
        if key == "std" and min(of_channels) <= 0:
            raise UsageError(f"`std: {value}`: must be positive")
        return of_channels
    if key in ("train_size", "weights_size"):
        height, width = sides(value)
        return (int(height), int(width))
    if hint in (bool, bool | None) and not isinstance(value, bool):
        raise ValueError
    if key == "drop_path" or (key == "alpha" and value != "learned"):
        return _finite(value)
    if hint in (int, int | None):
        if isinstance(value, bool) or int(value) != float(value) or int(value) < 1:
            raise ValueError
        return int(value)
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _check_known(part: str, text: str) -> None:
    if text.endswith(".py") and part != "weights":
        user_code.locate(f"{text}:")
    if part == "stem":
        find_stem(text)
    elif part == "arch" and text not in ARCHS and text.split(".")[0] not in timm_names():
        raise UsageError(f"unknown architecture '{text}'{did_you_mean(text, [*ARCHS, *timm_names()])}")
    elif part in ("attention", "ffn"):
        user_code.check_name(part, text)


def _with_defaults(spec: BackboneSpec) -> BackboneSpec:
    """Fill in defaults for what the architecture takes, and check that nothing else was asked for."""
    defaults = archs.default_fields(spec.arch)
    for key in archs.ARCHITECTURE_FIELDS:
        if key not in defaults and getattr(spec, key) is not None:
            takers = ", ".join(name for name in ARCHS if key in archs.default_fields(name))
            raise UsageError(f"backbone {spec.name}: `{key}` does not apply to {spec.arch}; of ours {takers} take it")
    missing = {key: value for key, value in defaults.items() if getattr(spec, key) is None}
    if spec.arch not in ARCHS:
        return with_statistics(replace(spec, **missing), {})
    statistics: dict[str, Any] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    if folder := exports.export_folder(spec.weights):
        statistics |= exports.mean_and_std(exports.read_config(folder))
    elif spec.weights not in ("random", "live"):  # they are known with the weights alone
        statistics = {}
    spec = with_statistics(replace(spec, **missing), statistics)
    assert spec.stem
    if spec.arch in archs.VOLOS and spec.patch not in (4, 8, 16):
        raise UsageError(f"backbone {spec.name}: `patch: {spec.patch}`: {spec.arch} takes 4, 8 or 16")
    if "stem" not in spec.files:
        assert spec.patch
        find_stem(spec.stem).layers(ARCHS[spec.arch].dim, spec.patch)
    if spec.attention is None or spec.qk_norm is not None:
        return spec
    return replace(spec, qk_norm=default_qk_norm(spec.attention))


def with_statistics(spec: BackboneSpec, defaults: dict[str, Any]) -> BackboneSpec:
    """Return the backbone with mean and std, by default those of `defaults`, for each of its channels; others than RGB
    each get the average over RGB, as in timm. Raises UsageError for another number of values.
    """
    values: dict[str, Any] = {key: getattr(spec, key) or defaults.get(key) for key in ("mean", "std")}
    for key, value in values.items():
        if value and len(value) not in (1, 3, spec.in_chans):
            count = f"{len(value)} value(s), but images have {spec.in_chans} channel(s)"
            raise UsageError(f"`{key}: {list(value)}`: {count}")
        if value and len(value) != spec.in_chans:
            values[key] = (sum(value) / len(value),) * spec.in_chans
    return replace(spec, **values)


def default_qk_norm(attention: str) -> bool:
    """Return whether query-key norm is on by default: on in arXiv 2309.08586, absent in released softmax models."""
    return attention != "softmax" and not user_code.is_user_part(attention)
