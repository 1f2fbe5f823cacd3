"""Files as public projects write them: the features of the network that the project evaluates, whatever its names.

Each writer follows the source that stands in `backbones/weights/layouts.py` beside the layout's row.
"""

import argparse
import collections
import json
import re

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torchvision.models.vision_transformer import VisionTransformer as Torchvision

from backbones.backbone import create
from backbones.weights.load import read_network
from tests.backbones.support import HALF, IMAGENET, IMAGES, below
from transfer.core.errors import UserError

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
ARCHS = """
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
SMALL = {"img_size": (64, 32), "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 0}
ROPE = {"use_rot_pos_emb": True, "use_abs_pos_emb": False, "rope_type": "dinov3", "rope_rotate_half": True}
def plain(): return VisionTransformer(**SMALL)
def distilled(): return VisionTransformerDistilled(**SMALL)
def scaled(): return VisionTransformer(**SMALL, init_values=1.0)
def registers(): return VisionTransformer(**SMALL, init_values=1.0, reg_tokens=4, no_embed_class=True)
def deit3(): return VisionTransformer(**SMALL, init_values=1.0, no_embed_class=True)
def clip(): return VisionTransformer(**SMALL, pre_norm=True)
def dinov3(): return Eva(**SMALL, **ROPE, init_values=1.0, num_reg_tokens=4, use_fc_norm=False, global_pool="token")
"""


def model_of(arch, seed):
    names: dict = {}
    exec(ARCHS, names)
    model = names[arch]().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        value.data = torch.randn(value.shape, generator=generator) * 0.1 + (value.ndim == 1 and name.endswith("weight"))
    return model


def renamed(state, rules):
    """The state with names by rules, each a pattern and what stands in its place."""
    words = rules.split()
    for pattern, replacement in zip(words[::2], words[1::2], strict=True):
        state = {re.sub(pattern, replacement, name): tensor for name, tensor in state.items()}
    return state


def split(state, joined, parts):
    """The state with each joined query, key and value as three tensors."""
    found = {}
    for name, tensor in state.items():
        names = [name.replace(joined, part) for part in parts] if joined in name else [name]
        found |= dict(zip(names, (part.clone() for part in tensor.chunk(len(names)))))
    return found


def zeros(*names):
    return dict.fromkeys(names, torch.zeros(3))


def dinov2(s):
    first = torch.randn(1, 1, 64)
    s = renamed(s, "^reg_token register_tokens") | zeros("mask_token")
    return s | {"cls_token": s["cls_token"] - first, "pos_embed": torch.cat([first, s["pos_embed"]], 1)}


def dinov3(s):
    s = renamed(s, r"\.gamma_(\d) .ls\1.gamma ^reg_token storage_tokens")
    for block in ("blocks.0.attn.", "blocks.1.attn."):
        query, value = s.pop(f"{block}q_bias"), s.pop(f"{block}v_bias")
        s[f"{block}qkv.bias"] = torch.cat([query, torch.full((64,), torch.nan), value])
        s |= zeros(f"{block}qkv.bias_mask")
    return s | zeros("mask_token", "rope_embed.periods")


def deit3(s):
    return renamed(s, r"ls(\d)\.gamma gamma_\1") | zeros("head.weight")


def mae(s):
    return s | zeros("mask_token", "decoder_pos_embed", "decoder_embed.weight", "decoder_blocks.0.norm1.weight")


def transformers_names(s):
    s = split(s, ".attn.qkv.", [f".attention.attention.{part}." for part in ("query", "key", "value")])
    s = renamed(s, r"attn\.proj\. attention.output.dense. ^patch_embed\.proj embeddings.patch_embeddings.projection")
    s = renamed(s, r"^pos_embed embeddings.position_embeddings ^cls_token embeddings.cls_token ^norm\. layernorm.")
    return renamed(s, r"^dist_token embeddings.distillation_token ^blocks\. encoder.layer.")


def transformers_vit(s, prefix="vit."):
    s = renamed(transformers_names(s), r"\.norm1\. .layernorm_before. \.norm2\. .layernorm_after.")
    s = renamed(s, r"mlp\.fc1 intermediate.dense mlp\.fc2 output.dense")
    return below(prefix, s) | zeros("classifier.weight", "classifier.bias")


def transformers_deit(s):
    return renamed(transformers_vit(s, "deit.") | zeros("distillation_classifier.bias"), "^classifier cls_classifier")


def transformers_dinov2(s):
    return renamed(transformers_names(s), r"ls(\d)\.gamma layer_scale\1.lambda1") | zeros("embeddings.mask_token")


def clip(s):
    s = renamed(s, r"^patch_embed\.proj conv1 ^norm_pre ln_pre ^norm\. ln_post. \.norm(\d) .ln_\1 mlp\.fc1 mlp.c_fc")
    s = renamed(s, r"^blocks transformer.resblocks attn\.qkv\. attn.in_proj_ attn\.proj attn.out_proj")
    s |= {"class_embedding": s.pop("cls_token")[0, 0], "positional_embedding": s.pop("pos_embed")[0]}
    return below("visual.", s | {"proj": torch.zeros(64, 8)}) | zeros("logit_scale", "ln_final.weight")


def transreid(s):
    return below("base.", s | zeros("fc.weight")) | zeros("bottleneck.running_mean", "classifier.weight")


def jpm(s):
    """A global branch of its own in place of the last block, which stays as it began."""
    last = renamed({n: t for n, t in s.items() if n.startswith(("blocks.1.", "norm."))}, r"^blocks\.1\. b1.0.")
    stale = {name: torch.ones_like(t) if name.startswith(("blocks.1.", "norm.")) else t for name, t in s.items()}
    branch = renamed(last, r"^norm\. b1.1.")
    branches = branch | renamed(branch, "^b1 b2") | zeros("classifier_1.weight")
    return below("module.", below("base.", stale) | branches)


def mmpretrain(s):
    s = renamed(s, r"patch_embed\.proj patch_embed.projection ^norm\. ln1. \.norm(\d) .ln\1 ^blocks\. layers.")
    s = renamed(s, r"mlp\.fc1 ffn.layers.0.0 mlp\.fc2 ffn.layers.1")
    return below("backbone.", s) | zeros("head.layers.head.weight")


def chunked(s):
    return renamed(s, r"^blocks\.(\d)\. blocks.0.\1.") | zeros("mask_token")


def beside(first, s, second, r):
    """Two networks in one state dict."""
    return below(first, s) | below(second, r)


# what neither is a tensor nor runs
FACTS = {"rank1": np.float32(0.9), "args": argparse.Namespace(lr=1e-3), "hist": collections.defaultdict(list, a=[1])}
HEAD = zeros("head.mlp.0.weight", "head.last_layer.weight_g")
IBOT = zeros("head.last_layer2.weight_g")
# architecture, what is recognised, the network's name if there are several, statistics, the file for (evaluated, other)
ROWS = {
    "dinov2": ("registers", "DINOv2", "", IMAGENET, lambda s, r: dinov2(s)),
    "dinov2 run": ("scaled", "DINOv2", "teacher", IMAGENET, lambda s, r: {
        "model": beside("student.backbone.", chunked(r), "teacher.backbone.", chunked(s)) | zeros("teacher.dino_head.a")
    }),
    "dinov3": ("dinov3", "DINOv3", "", IMAGENET, lambda s, r: dinov3(s)),
    "dinov3 run": ("dinov3", "DINOv3", "teacher", IMAGENET, lambda s, r: {
        "model": beside("teacher.backbone.", dinov3(s), "gram_teacher.backbone.", dinov3(r))
    }),
    "mae": ("plain", "MAE", "", IMAGENET, lambda s, r: {"model": mae(s), **FACTS}),
    "transformers": ("plain", "ViT of transformers", "", None, lambda s, r: transformers_vit(s)),
    "transformers deit": ("distilled", "ViT of transformers", "", None, lambda s, r: transformers_deit(s)),
    "transformers 2": ("scaled", "DINOv2 of transformers", "", IMAGENET, lambda s, r: transformers_dinov2(s)),
    "open_clip timm": ("plain", "open_clip", "", None, lambda s, r: {
        "state_dict": below("module.visual.trunk.", s) | zeros("module.logit_scale", "module.visual.head.proj.weight")
    }),
    "open_clip": ("clip", "CLIP", "", CLIP, lambda s, r: {"state_dict": below("module.", clip(s))}),
    "transreid": ("plain", "TransReID", "", HALF, lambda s, r: transreid(s)),
    "transreid jpm": ("plain", "TransReID", "", HALF, lambda s, r: jpm(s)),
    "deit3": ("deit3", "DeiT III", "", IMAGENET, lambda s, r: {"model": deit3(s)}),
    "moco3": ("plain", "MoCo v3", "base_encoder", IMAGENET, lambda s, r: {"state_dict": beside(
        "module.base_encoder.", s | zeros("head.0.weight"), "module.momentum_encoder.", r | zeros("head.0.weight")
    ) | zeros("module.predictor.0.weight")}),
    "ibot": ("plain", "iBOT", "teacher", IMAGENET, lambda s, r: {
        "student": below("module.backbone.", r | zeros("masked_embed")), "teacher": below("backbone.", s) | IBOT
    }),
    "lightly dino": ("plain", "lightly", "backbone", IMAGENET, lambda s, r: {
        "state_dict": beside("student_backbone.vit.", r, "backbone.vit.", s) | zeros("projection_head.last_layer.a")
    }),
    "mmpretrain": ("plain", "mmpretrain", "state_dict", None, lambda s, r: {
        "state_dict": mmpretrain(s), "ema_state_dict": below("module.", mmpretrain(r)), "message_hub": FACTS
    }),
    "solo-learn": ("plain", "", "backbone", None, lambda s, r: {
        "state_dict": beside("backbone.", s, "momentum_backbone.", r) | zeros("classifier.weight", "projector.0.weight")
    }),
    "vissl": ("plain", "", "", None, lambda s, r: {"classy_state_dict": {"base_model": {"model": {
        "trunk": s, "heads": zeros("0.clf.weight")
    }}}}),
    "deepspeed": ("plain", "", "", None, lambda s, r: {"module": s, "param_shapes": [{"a": torch.Size([3])}]}),
    "dino": ("plain", "DINO", "teacher", IMAGENET, lambda s, r: {
        "student": below("module.backbone.", r), "teacher": below("backbone.", s) | HEAD, "optimizer": {}, **FACTS
    }),
    "timm train": ("plain", "", "state_dict_ema", None, lambda s, r: {"state_dict": r, "state_dict_ema": s, **FACTS}),
    "deit run": ("plain", "", "model_ema", None, lambda s, r: {"model": r, "model_ema": below("module.", s), **FACTS}),
    "lightning": ("plain", "", "teacher", None, lambda s, r: {
        "state_dict": beside("model.teacher.backbone._orig_mod.", s, "model.student.backbone._orig_mod.", r)
    }),
    "fast-reid": ("plain", "", "", None, lambda s, r: {"model": below("backbone.", s) | zeros("heads.weight")}),
    "checkpointed": ("plain", "", "", None, lambda s, r: renamed(s, r"(s\.\d) \1._checkpoint_wrapped_module")),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_each_layout_gives_the_features_of_the_network_that_is_evaluated(row, tmp_path):
    arch, layout, name, statistics, write = ROWS[row]
    (tmp_path / "archs.py").write_text(ARCHS)
    source, other = model_of(arch, 1), model_of(arch, 2)
    torch.save(write(dict(source.state_dict()), dict(other.state_dict())), tmp_path / "a.pth")
    options = {"weights": str(tmp_path / "a.pth"), "img_size": (64, 32), "mean": HALF[0], "std": HALF[1]}
    for load in ("strict", "partial"):
        backbone = create(f"{tmp_path}/archs.py:{arch}", load=load, **options).eval()
        torch.testing.assert_close(backbone.pooled(IMAGES), source(2 * IMAGES - 1), rtol=1e-5, atol=1e-5)
        assert backbone.untrained == []
    network = read_network(tmp_path / "a.pth", None, source.state_dict())
    assert (network.layout, network.name, network.statistics) == (layout, name, statistics)
    if network.others:
        options["weights_key"] = network.others[0]
        backbone = create(f"{tmp_path}/archs.py:{arch}", **options).eval()
        torch.testing.assert_close(backbone.pooled(IMAGES), other(2 * IMAGES - 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arch", ["small_patch16_dinov3", "small_patch16_rope_224", "base_patch16_rope_ape_224"])
def test_names_that_are_the_models_own_stay(arch, tmp_path):
    """timm's EVA has `gamma_1`, as DeiT III."""
    state = timm.create_model(f"vit_{arch}", depth=2).state_dict()
    torch.save({"model": state}, tmp_path / "a.pth")
    network = read_network(tmp_path / "a.pth", None, state)
    assert (network.layout, network.state.keys()) == ("", state.keys())


def test_dinov3_of_satellite_images(tmp_path):
    """timm's configuration of the tag says mean and std."""
    state = zeros("storage_tokens", "local_cls_norm.weight", "blocks.0.ls1.gamma", "blocks.23.ls1.gamma")
    torch.save({"patch_embed.proj.weight": torch.zeros(1, 3, 1, 1)} | state, tmp_path / "a.pth")
    told = timm.get_pretrained_cfg("vit_large_patch16_dinov3.sat493m")
    assert read_network(tmp_path / "a.pth", None, ["w"]).statistics == (told.mean, told.std)


def test_torchvisions_own_class(tmp_path):
    model = Torchvision(64, 16, 2, 2, 64, 256, num_classes=10).eval()
    torch.save(model.state_dict(), tmp_path / "a.pth")
    model.heads, images = torch.nn.Identity(), torch.rand(2, 3, 64, 64)
    backbone = create("tiny", weights=str(tmp_path / "a.pth"), img_size=64, mean=HALF[0], std=HALF[1]).eval()
    torch.testing.assert_close(backbone.pooled(images), model(2 * images - 1), rtol=1e-5, atol=1e-5)
    assert create("tiny", weights=str(tmp_path / "a.pth"), img_size=64, classes="trained").classes == 10


@pytest.mark.parametrize("newer", [False, True])
def test_big_vision_as_timm_reads_it(newer, tmp_path):
    """Names and shapes of google-research/big_vision models/vit.py; timm's `load_pretrained` says the features."""
    draw, name = np.random.default_rng(0), "Transformer/encoderblock_{}/MultiHeadDotProductAttention_0/{}"
    shapes = {"embedding/kernel": (16, 16, 3, 64), "embedding/bias": (64,), "pos_embedding": (1, 16, 64)}
    shapes |= {"cls": (1, 1, 64)} if newer else {}
    shapes |= {f"Transformer/encoder_norm/{part}": (64,) for part in ("scale", "bias")}
    for i in (0, 1):
        shapes |= {name.format(i, f"{part}/kernel"): (64, 2, 32) for part in ("query", "key", "value")}
        shapes |= {name.format(i, f"{part}/bias"): (2, 32) for part in ("query", "key", "value")}
        shapes |= {name.format(i, "out/kernel"): (2, 32, 64), name.format(i, "out/bias"): (64,)}
        block = f"Transformer/encoderblock_{i}/"
        shapes |= {f"{block}LayerNorm_{j}/{part}": (64,) for j in (0, 1) for part in ("scale", "bias")}
        shapes |= {f"{block}MlpBlock_0/Dense_0/kernel": (64, 256), f"{block}MlpBlock_0/Dense_0/bias": (256,)}
        shapes |= {f"{block}MlpBlock_0/Dense_1/kernel": (256, 64), f"{block}MlpBlock_0/Dense_1/bias": (64,)}
    arrays = {f"params/{name}": draw.normal(0, 0.1, shape).astype("f4") for name, shape in shapes.items()}
    if newer:  # a scan over the blocks
        second = {name: arrays.pop(name.replace("_0/", "_1/", 1)) for name in [*arrays] if "encoderblock_0" in name}
        arrays |= {n.replace("block_0", "block", 1): np.stack([arrays.pop(n), part]) for n, part in second.items()}
    np.savez(tmp_path / "a.npz", **arrays, **{n.replace("params", "opt/mu"): 0 * part for n, part in arrays.items()})
    options = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 0, "fc_norm": False}
    pool = {"class_token": newer, "no_embed_class": True, "global_pool": "token" if newer else "avg"}
    model = VisionTransformer(**options, **pool).eval()
    model.load_pretrained(str(tmp_path / "a.npz"))
    ours = {"pool": "cls" if newer else "gap", "cls_pos_embed": False, "mean": HALF[0], "std": HALF[1]}
    backbone = create("tiny", weights=str(tmp_path / "a.npz"), img_size=64, **ours).eval()
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(backbone.pooled(images), model(2 * images - 1), rtol=1e-5, atol=1e-5)
    assert read_network(tmp_path / "a.npz", None, model.state_dict()).statistics == HALF


def test_a_folder_of_transformers_tells_heads_and_statistics(tmp_path):
    state = transformers_vit(dict(STATE))
    save_file({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "model.safetensors")
    config = {"model_type": "vit", "num_attention_heads": 2, "architectures": ["ViTModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": HALF[0], "image_std": HALF[1]}))
    (tmp_path / "archs.py").write_text(ARCHS)
    options = {"weights": str(tmp_path), "img_size": (64, 32)}
    backbone = create(f"{tmp_path}/archs.py:plain", **options).eval()
    torch.testing.assert_close(backbone.pooled(IMAGES), model_of("plain", 1)(2 * IMAGES - 1), rtol=1e-5, atol=1e-5)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 4}))
    with pytest.raises(UserError, match="with 4 heads; tiny has 2"):
        create("tiny", **options)
    with pytest.raises(UserError, match="set --backbone and --weights"):
        create(str(tmp_path))


STATE = dict(model_of("plain", 1).state_dict())
MOMENTUM = beside("backbone.", STATE, "momentum_backbone.", STATE) | zeros("momentum_head.last_layer.weight_v")
SCRIPT = torch.jit.script(torch.nn.Linear(2, 2)).save_to_buffer()


@pytest.mark.parametrize(
    ("content", "key", "said"),
    [
        ({"a": STATE, "b": STATE}, None, "which network is meant.*its networks: a, b.*--weights-key"),
        (MOMENTUM, None, "which network is meant.*networks: backbone, momentum_backbone"),
        ({"cls_token": STATE["cls_token"]} | STATE | below("module.", STATE), None, "its networks: top level, module"),
        ({"teacher": STATE, "student": STATE}, "techer", "no network techer; its networks: teacher, student"),
        ({"encoder": zeros("a.0.w", "a.1.w"), "epoch": 3}, None, r"holds encoder, epoch; tensors such as encoder.a.0"),
        (renamed(STATE, "blocks.0 blocks.0._orig_mod") | STATE, None, "two tensors would be `blocks.0"),
        ({"model": STATE} | below("model.", STATE), None, "two tensors would be `model.cls_token"),
        (zeros("vision_model.embeddings.class_embedding"), None, "no network that is recognised"),
        (b"", None, "is empty"),
        (b"<!DOCTYPE html>", None, "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1", None, "git lfs pull"),
        pytest.param(SCRIPT, None, r"TorchScript.*torch.save\(model.state_dict", id="script"),
        (model_of("plain", 1), None, r"whole object.*torch.save\(model.state_dict"),
        ({"model": model_of("plain", 1), "epoch": 1}, None, r"no tensors.*torch.save\(model.state_dict"),
    ],
)  # fmt: skip
def test_what_is_not_told_is_named(content, key, said, tmp_path):
    (tmp_path / "a.pth").write_bytes(content) if isinstance(content, bytes) else torch.save(content, tmp_path / "a.pth")
    with pytest.raises(UserError, match=said):
        read_network(tmp_path / "a.pth", None, STATE, weights_key=key)


@pytest.mark.parametrize("key", ["mine", "mine.net", "state_dict.mine.net"])
def test_a_key_takes_any_prefix(key, tmp_path):
    torch.save({"state_dict": below("mine.net.", STATE) | below("yours.net.", STATE)}, tmp_path / "a.pth")
    network = read_network(tmp_path / "a.pth", None, STATE, weights_key=key)
    assert network.name == "mine"
    assert network.others == ("yours",)
    with pytest.raises(UserError, match=r"its mine \(--weights-key: yours\), does not fit"):
        create("tiny", weights=str(tmp_path / "a.pth"), weights_key=key, img_size=(64, 32), depth=3)
    assert read_network(tmp_path / "a.pth", None, ["w"], weights_key="mine.net.blocks.0").state.keys() >= {"norm1.bias"}


def test_a_network_around_another_is_that_without_it(tmp_path):
    torch.save(STATE | below("ema.", STATE), tmp_path / "a.pth")
    assert read_network(tmp_path / "a.pth", None, STATE).name == "ema"
    assert read_network(tmp_path / "a.pth", None, STATE, weights_key="top level").state.keys() == STATE.keys()


@pytest.mark.parametrize("way", ["old", "safetensors", "safetensors, length as <", "named so", "half", "bfloat16"])
def test_files_are_told_by_what_they_hold(way, tmp_path):
    file = tmp_path / ("a.safetensors" if way == "named so" else "a.pth")
    state = {name: tensor.to(getattr(torch, way, torch.float32)) for name, tensor in STATE.items()}
    if way.startswith("safetensors"):
        save_file(state, file)
        length = int.from_bytes((written := file.read_bytes())[:8], "little")
        longer = length + (ord("<") - length) % 256 * ("<" in way)  # the header's length, as a web page begins
        file.write_bytes(longer.to_bytes(8, "little") + written[8 : 8 + length].ljust(longer) + written[8 + length :])
    else:
        torch.save({"model": state, **FACTS}, file, _use_new_zipfile_serialization=way != "old")
    read = read_network(file, None, STATE).state
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
