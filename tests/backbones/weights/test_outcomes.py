"""What becomes of files whose tensors are easily misread: the right features, or an error that says what to do."""

import hashlib
import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from backbones.backbone import create
from backbones.weights.load import StoredNetwork, check_gelu, check_values, read_network
from backbones.weights.locate import find_weights
from tests.backbones.support import HALF, IMAGES, below
from tests.backbones.weights.test_layouts import ARCHS, STATE, clip, dinov3, model_of, transformers_vit
from transfer.core.errors import MissingInput, UserError

QUICK = "\ndef quick():\n    return VisionTransformer(**SMALL, act_layer='quick_gelu')\n"
OTHER = dict(model_of("plain", 2).state_dict())
FP8 = {name: t.to(torch.float8_e4m3fn) if t.ndim > 1 else t for name, t in STATE.items()}
SCALES = {f"{name}_scale": torch.ones(1) for name in STATE if name.endswith("qkv.weight")}


def per_tensor(tensor):
    return torch._empty_affine_quantized(tensor.shape, scale=0.01, zero_point=0, dtype=torch.qint8)


def per_channel(tensor):
    scales, zeros = torch.ones(len(tensor)), torch.zeros(len(tensor), dtype=torch.int64)
    made = {"scales": scales, "zero_points": zeros, "axis": 0, "dtype": torch.qint8}
    return torch._empty_per_channel_affine_quantized(tensor.shape, **made)


def with_norm(value):
    return STATE | {"norm.weight": torch.full((64,), 1.0).index_fill(0, torch.tensor([3]), value)}


def mmcv(state, other, prefix=""):
    own = below(prefix, state)
    return own | {f"ema_{name.replace('.', '_')}": tensor for name, tensor in below(prefix, other).items()}


def averaged(**more):
    return {"state_dict": STATE, "ema_state_dict": below("module.", OTHER) | more}


FLOATS = r"norm1\.weight \(int8\).*Dequantize them .multiply by their scales. and save float32"
REJECTED = {
    "int8": ({name: (100 * t).to(torch.int8) if "norm1.weight" in name else t for name, t in STATE.items()}, FLOATS),
    "int64": ({**STATE, "cls_token": torch.ones(1, 1, 64, dtype=torch.int64)}, r"has cls_token \(int64\)"),
    "fp8": (FP8, r"quantized tensors: cls_token \(float8_e4m3fn\).*Dequantize them"),
    "fp8 with scales": (FP8 | SCALES, r"quantized tensors: cls_token \(float8_e4m3fn\)"),
    "qint8": (STATE | {"cls_token": per_tensor(STATE["cls_token"])}, r"quantized tensors: cls_token \(qint8\)"),
    "qint8 of channels": (STATE | {"norm.weight": per_channel(STATE["norm.weight"])}, r"norm\.weight \(qint8\)"),
    "NaN": (with_norm(torch.nan), r"a\.pth: NaN or infinity in norm\.weight\. Use an earlier checkpoint"),
    "infinite": (with_norm(torch.inf), r"NaN or infinity in norm\.weight"),
    "average of unknown origin": (averaged(), r"which network is meant.*state_dict, ema_state_dict; --weights-key"),
    "key without weight": (transformers_vit(STATE), "cannot be read as ViT of transformers.*attn.k.weight"),
}
del REJECTED["key without weight"][0]["vit.encoder.layer.0.attention.attention.key.weight"]


@pytest.mark.parametrize("row", REJECTED)
def test_what_would_be_misread_is_rejected(row, tmp_path):
    content, said = REJECTED[row]
    torch.save(content, tmp_path / "a.pth")
    for load in ("strict", "partial"):
        with pytest.raises(UserError, match=said) as caught:
            create("tiny", weights=str(tmp_path / "a.pth"), img_size=(64, 32), load=load)
        assert "\n" not in str(caught.value)


# the file, the name of the network that is taken, the name of the other one
AVERAGED = {
    "mmcv": ({"state_dict": mmcv(STATE, OTHER)}, "state_dict", "ema"),
    "mmcv below backbone": ({"state_dict": mmcv(STATE, OTHER, "backbone.")}, "state_dict.backbone", "ema.mmcv"),
    "mmcv, tensors alone": (mmcv(STATE, OTHER), "top level", "ema"),
    "mmengine's steps": (averaged(steps=torch.tensor(3)), "state_dict", "ema_state_dict"),
    "mmengine's version": (averaged() | {"meta": {"mmengine_version": "0.10"}}, "state_dict", "ema_state_dict"),
    "torch": (
        {"state_dict": OTHER, "ema_state_dict": below("module.", STATE) | {"n_averaged": torch.tensor(3)}},
        "ema_state_dict",
        "state_dict",
    ),
}


@pytest.mark.parametrize("row", AVERAGED)
def test_the_average_is_taken_wherever_its_project_keeps_it(row, tmp_path):
    content, name, other = AVERAGED[row]
    torch.save(content, tmp_path / "a.pth")
    for key, expected in ((None, STATE), (other, OTHER)):
        network = read_network(tmp_path / "a.pth", None, STATE, weights_key=key)
        assert all(torch.equal(network.state[one], tensor) for one, tensor in expected.items())
        assert not network.state.keys() - STATE.keys()
        assert key or network.name == name


@pytest.mark.parametrize("arch", ["plain", "quick"])
@pytest.mark.parametrize("act", ["gelu", "quick_gelu"])
def test_transformers_files_load_where_the_activation_is_theirs(act, arch, tmp_path):
    (tmp_path / "archs.py").write_text(ARCHS + QUICK)
    config = {"model_type": "vit", "num_attention_heads": 2, "hidden_act": act}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.clone() for name, tensor in transformers_vit(STATE).items()}, tmp_path / "model.safetensors"
    )
    options = {"weights": str(tmp_path), "img_size": (64, 32), "mean": HALF[0], "std": HALF[1]}
    if (act == "quick_gelu") == (arch == "quick"):
        create(f"{tmp_path}/archs.py:{arch}", **options)
    else:
        here, there = ("GELU", "quick GELU") if arch == "plain" else ("quick GELU", "GELU")
        with pytest.raises(UserError, match=f"a network with {there}; .*{arch} has {here}. Use --backbone FILE.py"):
            create(f"{tmp_path}/archs.py:{arch}", **options)


@pytest.mark.parametrize(
    ("more", "file", "config", "quick"),
    [
        ({"input_resolution": torch.tensor(64)}, "a.json", {}, True),
        ({}, "open_clip_config.json", {"model_cfg": {"quick_gelu": True}}, True),
        ({}, "open_clip_config.json", {"model_cfg": {}}, False),
        ({}, "config.json", {"model_type": "clip", "vision_config": {"hidden_act": "quick_gelu"}}, True),
        ({}, "a.json", {}, None),
    ],
)
def test_clip_tells_its_activation(more, file, config, quick, tmp_path):
    (tmp_path / file).write_text(json.dumps(config))
    torch.save(clip(dict(model_of("clip", 1).state_dict())) | more, tmp_path / "a.pth")
    network = read_network(tmp_path / "a.pth", None, model_of("clip", 2).state_dict())
    assert network.quick_gelu is quick


def test_clip_names_timms_architecture():
    exact, quick = (timm.create_model(f"vit_base_patch16_clip_{name}224", depth=1) for name in ("", "quickgelu_"))
    name, other = "vit_base_patch16_clip_224.openai", "vit_base_patch16_clip_quickgelu_224"
    known = [StoredNetwork(state={}, layout="CLIP", quick_gelu=value) for value in (False, True, None)]
    with pytest.raises(UserError, match=f"quick GELU; {name} has GELU. Use --backbone {other}"):
        check_gelu("a", known[1], exact, name)
    with pytest.raises(UserError, match="Use --backbone vit_base_patch16_clip_224"):
        check_gelu("a", known[0], quick, other)
    assert check_gelu("a", known[0], exact, name) == check_gelu("a", known[1], quick, other) == ""
    said = f"GELU, not known to be this file's (for quick GELU: --backbone {other})"
    assert check_gelu("a", known[2], exact, name) == said


def shard(folder, ending="safetensors"):
    """Write two shards and their index; return the file names."""
    files = [f"model-0000{number}-of-00002.{ending}" for number in (1, 2)]
    places = {name: files[index % 2] for index, name in enumerate(STATE)}
    for file in files:
        part = {name: STATE[name].clone() for name in STATE if places[name] == file}
        save_file(part, folder / file) if ending == "safetensors" else torch.save(part, folder / file)
    index = "model.safetensors" if ending == "safetensors" else "pytorch_model.bin"
    (folder / f"{index}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return files


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards_are_loaded_and_identified_together(ending, tmp_path):
    files = shard(tmp_path, ending)
    backbone = create("tiny", weights=str(tmp_path), img_size=(64, 32), mean=HALF[0], std=HALF[1]).eval()
    expected = model_of("plain", 1)(2 * IMAGES - 1)
    torch.testing.assert_close(backbone.pooled(IMAGES), expected, rtol=1e-5, atol=1e-5)
    digests = [hashlib.sha256((tmp_path / file).read_bytes()).hexdigest() for file in files]
    assert backbone.weights_id == f"sha256:{hashlib.sha256(''.join(digests).encode()).hexdigest()}"
    content = bytearray((tmp_path / files[1]).read_bytes())
    content[-1] ^= 1
    (tmp_path / files[1]).write_bytes(content)
    assert find_weights(backbone.spec).weights_id != backbone.weights_id
    (tmp_path / files[1]).unlink()
    with pytest.raises(MissingInput, match=f"index.json: shards are missing: {files[1]}; copy or download"):
        find_weights(backbone.spec)


@pytest.mark.parametrize("places", ["{}", '{"weight_map": {"a": "../b"}}', '{"weight_map": {}}', "[", "[]"])
def test_a_damaged_index_is_named(places, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(places)
    with pytest.raises(UserError, match=r"index\.json: not an index of shards.*copy the folder again"):
        create("tiny", weights=str(tmp_path))


def test_volos_release_names_the_backbone_that_it_fits(tmp_path):
    torch.save(timm.create_model("volo_d1_224").state_dict(), tmp_path / "a.pth")
    with pytest.raises(UserError, match=r"does not fit backbone volo_d1: .*Use --backbone volo_d1_convstem, whose"):
        create("volo_d1", weights=str(tmp_path / "a.pth"))
    create("volo_d1_convstem", weights=str(tmp_path / "a.pth"))


def test_nan_that_no_model_takes_and_own_integers_are_right(tmp_path):
    """DINOv3's releases have NaN as the bias of keys; a model may have counters."""
    (tmp_path / "archs.py").write_text(ARCHS)
    torch.save(dinov3(dict(model_of("dinov3", 1).state_dict())), tmp_path / "a.pth")
    create(f"{tmp_path}/archs.py:dinov3", weights=str(tmp_path / "a.pth"), img_size=(64, 32))
    counter = {"steps": torch.tensor(3)}
    check_values(tmp_path, counter | {"head.bias": torch.tensor([torch.nan])}, counter)
