# deploy.py: features that a ReID run ranked, and logits of a linear probe, from the export alone
import json
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file

import backbones.vit  # registers the architectures that timm lacks


def load(export):  # model, head and options of a run; export: its folder
    model = timm.create_model(f"local-dir:{export}", pretrained=True, num_classes=0).eval()
    options = json.loads(Path(export, "export.json").read_text())["options"]
    return model, load_file(Path(export, "head.safetensors")), options


def pixels(model, images):  # PIL images -> [M, 3, H, W]
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    return torch.stack([transform(image.convert("RGB")) for image in images])


@torch.inference_mode()
def ranked_features(export, images):  # of `reid`: [M, D], compared by the cosine
    model, head, options = load(export)
    neck = [head[f"neck.norm.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
    found = pixels(model, images)
    views = [found, found.flip(3)] if options["flip_test"] else [found]
    features = [model(view) for view in views]
    if options["feature"] == "after":
        features = [torch.nn.functional.batch_norm(rows, *neck) for rows in features]
    return torch.nn.functional.normalize(sum(features))


@torch.inference_mode()
def class_logits(export, images):  # of `linear` without --avgpool, for a model with a class token: [M, classes]
    model, head, options = load(export)
    given = {
        "indices": options["n_last_blocks"],
        "norm": True,
        "return_prefix_tokens": True,
        "intermediates_only": True,
    }
    blocks = model.forward_intermediates(pixels(model, images), **given)
    features = torch.cat([prefix[:, 0] for _, prefix in blocks], 1)
    return torch.nn.functional.linear(features, head["head.weight"], head["head.bias"])
