"""From a specification and located weights to a model, with or without a classifier."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import get_pretrained_cfg
from torch import Tensor, nn

import backbones.vit  # noqa: F401  (registers ours)
from backbones import archs
from backbones.initialisation import make_ours, make_users_model
from backbones.positions import set_resampling
from backbones.spec import IMAGENET_MEAN, IMAGENET_STD, BackboneSpec, sides, with_statistics
from backbones.weights.classifier import Classes, Head
from backbones.weights.fitting import AS_CONFIGURED, OF_EXPORT, Loaded, load_weights, read_weights
from backbones.weights.load import StoredNetwork, check_gelu
from backbones.weights.locate import Located
from transfer.core import exports, live_modules, user_code
from transfer.core.errors import UsageError, UserError
from transfer.core.user_code import or_its_imports

Size = int | tuple[int, int]
Built = tuple[Any, BackboneSpec, Loaded | None, int | None, Head | None]
"""A model, its specification with mean and std, what was taken of the weights, outputs and layer of the classifier."""


def build_model(spec: BackboneSpec, located: Located, img_size: Size | None = None, classes: Classes = None) -> Built:
    """Return the model of a specification with its weights loaded, and what building it found out.

    Raises:
        UsageError: the parts do not fit each other.
        UserError: the weights do not fit, or hold no classifier where a trained one is asked for.
    """
    size = None if img_size is None else sides(img_size)
    released = None
    if spec.kind == "ours":
        model = make_ours(spec, size or (224, 224))
    elif spec.kind == "user":
        model = _create_user_model(spec, size or (224, 224))
    else:
        model, released = _create_timm_model(spec, located, size)
    _check_unchanged(spec)
    beside = spec.kind == "user" and (user_code.is_in_file(spec.arch) or not exports.is_of_timm(model))
    head = Head(model, beside=beside) if classes is not None else None
    names = head.names if head else set()
    network, positions, gelu, loaded = StoredNetwork(state={}), "", "", None
    if released is not None:
        taken = {name: tensor for name, tensor in released.items() if name in {*model.state_dict(), *names}}
        network = StoredNetwork(state=taken)
    elif located.path is not None:
        network, positions = read_weights(model, located, spec, names)
        gelu = check_gelu(located.path, network, model, spec.arch)
    count = _resize_head(head, classes, network.state, spec, located) if head else None
    spec, whose = _with_pixel_statistics(spec, model, located, network)
    if located.path is not None:
        # of a classifier that is fresh, or stands beside the model
        apart = names if head and (head.beside or classes != "trained") else set()
        rest = load_weights(model, network, located, spec, apart)
        facts = (network.layout, network.name, network.others, len(network.left_out))
        dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in network.state.values()}
        rounded = ", ".join(sorted(dtypes & {"float16", "bfloat16"}))
        loaded = Loaded(spec.weights, *facts, positions, whose, *rest, gelu, rounded)
    if head and classes == "trained":
        head.load(network.state)
    return model, spec, loaded, count, head


def _check_unchanged(spec: BackboneSpec) -> None:
    """Raise UserError if a user's file was imported as another than when the specification was resolved."""
    for part, sha in spec.files.items():
        text = getattr(spec, part)
        if user_code.loaded_digest(text) != sha:
            file = text.rpartition(":")[0]
            what = f"the file of {part}{or_its_imports(Path(file))}"
            raise UserError(f"{file}: {what} has changed since this command began; rerun the command")


def _resize_head(head: Head, classes: Classes, state: dict[str, Tensor], spec: BackboneSpec, located: Located) -> int:
    """Give the classifier its size, and values to a fresh one."""
    count = head.classes_in(state) if classes == "trained" else classes
    if not count:
        raise UserError(
            f"backbone {spec.name}: no trained classifier in {located.path or 'random weights'}; set --weights to one: "
            "an export of supervised pretraining, or timm:<arch.tag> of a model that was trained to classify"
        )
    assert isinstance(count, int)
    head.resize(count)
    head.initialise(zeros=spec.init == "bigvision")
    return count


def _with_pixel_statistics(
    spec: BackboneSpec, model: Any, located: Located, network: StoredNetwork
) -> tuple[BackboneSpec, str]:
    """Return a specification with mean and std, its own or else those that the weights were made with or that are usual
    for the architecture; and whose they are.
    """
    released = get_pretrained_cfg(located.timm_name) if located.timm_name else None
    usual = released.to_dict() if released else getattr(model, "pretrained_cfg", {})
    config = exports.read_config(located.folder) if located.folder else {"pretrained_cfg": usual}
    statistics: dict[str, Any] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    if spec.kind == "user":
        statistics = live_modules.pixel_statistics(model)
    statistics |= exports.mean_and_std(config)
    whose = OF_EXPORT
    if network.statistics and not located.folder:
        statistics, whose = dict(zip(("mean", "std"), network.statistics)), f"of {network.layout}"
    elif not located.folder and not released:
        theirs = f"{statistics['mean']}, {statistics['std']} of timm's {usual.get('tag')} weights"
        origin = {"timm": theirs, "ours": "of ImageNet", "user": "of its class"}[spec.kind]
        whose = f"{origin}, not known to be this file's (--mean, --std)"
    if spec.mean and spec.std:
        known = network.statistics or released
        other = known and with_statistics(replace(spec, mean=None, std=None), statistics) != spec
        theirs = network.layout if network.statistics else located.timm_name
        whose = f"{AS_CONFIGURED}, not those of {theirs}" if other else AS_CONFIGURED
    elif spec.mean or spec.std:
        whose += f" but for the configured {'mean' if spec.mean else 'std'}"
    return with_statistics(spec, statistics), whose


def _create_user_model(spec: BackboneSpec, size: tuple[int, int]) -> Any:
    model = make_users_model(spec.arch, spec.in_chans)
    if not hasattr(model, "num_features"):
        training = model.training
        with torch.no_grad():
            features = pooled_features(model.eval(), torch.zeros(1, spec.in_chans, *size))
        check_features(features, spec, size)
        model.num_features = features.shape[1]
        model.train(training)
    return model


def pooled_features(model: Any, x: Tensor) -> Tensor:
    """Return the features [B, D] that a model's own classifier would see.

    A model that has `forward_features` alone, without `forward` or `forward_head`, is pooled by the mean over its
    tokens [B, N, D], or over the places of its map [B, D, h, w].
    """
    if hasattr(model, "forward_features") and hasattr(model, "forward_head"):
        return model.forward_head(model.forward_features(x), pre_logits=True)
    if not hasattr(model, "forward_features") or type(model).forward is not nn.Module.forward:
        return model(x)
    features = model.forward_features(x)
    if isinstance(features, Tensor) and features.ndim in (3, 4):
        features = features.mean(1) if features.ndim == 3 else features.mean((2, 3))
    return features


def check_features(features: Any, spec: BackboneSpec, size: tuple[int, int], dim: int | None = None) -> None:
    """Check what a model gives for one image.

    Args:
        dim: D, if it is known.

    Raises:
        UserError: it is not a tensor of floats [1, D]; the message says what came, from which image size.
    """
    if isinstance(features, Tensor) and features.is_floating_point():
        if features.ndim == 2 and features.shape[0] == 1 and dim in (None, features.shape[1]):
            return
        output = f"a tensor {list(features.shape)}"
    else:
        output = f"a tensor of {features.dtype}" if isinstance(features, Tensor) else f"a {type(features).__name__}"
    wanted = f"floats [1, {'D' if dim is None else dim}]{'' if dim is None else ' as its num_features says'}"
    image = [1, spec.in_chans, *size]
    raise UserError(f"backbone {spec.name}: an image {image} gives {output}; features are wanted, {wanted}")


def _create_timm_model(
    spec: BackboneSpec, located: Located, size: tuple[int, int] | None
) -> tuple[Any, dict[str, Tensor] | None]:
    """Return timm's model without classifier, and its tensors with classifier where timm has loaded them."""
    name, source = spec.arch, {}
    if located.timm_name.split(".")[0] == spec.arch.split(".")[0]:  # with its own conversion of their names
        name = located.timm_name
        source = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(located.path)}}
    elif located.folder is not None:
        architecture = exports.read_config(located.folder)["architecture"]
        if architecture != spec.arch.split(".")[0]:
            raise UserError(f"{located.folder} holds a {architecture}, not backbone {spec.name} ({spec.arch})")
        name = f"local-dir:{located.folder}"
    options = {**source, "in_chans": spec.in_chans, "drop_path_rate": spec.drop_path or None}
    # released weights come at their own size first: timm would bring their positions to another one in its own way
    later = size if source and spec.pos_embed_interp else None
    model = _create_at_size(name, None if later else size, options, spec)
    if spec.pos_embed_interp:
        set_resampling(model, spec.pos_embed_interp)
    if later:
        model.set_input_size(later)
    released = dict(model.state_dict()) if source else None
    try:
        model.reset_classifier(0, archs.POOLS[spec.pool]) if spec.pool else model.reset_classifier(0)
    except (AssertionError, TypeError, ValueError) as error:
        raise UsageError(f"backbone {spec.name}: `pool: {spec.pool}` does not suit {spec.arch} ({error})") from None
    return model, released


def _create_at_size(name: str, size: tuple[int, int] | None, options: dict[str, Any], spec: BackboneSpec) -> Any:
    """Return a model for any image size if possible: timm's families spell that option differently, or need none."""
    sized = {"img_size": size} if size else {}
    refusals = []
    for wish in ({**sized, "dynamic_img_size": True}, {**sized, "strict_img_size": False}, sized, {}):
        try:
            return timm.create_model(name, **options, **wish)
        except TypeError as error:
            refusals.append(str(error))
        except RuntimeError as error:
            raise UserError(f"backbone {spec.name}: {options.get('pretrained_cfg_overlay', name)}: {error}") from error
    fix = "; set --drop-path 0" if "drop_path" in refusals[-1] else ""
    raise UsageError(f"backbone {spec.name}: timm's {spec.arch} cannot be made so: {refusals[-1]}{fix}")
