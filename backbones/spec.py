"""From a name to a `BackboneSpec`: plain values that say which model to build and where its weights are.

Imports neither torch nor timm, so that names can be checked before anything heavy is loaded.
"""

import json
import re
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backbones import parts
from backbones.errors import WrongWords, nearest
from backbones.settings import CONFIGS, config_names, read_yaml
from backbones.stems import find_stem

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
    "cls; gap: mean over tokens, no class token; mean: mean over the patch tokens of a model that has a class token"
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
    mean: tuple[float, float, float] | None = None
    "of images in [0, 1]; None: as timm's configuration of the weights says"
    std: tuple[float, float, float] | None = None
    weights: str = "random"
    "random | timm | timm:<arch.tag> | hf-hub:<owner/name> | a folder | a file"
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
        values = asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    def identity(self) -> dict[str, Any]:
        """What decides the model, for hashing: users' files by content, stems in canonical form, without the weights' place."""
        values = self.plain()
        del values["weights"], values["files"]
        if self.stem is not None and "stem" not in self.files:
            assert self.patch is not None
            values["stem"] = str(find_stem(self.stem).sized(self.patch))
        for part, sha in self.files.items():
            values[part] = f"sha256:{sha}:{values[part].rpartition(':')[2]}"
        return values


FIELDS = tuple(f.name for f in fields(BackboneSpec) if f.name not in ("name", "files"))
_OURS_ONLY = ("stem", "attention", "ffn", "patch", "depth", "pos", "qk_norm", "gate", "alpha", "length", "train_size")
_DEFAULTS: dict[str, Any] = {
    "stem": "patchify",
    "attention": "softmax",
    "ffn": "mlp",
    "patch": 16,
    "pool": "cls",
    "pos": "learned",
    "gate": False,
    "alpha": 1.0,
    "length": "tokens",
    "train_size": (224, 224),
}
_CHOICES = {
    "pool": ("cls", "gap", "mean"),
    "pos": ("learned", "sincos2d"),
    "length": ("tokens", "image", "train"),
    "load": ("strict", "partial"),
}


def backbone_names() -> list[str]:
    """Names of the shipped configurations."""
    return config_names("backbones")


@lru_cache
def timm_names() -> tuple[str, ...]:
    """timm's architectures, read from its sources (20 ms; importing timm takes seconds)."""
    package = find_spec("timm")
    assert package is not None and package.origin is not None
    names: set[str] = set()
    for file in sorted((Path(package.origin).parent / "models").glob("*.py")):
        names.update(
            re.findall(r"^@register_model\s*\n(?:@.*\n)*def (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        )
    return tuple(sorted(names))


def resolve(name: str, **overrides: Any) -> BackboneSpec:
    """The specification behind a name, with defaults filled in.

    Args:
        name: a file name in configs/backbones, an architecture of ours or of timm (with or without tag), a user's YAML file,
            `file.py:Name` (a whole model), or a folder that `export` wrote.
        overrides: fields of `BackboneSpec`; None, and "config" for `weights`, leave the field as it is.

    Raises:
        WrongWords: an unknown name, key or value, with the nearest known ones.
    """
    title, values, folder, where = _source(name)
    values = {key: _checked(key, value, where) for key, value in values.items()}
    if "arch" not in values:
        raise WrongWords(
            f"{where}: the key `arch` is missing (one of {', '.join(ARCHS)}, a timm name, or file.py:Name)"
        )
    spec = BackboneSpec(name=title, **_located(values, folder))
    if spec.kind == "timm" and spec.arch.split(".")[0] not in timm_names():
        raise WrongWords(f"{where}: unknown architecture '{spec.arch}'{nearest(spec.arch, [*ARCHS, *timm_names()])}")
    return override(spec, where=where, **overrides)


def override(spec: BackboneSpec, *, where: str = "", **overrides: Any) -> BackboneSpec:
    """The same backbone with fields replaced; None, and "config" for `weights`, leave a field as it is."""
    given = {
        key: value for key, value in overrides.items() if value is not None and (key, value) != ("weights", "config")
    }
    given = _located({key: _checked(key, value, f"backbone {spec.name}") for key, value in given.items()}, None)
    if "attention" in given and "qk_norm" not in given and spec.attention != given["attention"]:
        given["qk_norm"] = None  # its default depends on the attention
    files = {part: sha for part, sha in spec.files.items() if part not in given} | given.pop("files")
    spec = replace(spec, **given, files=files)
    return _filled(spec, where or f"backbone {spec.name}")


def _source(name: str) -> tuple[str, dict[str, Any], Path | None, str]:
    """(name of the backbone, its values, folder for relative paths, what to call the place in messages)."""
    path = Path(name.removeprefix("local-dir:"))
    if name in backbone_names():
        file = CONFIGS / "backbones" / f"{name}.yaml"
        return name, {"weights": f"weights/{name}", **read_yaml(file)}, None, str(file)
    if name in ARCHS:
        return name, {"arch": name, "weights": f"weights/{name}"}, None, f"backbone {name}"
    if parts.is_user_part(name):
        return name.rpartition(":")[2], {"arch": name}, None, f"backbone {name}"
    if path.suffix in (".yaml", ".yml"):
        return path.stem, {"weights": f"weights/{path.stem}", **read_yaml(path)}, path.resolve().parent, str(path)
    if (path / "config.json").is_file():
        return path.resolve().name, _exported(path), None, str(path / "config.json")
    if name.split(".")[0] in timm_names():
        return name, {"arch": name, "weights": "timm"}, None, f"backbone {name}"
    known = [*backbone_names(), *ARCHS, *timm_names()]
    raise WrongWords(
        f"unknown backbone '{name}'{nearest(name, known)} (shipped: {', '.join(backbone_names())}; any timm name; "
        "my.yaml; file.py:Name; a folder with config.json and model.safetensors)"
    )


def _exported(folder: Path) -> dict[str, Any]:
    """The values that timm's config.json in an exported folder stands for."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    values = {"arch": config["architecture"], "weights": str(folder)}
    if config["architecture"] in ARCHS:
        arguments = {
            "patch" if key == "patch_size" else key: value for key, value in config.get("model_args", {}).items()
        }
        values |= {key: value for key, value in arguments.items() if key in FIELDS}
    statistics = config.get("pretrained_cfg", {})
    return values | {key: statistics[key] for key in ("mean", "std") if key in statistics}


def _checked(key: str, value: Any, where: str) -> Any:
    """The value in its proper type."""
    if key not in FIELDS:
        raise WrongWords(f"{where}: unknown key '{key}'{nearest(key, FIELDS)} (known: {', '.join(FIELDS)})")
    wrong = WrongWords(f"{where}: `{key}: {value}` cannot be read")
    if value is None:
        return None
    if key in _CHOICES and value not in _CHOICES[key]:
        raise WrongWords(f"{where}: `{key}: {value}`: one of {', '.join(_CHOICES[key])}")
    try:
        if key in ("mean", "std"):
            red, green, blue = value
            return (float(red), float(green), float(blue))
        if key == "train_size":
            height, width = (value, value) if isinstance(value, int) else value
            return (int(height), int(width))
        if key == "drop_path" or (key == "alpha" and value != "learned"):
            return float(value)
        if key in ("patch", "depth"):
            if isinstance(value, bool) or int(value) != float(value) or int(value) < 1:
                raise wrong
            return int(value)
    except (TypeError, ValueError):
        raise wrong from None
    if key in ("qk_norm", "gate") and not isinstance(value, bool):
        raise WrongWords(f"{where}: `{key}: {value}`: true or false")
    if key in ("arch", "stem", "attention", "ffn", "weights") and not isinstance(value, str):
        raise wrong
    return value


def _located(values: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Users' parts by absolute path, with the sha256 of each in `files`; weights below the YAML's folder if they lie there."""
    values = dict(values)
    files = {}
    for part in ("arch", "stem", "attention", "ffn"):
        if values.get(part) and parts.is_user_part(values[part]):
            values[part] = parts.locate(values[part], folder)
            files[part] = parts.digest(values[part])
    if folder is not None and values.get("weights") and (folder / values["weights"]).exists():
        values["weights"] = str(folder / values["weights"])
    return values | {"files": files}


def _filled(spec: BackboneSpec, where: str) -> BackboneSpec:
    """Defaults for our own architectures; for all others, proof that nothing was asked that only ours take."""
    if spec.kind != "ours":
        for key in _OURS_ONLY:
            if getattr(spec, key) is not None:
                raise WrongWords(f"{where}: `{key}` does not apply to {spec.arch}; only {', '.join(ARCHS)} take it")
        return spec
    missing = {key: value for key, value in _DEFAULTS.items() if getattr(spec, key) is None}
    spec = replace(spec, **missing, depth=spec.depth or ARCHS[spec.arch].depth)
    assert spec.stem and spec.attention and spec.ffn and spec.patch
    if "stem" not in spec.files:
        find_stem(spec.stem).layers(ARCHS[spec.arch].dim, spec.patch)
    for part in ("attention", "ffn"):
        text, known = getattr(spec, part), parts.builtin_names(part)
        if part not in spec.files and text not in known:
            raise WrongWords(
                f"{where}: unknown {part} '{text}'{nearest(text, known)} (known: {', '.join(known)}; or path/to/file.py:Name)"
            )
    if spec.qk_norm is None:
        # on in the experiments of arXiv 2309.08586, absent in the softmax models that weights are released for
        spec = replace(spec, qk_norm=spec.attention != "softmax" and "attention" not in spec.files)
    return replace(spec, mean=spec.mean or IMAGENET_MEAN, std=spec.std or IMAGENET_STD)
