"""From a name to a `BackboneSpec`: plain values that say which model to build and where its weights are.

Imports neither torch nor timm, so that names can be checked before anything heavy is loaded.
"""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from backbones import exports, hub, parts
from backbones.errors import WrongWords, nearest
from backbones.settings import CONFIGS, config_names, read_yaml
from backbones.stems import find_stem
from backbones.timm_names import timm_names

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Arch:
    """Width D, number of blocks and number of heads of a plain ViT; the FFN is 4 D wide."""

    dim: int
    depth: int
    heads: int


ARCHS = {
    "vit_ti": Arch(192, 12, 3),
    "vit_s": Arch(384, 12, 6),
    "vit_b": Arch(768, 12, 12),
    "vit_l": Arch(1024, 24, 16),
    "vit_tiny": Arch(64, 2, 2),  # for tests
}


@dataclass(frozen=True, kw_only=True)
class BackboneSpec:
    """A backbone as plain values. What only our own architectures take is None for all others."""

    name: str
    arch: str
    "one of `ARCHS`, a timm name with or without tag, or `file.py:Name`"
    stem: str | None = None
    attention: str | None = None
    ffn: str | None = None
    patch: int | None = None
    depth: int | None = None
    pool: str | None = None
    "cls; gap: mean over the tokens of a model without class token; mean: over the patch tokens of a model with one"
    pos: str | None = None
    qk_norm: bool | None = None
    gate: bool | None = None
    alpha: float | str | None = None
    "exponent of the token count in point-wise attention, or `learned`"
    length: str | None = None
    "what that token count is: tokens (keys at hand), image (of the whole image), train (at `train_size`)"
    train_size: tuple[int, int] | None = None
    "(H, W) in pixels of the images of pretraining"
    drop_path: float = 0.0
    "stochastic depth of the last block, linear over the blocks; a user's whole model keeps its own"
    mean: tuple[float, float, float] | None = None
    "of images in [0, 1]; None: as timm's configuration of the weights says"
    std: tuple[float, float, float] | None = None
    weights: str = "random"
    "random (as the model initialises itself) | timm | timm:<arch.tag> | hf-hub:<owner/name> | a folder | a file"
    load: str = "strict"
    files: dict[str, str] = field(default_factory=dict)
    "sha256 of the user's file behind each part that is one"

    @property
    def kind(self) -> str:
        """Who builds the model: "ours", "timm" or "user"."""
        if parts.is_user_part(self.arch):
            return "user"
        return "ours" if self.arch in ARCHS else "timm"

    def plain(self) -> dict[str, Any]:
        """JSON-able values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def identity(self) -> dict[str, Any]:
        """What decides the model, to be hashed: users' files by content, stems in canonical form, not the weights."""
        values = self.plain()
        del values["weights"], values["files"]
        if self.stem is not None and self.patch is not None and "stem" not in self.files:
            values["stem"] = str(find_stem(self.stem).sized(self.patch))
        for part, sha in self.files.items():
            values[part] = f"sha256:{sha}:{values[part].rpartition(':')[2]}"
        return values


FIELDS = tuple(f.name for f in fields(BackboneSpec) if f.name not in ("name", "files"))
_USERS = ("arch", "stem", "attention", "ffn")
_DEFAULTS: dict[str, Any] = {
    "stem": "patchify",
    "attention": "softmax",
    "ffn": "mlp",
    "patch": 16,
    "pos": "learned",
    "gate": False,
    "alpha": 1.0,
    "length": "tokens",
    "train_size": (224, 224),
}
_OURS_ONLY = (*_DEFAULTS, "depth", "qk_norm")
_CHOICES = {
    "pool": ("cls", "gap", "mean"),
    "pos": ("learned", "sincos2d"),
    "length": ("tokens", "image", "train"),
    "load": ("strict", "partial"),
}


def backbone_names() -> list[str]:
    """Names of the shipped configurations."""
    return config_names("backbones")


def resolve(name: str, **overrides: Any) -> BackboneSpec:
    """The specification behind a name, with defaults filled in.

    Args:
        name: a file name in configs/backbones, an architecture of ours or of timm (with or without tag), a user's YAML
            file, `file.py:Name` (a whole model), a folder that `backbones.vit.export` wrote, or `hf-hub:<owner/name>`.
        overrides: fields of `BackboneSpec`; None, and "config" for `weights`, leave the field as it is.

    Raises:
        WrongWords: an unknown name, key or value, with the nearest known ones.
    """
    title, values, folder, where = _source(name)
    values, files = _checked(values, where, folder)
    given, given_files = _checked(overrides, f"backbone {title}", None)
    files = {part: sha for part, sha in files.items() if part not in given} | given_files
    if "arch" not in values | given:
        raise WrongWords(f"{where}: `arch` is missing (one of {', '.join(ARCHS)}, a timm name, or file.py:Name)")
    return _filled(BackboneSpec(name=title, files=files, **(values | given)))


def override(spec: BackboneSpec, **overrides: Any) -> BackboneSpec:
    """The same backbone with fields replaced; None, and "config" for `weights`, leave a field as it is."""
    given, files = _checked(overrides, f"backbone {spec.name}", None)
    if "attention" in given and spec.attention and spec.qk_norm == default_qk_norm(spec.attention):
        given.setdefault("qk_norm", None)
    files = {part: sha for part, sha in spec.files.items() if part not in given} | files
    return _filled(replace(spec, **given, files=files))


def _source(name: str) -> tuple[str, dict[str, Any], Path | None, str]:
    """(name of the backbone, its values, folder for relative paths, what to call the place in messages)."""
    path = Path(name.removeprefix("local-dir:"))
    if name in backbone_names():
        file = CONFIGS / "backbones" / f"{name}.yaml"
        return name, _with_weights(read_yaml(file), name), None, str(file)
    if name in ARCHS:
        return name, _with_weights({"arch": name}, name), None, f"backbone {name}"
    if parts.is_user_part(name):
        return name.rpartition(":")[2], {"arch": name}, None, f"backbone {name}"
    if name.startswith("hf-hub:"):
        config = hub.cached(name.removeprefix("hf-hub:"), (exports.CONFIG,))
        return name.rpartition("/")[2], _exported(config.parent) | {"weights": name}, None, str(config)
    if path.suffix in (".yaml", ".yml"):
        return path.stem, _with_weights(read_yaml(path), path.stem), path.resolve().parent, str(path)
    if (path / exports.CONFIG).is_file():
        return path.resolve().name, _exported(path), None, str(path / exports.CONFIG)
    if name.split(".")[0] in timm_names():
        return name, {"arch": name, "weights": "timm"}, None, f"backbone {name}"
    known = [*backbone_names(), *ARCHS, *timm_names()]
    raise WrongWords(
        f"unknown backbone '{name}'{nearest(name, known)} (shipped: {', '.join(backbone_names())}; any timm name; "
        "my.yaml; file.py:Name; hf-hub:<owner/name>; a folder with config.json and model.safetensors)"
    )


def _with_weights(values: dict[str, Any], name: str) -> dict[str, Any]:
    """A configuration that names no weights means those that pretraining exports below the working directory."""
    named = values.get("weights") not in (None, "config")
    return values if named else values | {"weights": f"weights/{name}"}


def _exported(folder: Path) -> dict[str, Any]:
    """The values that an exported folder stands for."""
    config = exports.read_config(folder)
    values: dict[str, Any] = {"arch": config["architecture"], "weights": str(folder)}
    if config["architecture"] in ARCHS:
        arguments = config.get("model_args", {})
        arguments = {"patch" if key == "patch_size" else key: value for key, value in arguments.items()}
        values |= {key: value for key, value in arguments.items() if key in FIELDS}
    return values | exports.statistics(config)


def _checked(values: dict[str, Any], where: str, folder: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that are given, in their proper types, and the sha256 of each user's file among them."""
    checked, files = {}, {}
    for key, value in values.items():
        if key not in FIELDS:
            raise WrongWords(f"{where}: unknown key '{key}'{nearest(key, FIELDS)} (known: {', '.join(FIELDS)})")
        if value is None or (key, value) == ("weights", "config"):
            continue
        try:
            checked[key] = _value(key, value)
            if key in _USERS and parts.is_user_part(value):
                checked[key] = parts.locate(value, folder)
                files[key] = parts.digest(checked[key])
            elif key == "weights" and folder is not None and (folder / value).exists():
                checked[key] = str(folder / value)
        except WrongWords as error:
            raise WrongWords(f"{where}: {error}") from None
        except (TypeError, ValueError):
            raise WrongWords(f"{where}: `{key}: {value}` cannot be read") from None
    return checked, files


def _value(key: str, value: Any) -> Any:
    """One value in its proper type."""
    if key in _CHOICES and value not in _CHOICES[key]:
        raise WrongWords(f"`{key}: {value}` is none of {', '.join(_CHOICES[key])}")
    if key in (*_USERS, "weights"):
        if not isinstance(value, str):
            raise ValueError
        if not parts.is_user_part(value):
            _known(key, value)
        return value
    if key in ("mean", "std"):
        red, green, blue = (_finite(number) for number in value)
        if key == "std" and min(red, green, blue) <= 0:
            raise WrongWords(f"`std: {value}`: must be positive")
        return (red, green, blue)
    if key == "train_size":
        height, width = (value, value) if isinstance(value, int) else value
        return (int(height), int(width))
    if key in ("qk_norm", "gate") and not isinstance(value, bool):
        raise WrongWords(f"`{key}: {value}` is neither true nor false")
    if key == "drop_path" or (key == "alpha" and value != "learned"):
        return _finite(value)
    if key in ("patch", "depth"):
        if isinstance(value, bool) or int(value) != float(value) or int(value) < 1:
            raise ValueError
        return int(value)
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _known(part: str, text: str) -> None:
    if part == "stem":
        find_stem(text)
    elif part == "arch" and text not in ARCHS and text.split(".")[0] not in timm_names():
        raise WrongWords(f"unknown architecture '{text}'{nearest(text, [*ARCHS, *timm_names()])}")
    elif part in ("attention", "ffn"):
        parts.check_name(part, text)


def _filled(spec: BackboneSpec) -> BackboneSpec:
    """Defaults for our own architectures; for all others, proof that nothing was asked that only ours take."""
    if spec.kind != "ours":
        for key in _OURS_ONLY:
            if getattr(spec, key) is not None:
                raise WrongWords(
                    f"backbone {spec.name}: `{key}` does not apply to {spec.arch}; only {', '.join(ARCHS)} take it"
                )
        return spec
    arch = ARCHS[spec.arch]
    values = _DEFAULTS | {"pool": "cls", "depth": arch.depth, **_usual_statistics(spec)}
    spec = replace(spec, **{key: value for key, value in values.items() if getattr(spec, key) is None})
    assert spec.stem
    assert spec.attention
    assert spec.patch
    if "stem" not in spec.files:
        find_stem(spec.stem).layers(arch.dim, spec.patch)
    return spec if spec.qk_norm is not None else replace(spec, qk_norm=default_qk_norm(spec.attention))


def _usual_statistics(spec: BackboneSpec) -> dict[str, Any]:
    """Mean and standard deviation where none are given: those of the weights."""
    if spec.weights.startswith("timm:"):
        return {}  # timm's configuration knows them
    folder = Path(spec.weights)
    exported = (folder / exports.CONFIG).is_file()
    found = exports.statistics(exports.read_config(folder)) if exported else {}
    return {key: found.get(key, usual) for key, usual in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD))}


def default_qk_norm(attention: str) -> bool:
    """On in the experiments of arXiv 2309.08586, absent in the softmax models that weights are released for."""
    return attention != "softmax" and not parts.is_user_part(attention)
