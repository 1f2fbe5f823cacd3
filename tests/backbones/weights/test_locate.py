"""Finding weights, and getting them into models: of another grid, wholly or in part, with their pixel statistics."""

import hashlib
import os
import pickle
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

import backbones.vit  # noqa: F401
from backbones.backbone import create
from backbones.spec import IMAGENET_MEAN, IMAGENET_STD, resolve
from backbones.weights.export import export
from backbones.weights.fitting import check_partial
from backbones.weights.locate import changed_parts, find_weights
from tests.backbones.support import HALF, IMAGENET, IMAGES, SIZE, hub, tiny
from tests.backbones.weights.test_layouts import ROWS, mae
from transfer.core.errors import UsageError, UserError


def source(seed=1, **options):
    torch.manual_seed(seed)
    return timm.create_model("vit_tiny", **({"num_classes": 0, "img_size": SIZE} | options)).eval()


def features(model, images=IMAGES):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in IMAGENET)
    return model((images - mean) / std)


def check(path: Path | str, model, **options):
    backbone = create("tiny", weights=str(path), img_size=SIZE, **options).eval()
    torch.testing.assert_close(backbone.pooled(IMAGES), features(model))
    return backbone


def test_a_distillation_token_is_dropped_where_that_is_allowed(tmp_path):
    model, file, token = source(), tmp_path / "released.pth", torch.ones(1, 1, 64)
    state = model.state_dict() | {"dist_token": token, "head_dist.weight": torch.zeros(1000, 64)}
    state["pos_embed"] = torch.cat([state["pos_embed"][:, :1], token, state["pos_embed"][:, 1:]], dim=1)
    torch.save({"model": state}, file)
    for options in ({}, {"load": "partial"}):
        with pytest.raises(UserError, match="dist_token"):
            check(file, model, weights_size=SIZE, **options)
    backbone = check(file, model, weights_size=SIZE, load="partial", allow_dropped=True)
    assert backbone.weights_id == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


def test_strict_lists_what_does_not_fit(tmp_path):
    torch.save(source().state_dict() | {"extra": torch.zeros(1)}, tmp_path / "a.pth")
    shape = r"of another shape: patch_embed\.proj\.weight \(64, 3, 16, 16\) for \(64, 64, 8, 8\)"
    said = rf"missing: patch_embed\.conv\.0\.weight.*more.*unexpected: extra.*{shape}.*--load partial"
    with pytest.raises(UserError, match=said):
        create("tiny", stem="conv", weights=str(tmp_path / "a.pth"), img_size=SIZE)


def test_what_the_name_leaves_open_comes_from_the_export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny\nstem: conv\nattention: relu\n")
    before = resolve("mine.yaml")
    parts = {"qk_norm": False, "pool": "mean", "pre_logits": True, "alpha": 0.5, "train_size": (64, 32)}
    parts |= {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    made = tiny(stem="conv", attention="relu", **parts)
    export(made, tmp_path / "weights" / "mine")
    spec = resolve("mine.yaml")
    assert (before.qk_norm, before.pool, before.pre_logits) == (True, "cls", False)
    assert {name: getattr(spec, name) for name in parts} == parts
    backbone = create("mine.yaml", img_size=SIZE).eval()
    torch.testing.assert_close(backbone.pooled(IMAGES), made.pooled(IMAGES))
    assert resolve("mine.yaml", weights="weights/mine/model.safetensors").qk_norm is False
    for weights, expected in (("config", (False, "mean", True, 0.5)), ("random", (True, "cls", False, 1.0))):
        spec = resolve("mine.yaml", load="partial", weights=weights)
        assert (spec.qk_norm, spec.pool, spec.pre_logits, spec.alpha) == expected


@pytest.mark.parametrize("there", [{"attention": "relu", "qk_norm": False}, {"pre_logits": True}, {"ffn": "mlp_tanh"}])
def test_what_is_chosen_must_be_that_of_the_export(there, tmp_path):
    export(tiny(**there), tmp_path / "out")
    key = next(iter(there))
    chosen = {"attention": "softmax", "pre_logits": False, "ffn": "mlp"}[key]
    here = {key: chosen}
    with pytest.raises(UserError, match=f"{key} {there[key]} there, {chosen} here"):
        find_weights(resolve("tiny", weights=str(tmp_path / "out"), **here))
    backbone = create("tiny", weights=str(tmp_path / "out"), img_size=SIZE, load="partial", **here)
    assert getattr(backbone.spec, key) == chosen
    assert backbone.untrained == []


def test_partial_keeps_what_the_export_names_unless_it_is_told_otherwise(tmp_path):
    made = {"stem": "conv", "attention": "relu", "ffn": "mlp", "qk_norm": True, "gate": "silu", "pool": "gap"}
    export(tiny(**made), tmp_path / "out")
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny\nstem: patchify\nattention: softmax\nffn: mlp_tanh\n")
    given = {"weights": str(tmp_path / "out"), "load": "partial"}
    for name in ("tiny", str(tmp_path / "mine.yaml")):
        spec = resolve(name, **given, length="image")
        assert {key: getattr(spec, key) for key in made} == made
        assert spec.length == "image"
        assert changed_parts(spec) == []
        spec = resolve(name, **given, attention="softmax", stem="patchify")
        assert (spec.attention, spec.stem, spec.gate, spec.qk_norm) == ("softmax", "patchify", "silu", True)
        assert changed_parts(spec) == ["stem conv there, patchify here", "attention relu there, softmax here"]
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny\nattention: softmax\nweights: out\nload: partial\n")
    spec = resolve(str(tmp_path / "mine.yaml"))  # who says `partial` says the part as well
    assert (spec.attention, spec.stem) == ("softmax", "conv")


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("made-by-a-pickle",))


@pytest.mark.parametrize("content", ["torn", "pickle", "list", "safetensors"])
def test_damaged_and_dangerous_files(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ("a.safetensors" if content == "safetensors" else "a.pth")
    torch.save([1, 2] if content == "list" else source().state_dict(), file)
    if content in ("torn", "safetensors"):
        file.write_bytes(file.read_bytes()[:-2000])
    elif content == "pickle":
        file.write_bytes(pickle.dumps({"model": Evil()}, protocol=2))
    with pytest.raises(UserError, match=str(file)) as caught:
        create("tiny", weights=str(file))
    assert "weights_only" not in str(caught.value), "torch's advice is to run what the file holds"
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_timms_released_weights_from_the_cache(tmp_path, monkeypatch):
    theirs = timm.create_model("vit_small_patch16_224.dino", depth=1).eval()
    hub(tmp_path, monkeypatch, "timm/vit_small_patch16_224.dino", theirs.state_dict())
    images = torch.rand(1, 3, 224, 224)
    backbone = create("dino_s16", depth=1).eval()
    assert backbone.weights_id == "timm:vit_small_patch16_224.dino"
    torch.testing.assert_close(backbone.pooled(images), features(theirs, images))
    said = "dino: positions 14 x 14 -> 16 x 8; newly initialized: patch_embed; dropped: patch_embed"
    assert str(create("dino_s16", depth=1, img_size=(256, 128), stem="conv", load="partial").loaded).endswith(said)
    assert not str(backbone.loaded)
    with pytest.raises(UserError, match=r"missing: blocks\.1\."):
        create("dino_s16", depth=2)


def test_a_repository_of_the_hub(tmp_path, monkeypatch):
    made = tiny(stem="conv")
    export(made, tmp_path / "out")
    config = (tmp_path / "out" / "config.json").read_text()
    hub(tmp_path / "cache", monkeypatch, "me/mine", made.model.state_dict(), config)
    backbone = create("hf-hub:me/mine", img_size=SIZE).eval()
    torch.testing.assert_close(backbone.pooled(IMAGES), made.pooled(IMAGES))
    assert backbone.spec.name == "mine"
    check("hf-hub:me/mine", made.model, stem="conv")


@pytest.mark.parametrize(
    ("name", "weights", "kind", "said"),
    [
        ("tiny", "randm", UserError, "did you mean 'random'"),
        ("tiny", "weights/tiny", UserError, "pretrain RECIPE --backbone tiny --dataset DATA"),
        ("tiny", "weights/none", UserError, r"at weights/none\. set --weights"),
        ("vit_s", "timm", UsageError, "name the weights, as in timm:"),
        ("tiny", "timm:vit_small_patch16_224.dinoo", UsageError, "did you mean 'vit_small_patch16_224.dino'"),
        ("dino_s16", "config", UserError, "hf download timm/vit_small_patch16_224.dino"),
        ("tiny", "hf-hub:me/mine@v1", UserError, "hf download me/mine --revision v1"),
        ("vit_small_patch16_224", {"weights_key": "a"}, UsageError, "no effect on timm:vit_small"),
    ],
)
def test_weights_that_are_not_there(name, weights, kind, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(kind, match=said):
        find_weights(resolve(name, **(weights if isinstance(weights, dict) else {"weights": weights})))


def timms(size, seed=1, **options):
    """A model of timm's own class, as large as `tiny`; at other sizes timm resamples its positions."""
    torch.manual_seed(seed)
    shape = {"embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 0}
    model = VisionTransformer(img_size=size, dynamic_img_size=True, **shape, **options)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if name.endswith("gamma") else 0.0, 0.3)
    return model.eval()


def dino(state):
    return ROWS["dino"][4](state, {name: tensor + 1 for name, tensor in state.items()})


LAYOUTS = {"plain": lambda state: state, "dino": dino, "mae": lambda state: {"model": mae(state)}}
GRIDS = {
    # pixels there, pixels here, `weights_size`; whether it loads (None: where the project trains on squares)
    "same": ((64, 64), (64, 64), None, True),
    "same, a square number": ((128, 32), (128, 32), None, None),
    "square": ((96, 96), (128, 64), None, None),
    "square, stated": ((96, 96), (128, 64), (96, 96), True),
    "stated": ((128, 64), (64, 64), (128, 64), True),
    "a square number, stated": ((128, 32), (64, 64), (128, 32), True),
    "portrait": ((128, 64), (64, 64), None, False),
    "stated wrongly": ((64, 64), (128, 64), (128, 64), False),
}


@pytest.mark.parametrize("load", ["strict", "partial"])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_features_are_those_of_timms_model_or_the_grid_is_asked_for(layout, grid, load, tmp_path):
    there, here, stated, loads = GRIDS[grid]
    model = timms(there)
    torch.save(LAYOUTS[layout](dict(model.state_dict())), tmp_path / "w.pth")
    options = {"weights": str(tmp_path / "w.pth"), "img_size": here, "load": load, "weights_size": stated}
    # a square number of positions may be a square only where the project trains on squares
    asks = layout == "plain" if grid == "square" else layout != "plain"
    if loads is False or (loads is None and asks):
        square = {"square": r"; a square would be --weights-size 96 96$", "portrait": ""}.get(grid, "")
        with pytest.raises(UserError, match=rf"`pos_embed` has \d+ positions, .*; set --weights-size H W.*{square}"):
            create("tiny", **options, mean=HALF[0], std=HALF[1])
        return
    backbone, images = create("tiny", **options, mean=HALF[0], std=HALF[1]).eval(), torch.rand(2, 3, *here)
    torch.testing.assert_close(backbone.pooled(images), model(2 * images - 1), rtol=1e-5, atol=1e-5)
    taken, square = [f"{size[0] // 16} x {size[1] // 16}" for size in (there, here)], grid == "same, a square number"
    assert (f"positions {' -> '.join(taken)}" in str(backbone.loaded)) == (there != here)
    assert (f"positions {taken[0]} (--weights-size" in str(backbone.loaded)) == square
    assert ("--weights-size" in str(backbone.loaded)) == square


def test_an_export_and_a_yaml_state_their_size(tmp_path):
    model = create("vit_tiny_patch16_224", weights="random", img_size=(64, 256))
    export(model, tmp_path / "out")
    torch.save(model.model.state_dict(), tmp_path / "model.pth")
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=(64, 256))
    theirs.load_state_dict(model.model.state_dict())
    theirs.set_input_size((128, 128))
    loaded = create("vit_tiny_patch16_224", weights=str(tmp_path / "out"), img_size=128).model
    assert torch.equal(loaded.pos_embed, theirs.pos_embed)
    (tmp_path / "config.json").write_text('{"lr": 1}')  # of a training
    (tmp_path / "mine.yaml").write_text("arch: vit_tiny_patch16_224\nweights: model.pth\nweights_size: [64, 256]\n")
    loaded = create(str(tmp_path / "mine.yaml"), img_size=128)
    assert torch.equal(loaded.model.pos_embed, theirs.pos_embed)
    assert loaded.spec.identity() != create(str(tmp_path / "mine.yaml"), img_size=128, weights_size=128).spec.identity()


def without(pattern):
    return lambda state: {name: tensor for name, tensor in state.items() if not re.search(pattern, name)}


def wider(state):
    """Twice as many hidden channels."""
    sides = {"fc1.weight": 0, "fc1.bias": 0, "fc2.weight": 1}
    hidden = {name: side for name in state if (side := sides.get(name.partition("mlp.")[2])) is not None}
    return state | {name: torch.cat([state[name]] * 2, side) for name, side in hidden.items()}


NEW = {
    # of the file's model; of ours; what stays as initialised; what is dropped
    "stem": ({}, {"stem": "conv"}, ["patch_embed"], ["patch_embed"]),
    "attention": ({}, {"attention": "relu"}, ["blocks.*.attn.k_norm (2)", "blocks.*.attn.q_norm (2)"], []),
    "gate": ({}, {"gate": "silu"}, ["blocks.*.attn.gate (2)"], []),
    "ffn": ({}, {"ffn": "conv1d"}, ["blocks.*.mlp (2)"], ["blocks.*.mlp (2)"]),
    "ffn without norm": ({}, {"ffn": "no_norm"}, [], ["blocks.*.norm2 (2)"]),
    "pooling": ({}, {"pool": "gap"}, [], ["cls_token"]),
    "deeper": ({}, {"depth": 4}, ["blocks.* (2)"], []),
    "shallower": ({}, {"depth": 1}, [], ["blocks.*"]),
    "volo": ({"arch": "volo_tiny"}, {"arch": "volo_tiny", "stem": "conv"}, ["patch_embed"], ["patch_embed"]),
}  # fmt: skip


@pytest.mark.parametrize("part", NEW)
def test_partial_puts_a_new_part_on_weights_and_says_what_stays_behind(part, tmp_path):
    there, here, untrained, dropped = NEW[part]
    torch.save(create("tiny", img_size=64, **there).model.state_dict(), tmp_path / "w.pth")
    loaded = create("tiny", weights=str(tmp_path / "w.pth"), img_size=64, load="partial", **here).loaded
    assert (loaded.untrained, loaded.dropped) == (untrained, dropped)
    said = {"newly initialized": untrained, "dropped": dropped}
    assert str(loaded).endswith("; ".join(f"{title}: {', '.join(names)}" for title, names in said.items() if names))


REFUSED = {
    # of the file's model, what happens to its tensors, of ours, what is said, whether `allow_dropped` takes it
    "q/k norm": ({"attention": "relu"}, dict, {}, r"model: blocks.\*.attn.k_norm \(2\), blocks.\*.attn.q_norm", True),
    "no q/k norm": ({"attention": "relu"}, dict, {"attention": "relu", "qk_norm": False}, "model: .*k_norm", True),
    "MAE's fc_norm": (
        {}, lambda s: {n.replace("norm.", "fc_norm.") if n[:4] == "norm" else n: t for n, t in s.items()},
        {"pool": "mean"}, "missing in the file: norm; without a place in the model: fc_norm", True,
    ),
    "stem not named": ({"stem": "conv"}, dict, {}, "missing in the file: patch_embed", True),
    "no positions": ({}, without("pos_embed"), {}, "missing in the file: pos_embed", True),
    "class token alone": ({}, without("^(?!cls)"), {}, "no network that is recognised", False),
    "no blocks": ({}, without("blocks"), {}, "0 of 2 blocks are filled, less than half", False),
    "half of each block": ({}, without("mlp"), {}, r"0 of 2 blocks .* missing: blocks.\*.mlp \(2\)", False),
    "another width of the FFN": ({}, wider, {}, "0 of 2 blocks .*unused: blocks.*mlp", False),
    "too deep": ({}, dict, {"depth": 5}, "2 of 5 blocks are filled, less than half", False),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_partial_refuses_what_would_give_other_features(case, tmp_path):
    there, change, here, said, allowed = REFUSED[case]
    torch.save(change(dict(create("tiny", img_size=64, **there).model.state_dict())), tmp_path / "w.pth")
    options = {"weights": str(tmp_path / "w.pth"), "img_size": 64, "load": "partial", **here}
    with pytest.raises(UserError, match=said):
        create("tiny", **options)
    if not allowed:
        with pytest.raises(UserError, match=said):
            create("tiny", **options, allow_dropped=True)
        return
    loaded = create("tiny", **options, allow_dropped=True).loaded
    assert loaded.untrained + loaded.dropped


def test_partial_refuses_to_drop_the_bias_of_a_weight_that_it_takes():
    taken, bias = {"blocks.0.fc.weight", "patch_embed.proj.weight"}, {"patch_embed.proj.bias"}
    new = ("(?!)", "(?!)")
    check_partial("", taken, set(), {"patch_embed.conv.bias"}, new, allow=False)
    for missing, unused in ((set(), bias), (bias, set())):
        with pytest.raises(UserError, match=r"patch_embed\.proj\.bias"):
            check_partial("", taken, missing, unused, new, allow=False)


STATISTICS = {
    # backbone, options, layout; mean and std, what is said of them
    "of a layout": ("vit_small_patch16_224", {}, dino, IMAGENET, "mean and std of DINO"),
    "of a layout, ours": ("vit_tiny", {}, dino, IMAGENET, "mean and std of DINO"),
    "not known": ("vit_small_patch16_224", {}, dict, HALF, "of timm's augreg_in21k_ft_in1k weights, not known"),
    "not known, ours": ("vit_tiny", {}, dict, IMAGENET, "mean and std of ImageNet, not known to be this file's"),
    "given": ("vit_small_patch16_224", {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}, dict, IMAGENET, ""),
    "given, others": ("vit_tiny", {"mean": HALF[0], "std": HALF[1]}, dino, HALF, "as configured, not those of DINO"),
    "grey": ("tiny", {"in_chans": 1}, dino, ((0.449,), (0.226,)), ""),
    "mean alone": ("vit_tiny", {"mean": HALF[0]}, dino, (HALF[0], IMAGENET_STD), "DINO but for the configured mean"),
}


@pytest.mark.parametrize("case", STATISTICS)
def test_whose_mean_and_std_are_taken(case, tmp_path):
    name, given, layout, expected, said = STATISTICS[case]
    torch.save(layout(dict(create(name, weights="random").model.state_dict())), tmp_path / "w.pth")
    spec = resolve(name, weights=str(tmp_path / "w.pth"), **given)
    assert name == "tiny" or (spec.mean, spec.std) == (given.get("mean"), given.get("std"))  # the file is not read yet
    backbone = create(spec)
    assert (backbone.spec.mean, backbone.spec.std) == tuple(map(pytest.approx, expected))
    assert said in str(backbone.loaded) if said else "mean and" not in str(backbone.loaded)
    assert asdict(backbone.loaded)["statistics"]
