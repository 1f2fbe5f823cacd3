"""Exported folders, classifiers on backbones, and other than three channels."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor

import backbones.vit  # noqa: F401
from backbones.backbone import create
from backbones.build import build_model
from backbones.flops import flops
from backbones.spec import IMAGENET_MEAN, resolve
from backbones.weights.export import export
from backbones.weights.locate import changed_parts, find_weights
from tests.backbones.support import IMAGES, SIZE, hub, tiny, trained, users_file
from transfer.core.errors import UsageError, UserError
from transfer.core.exports import HEAD, PRETRAIN, WEIGHTS, image_size, read_config

FILES = ["README.md", "config.json", "model.safetensors", "pretrain.json"]
PLAIN = ({}, {"pool": "gap"}, {"pool": "mean"}, {"cls_pos_embed": False}, {"pos": "sincos2d", "patch": 8, "depth": 3})
"""Backbones that timm builds by itself."""
OURS = ({"stem": "conv"}, {"attention": "relu"}, {"gate": "sigmoid"}, {"qk_norm": True}, {"pre_logits": True})
"""Backbones that need our import, one for each part."""


PROGRAM = """
import sys, timm, torch
for number in range(int(sys.argv[2])):
    images, features = torch.load(f"{sys.argv[1]}/{number}.pt")
    try:
        model = timm.create_model(f"local-dir:{sys.argv[1]}/{number}", pretrained=True).eval()
    except RuntimeError as error:
        print(error)
        continue
    assert "backbones" not in sys.modules
    print((model.forward_head(model.forward_features(images), pre_logits=True) - features).abs().max().item())
"""


def test_timm_alone_rebuilds_what_it_has_and_refuses_the_rest(tmp_path):
    for number, fields in enumerate([*PLAIN, *OURS]):
        backbone = tiny(**fields)
        trained(backbone.model)
        export(backbone, tmp_path / str(number))
        torch.save((backbone.normalised(IMAGES), backbone.pooled(IMAGES).detach()), tmp_path / f"{number}.pt")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(len(PLAIN) + len(OURS))]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.splitlines()
    assert [float(difference) for difference in found[: len(PLAIN)]] == [0.0] * len(PLAIN)
    assert all("Unknown model" in line for line in found[len(PLAIN) :])


CLASSES = ["Katzen (Süd)", *"abcd"]
EXPORTED = [
    ("tiny", {"stem": "conv", "attention": "relu", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}),
    ("tiny", {"in_chans": 1}),
    ("tiny", {"in_chans": 5}),
    ("resnet18", {"in_chans": 4}),
    ("volo_tiny", {"stem": "conv"}),
    ("volo_tiny", {"ffn": "conv1d_bn", "stem": "1Proj+1ReLU", "patch": 4}),
]


@pytest.mark.parametrize(("name", "options"), EXPORTED)
def test_a_backbone_is_its_own_export(name, options, tmp_path):
    """With its classifier and without, here and in timm."""
    backbone = create(name, weights="random", img_size=SIZE, classes=5, **options).eval()
    trained(backbone.model)
    folder = export(backbone, tmp_path / "out", {PRETRAIN: {"epochs": 3, "classes": CLASSES}})
    images = torch.rand(2, backbone.spec.in_chans, *SIZE)
    again = create(str(folder), img_size=SIZE, classes="trained").eval()
    assert (again.classes, again.untrained, again.fingerprint) == (5, [], backbone.fingerprint)
    parts = ("ffn", "mean", "std", "in_chans")
    assert [getattr(again.spec, part) for part in parts] == [getattr(backbone.spec, part) for part in parts]
    assert torch.equal(again.logits(images), backbone.logits(images))
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(theirs(backbone.normalised(images)), backbone.logits(images))
    config = theirs.pretrained_cfg
    assert config["label_names"] == CLASSES
    assert "a classifier of 5 classes" in (folder / "README.md").read_text()
    assert (tuple(config["mean"]), config["input_size"][0]) == (backbone.spec.mean, backbone.spec.in_chans)
    without = create(name, weights=str(folder), img_size=SIZE, **options).eval()
    assert (without.classes, without.model.num_classes) == (None, 0)
    fresh = create(name, weights=str(folder), img_size=SIZE, classes=5, **options).eval()
    assert fresh.untrained == []
    assert not torch.equal(fresh.logits(images), backbone.logits(images))
    assert torch.equal(without.pooled(images), backbone.pooled(images))
    assert json.loads((folder / PRETRAIN).read_text())["epochs"] == 3
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert name == "resnet18" or image_size(read_config(folder)) == SIZE


def test_a_failed_export_leaves_the_one_before(tmp_path):
    backbone = tiny()
    export(backbone, tmp_path / "out")
    with pytest.raises(TypeError):
        export(backbone, tmp_path / "out", {"pretrain.json": {"not": object()}})
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == FILES[:3]


@pytest.mark.parametrize("name", [WEIGHTS, HEAD])
def test_a_flipped_bit_is_refused_by_name_unless_it_is_allowed(tmp_path: Path, name: str) -> None:
    folder = export(create("tiny"), tmp_path / "out", {PRETRAIN: {"run": "a"}}, head={"bias": torch.ones(3)})
    whole = create("tiny", weights=str(folder))
    content = bytearray((folder / name).read_bytes())
    content[-5] ^= 1  # a tensor's value: neither the header nor the shapes tell
    (folder / name).write_bytes(content)
    for weights in (folder, folder / WEIGHTS):
        with pytest.raises(UserError, match=rf"{name}: not the file that was exported.*--allow-modified"):
            create("tiny", weights=str(weights))
    allowed = create(replace(resolve("tiny", weights=str(folder)), allow_modified=True))
    assert (allowed.weights_id == whole.weights_id) == (name == HEAD)
    assert "allow_modified" not in allowed.spec.as_dict()


def test_weights_that_are_replaced_after_they_were_found(tmp_path: Path) -> None:
    first, second = (export(create("tiny"), tmp_path / str(number)) for number in range(2))
    spec = resolve("tiny", weights=str(first))
    located = find_weights(spec)
    (second / WEIGHTS).replace(first / WEIGHTS)
    with pytest.raises(UserError, match=r"model\.safetensors: modified while the command was running"):
        build_model(spec, located)


def test_a_stem_that_is_edited_after_its_weights_were_trained(tmp_path: Path) -> None:
    file = users_file(tmp_path)
    spec = resolve("tiny", stem=f"{file}:Tanh")
    folder = export(create(spec), tmp_path / "out", {PRETRAIN: {"run": "a"}})
    create("tiny", stem=f"{file}:Tanh", weights=str(folder))
    file.write_text(file.read_text().replace("nn.Tanh()", "nn.ReLU()"))
    with pytest.raises(UserError, match=r"mine\.py: the file of stem has changed since this command began"):
        create(spec)
    create("tiny", weights=str(folder))  # by the copy
    (text,) = changed_parts(resolve("tiny", stem=f"{file}:Tanh", weights=str(folder), load="partial"))
    assert text.startswith("the file of stem has changed since they were trained (")


@pytest.mark.parametrize("whole", [False, True], ids=["parts", "model"])
def test_an_export_names_its_copies_of_the_users_files(whole: bool, tmp_path: Path) -> None:
    """It can be moved, and loads when the files are gone, in timm too."""
    places = []
    for name in ("a", "b"):  # two files of one name
        (tmp_path / name).mkdir()
        places.append(users_file(tmp_path / name))
        places[-1].write_text(places[-1].read_text() + f"# {name}\n")
    parts = {} if whole else {"stem": f"{places[0]}:Tanh", "ffn": f"{places[1]}:Wide"}
    spec = resolve(f"{places[0]}:Net" if whole else "tiny", weights="random", **parts)
    made = create(spec)
    folder = export(made, tmp_path / "out", {PRETRAIN: {"run": "a", "options": parts}}).rename(tmp_path / "moved")
    image = torch.rand(1, 3, 64, 64)
    expected = made.eval()(image)
    for place in places:
        place.unlink()
    assert all(str(tmp_path) not in (folder / name).read_text() for name in ("config.json", PRETRAIN))
    for name, weights in ((str(folder), {}), *([] if whole else [("tiny", {"weights": str(folder)})])):
        model = create(name, **weights)
        assert model.untrained == []
        assert model.spec.files == spec.files
        assert torch.equal(model.eval()(image), expected)
    inside = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval()
    assert torch.equal(inside(made.normalised(image)), expected)


def test_an_export_cannot_have_code_run_that_the_user_has_not_named(tmp_path: Path) -> None:
    mine = users_file(tmp_path)
    folder = export(create("tiny", stem=f"{mine}:Tanh"), tmp_path / "out", {PRETRAIN: {"run": "a"}})
    copy = folder / "mine.py"
    copy.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + copy.read_text())
    refused = pytest.raises(UsageError, match=rf"code runs only if you name it; read it, then use --stem {copy}:Tanh")
    for name, given in ((str(folder), {}), ("tiny", {"weights": str(folder)})):
        with refused:
            create(name, **given)
    with refused:
        timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert not (tmp_path / "ran").exists()
    timm.create_model(f"local-dir:{folder}", pretrained=True, stem=f"{copy}:Tanh")
    assert (tmp_path / "ran").exists()
    assert 'stem="FOLDER/mine.py:Tanh")' in (folder / "README.md").read_text()


def test_weights_trained_from_scratch_have_no_tag_of_a_release(tmp_path: Path) -> None:
    folder = export(create("vit_tiny_patch16_224", weights="random"), tmp_path / "out")
    assert timm.create_model(f"local-dir:{folder}").pretrained_cfg.get("tag") is None
    assert "augreg" not in (folder / "config.json").read_text()


def test_a_fresh_classifier_changes_nothing_else():
    plain, headed = tiny(), tiny(classes=1000)
    assert plain.classes is None
    torch.testing.assert_close(headed.pooled(IMAGES), plain.pooled(IMAGES), atol=0, rtol=0)
    assert flops(headed, SIZE) == flops(plain, SIZE)
    assert 0.019 < headed.model.head.weight.std() < 0.021
    assert not headed.model.head.bias.any()
    with pytest.raises(UserError, match="tiny has no classifier; create"):
        plain.logits(IMAGES)


@pytest.mark.parametrize("load", ["strict", "partial"])
def test_weights_without_one(load, tmp_path):
    with pytest.raises(UserError, match="tiny: no trained classifier in random weights"):
        tiny(classes="trained")
    export(tiny(), tmp_path / "out")
    with pytest.raises(UserError, match=r"no trained classifier in .*model\.safetensors; set --weights"):
        tiny(classes="trained", weights=str(tmp_path / "out"), load=load)


def test_the_classifier_of_timms_released_weights(tmp_path, monkeypatch):
    theirs = timm.create_model("resnet18.a1_in1k").eval()
    hub(tmp_path, monkeypatch, "timm/resnet18.a1_in1k", theirs.state_dict())
    images = torch.rand(1, 3, 64, 64)
    trained = create("resnet18.a1_in1k", classes="trained").eval()
    assert (trained.classes, trained.weights_id) == (1000, "timm:resnet18.a1_in1k")
    torch.testing.assert_close(trained.logits(images), theirs((images - trained.mean) / trained.std))
    fresh = create("resnet18.a1_in1k", classes=1000).eval()
    torch.testing.assert_close(fresh.pooled(images), trained.pooled(images))
    assert not torch.equal(fresh.model.fc.weight, theirs.fc.weight)


@pytest.mark.parametrize("made", ["Net", "resnet"])
def test_beside_a_users_whole_model(made, tmp_path):
    name, weights = f"{users_file(tmp_path)}:{made}", str(tmp_path / "out")
    backbone = create(name, img_size=SIZE, classes=4, weights="random").eval()
    expected = backbone.pooled(IMAGES) @ backbone.head.weight.T + backbone.head.bias
    torch.testing.assert_close(backbone.logits(IMAGES), expected)
    assert backbone.layer_of("head.weight") == backbone.depth + 1
    assert "head.weight" in dict(backbone.named_parameters())
    export(backbone, tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors")["_classifier.weight"].shape == (4, backbone.dim)
    again = create(name, weights=weights, img_size=SIZE, classes="trained").eval()
    assert (again.classes, again.fingerprint) == (4, backbone.fingerprint)
    assert torch.equal(again.logits(IMAGES), backbone.logits(IMAGES))
    without = create(name, weights=weights, img_size=SIZE).eval()
    assert without.head is None
    assert torch.equal(without.pooled(IMAGES), backbone.pooled(IMAGES))
    fresh = create(name, weights=weights, img_size=SIZE, classes=4)
    assert not torch.equal(fresh.head.weight, backbone.head.weight)
    with pytest.raises(UserError, match="no trained classifier"):
        create(name, img_size=SIZE, classes="trained", weights="random")


SIDE = 32
GREY = {"mean": (0.5,), "std": (0.5,)}


def images(channels: int) -> Tensor:
    return torch.rand(2, channels, SIDE, SIDE, generator=torch.Generator().manual_seed(channels))


def saved(folder: Path, name: str, **options: object) -> Path:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, img_size=SIDE, **options)
    torch.save(model.state_dict(), folder / "weights.pth")
    return folder / "weights.pth"


@pytest.mark.parametrize("channels", [1, 2, 4, 5])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_ti"])
def test_weights_of_rgb_are_adapted_as_by_timm(name: str, channels: int, tmp_path: Path) -> None:
    file, x = saved(tmp_path, "vit_tiny_patch16_224"), images(channels)
    overlay = {"file": str(file), "num_classes": 0}
    size = {"img_size": SIDE, "in_chans": channels}
    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=True, pretrained_cfg_overlay=overlay, **size).eval()
    ours = create(name, weights=str(file), **size, **GREY).eval()
    torch.testing.assert_close(ours.pooled(x), theirs(2 * x - 1))
    file = saved(tmp_path, "vit_tiny_patch16_224", in_chans=channels)
    with pytest.raises(UserError, match=f"`--in-chans {channels}` gives"):
        create(name, weights=str(file), img_size=SIDE)


@pytest.mark.parametrize("stem", ["patchify", "conv", "proj_bn_relu"])
def test_a_stem_sees_the_sum_over_rgb(stem: str, tmp_path: Path) -> None:
    """A grey image gives what it gives as RGB; of four channels the last is added to the first, all times 3/4."""
    file = saved(tmp_path, "vit_tiny", stem=stem)
    options = {"stem": stem, "weights": str(file), "img_size": SIDE, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    rgb, grey, four = (create("tiny", in_chans=count, **options).eval() for count in (3, 1, 4))
    x = images(4)
    torch.testing.assert_close(grey.pooled(x[:, :1]), rgb.pooled(x[:, :1].expand(-1, 3, -1, -1)))
    merged = torch.stack([x[:, 0] + x[:, 3], x[:, 1], x[:, 2]], 1) * 0.75
    torch.testing.assert_close(four.pooled(x), rgb.pooled(merged))


def test_pixel_statistics() -> None:
    average = sum(IMAGENET_MEAN) / 3
    assert resolve("tiny", weights="random", mean=(0.5,)).mean == (0.5,) * 3
    assert resolve("tiny", weights="random", in_chans=2).mean == pytest.approx((average, average))
    assert resolve("tiny", weights="random", in_chans=1, mean=[0.2]).mean == (0.2,)
    assert create("resnet18", weights="random", in_chans=1).spec.mean == pytest.approx((average,))
    with pytest.raises(UsageError, match=r"`std: \[0\.1, 0\.2\]`: 2 value\(s\), but images have 4 channel"):
        resolve("tiny", in_chans=4, std=[0.1, 0.2])
    with pytest.raises(ValueError, match=r"images are \[B, 1, H, W\], float in \[0, 1\] or uint8, not"):
        create("tiny", weights="random", in_chans=1).pooled(images(3))


def test_a_backbone_has_the_exponent_of_the_pretraining_found_under_its_name(here: Path) -> None:
    (here / "mine.yaml").write_text("arch: vit_ti\ndepth: 1\nattention: relu\nalpha: 1\ntrain_size: [32, 32]\n")
    given = {"alpha": 0.5, "length": "train", "train_size": (64, 64)}
    export(create("mine.yaml", weights="random", **given), Path("weights/mine"))
    spec = resolve("mine.yaml")
    assert (spec.alpha, spec.length, spec.train_size) == (0.5, "train", (64, 64))
    Path("weights/mine").rename("weights/other")
    assert resolve("mine.yaml", weights="weights/other").alpha == 1, "its weights in a backbone that says another one"


@pytest.mark.parametrize("arch", ["vit_ti\ndepth: 1", "test_vit"])
def test_a_backbone_normalizes_images_as_the_pretraining_found_under_its_name_did(arch: str, here: Path) -> None:
    (here / "mine.yaml").write_text(f"arch: {arch}\nmean: [0.4, 0.4, 0.4]\nstd: [0.2, 0.2, 0.2]\n")
    assert resolve("mine.yaml").mean == (0.4,) * 3
    export(create("mine.yaml", weights="random", **GREY), Path("weights/mine"))
    for given in ({}, {"weights": "weights/mine"}):
        spec = create("mine.yaml", **given).spec
        assert (spec.mean, spec.std, Path(spec.weights).resolve()) == ((0.5,) * 3, (0.5,) * 3, here / "weights/mine")
    assert resolve("mine.yaml", mean=(0.3,) * 3).mean == (0.3,) * 3


def test_a_users_model_is_given_the_channels_or_has_them(tmp_path: Path) -> None:
    for name in ("Net", "Grey"):
        backbone = create(f"{users_file(tmp_path)}:{name}", in_chans=1)
        assert backbone.pooled(images(1)).shape == (2, 6)
