"""What becomes of files whose tensors are easily misread: the right features, or an error that says what to do."""

import hashlib
import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from backbones.backbone import create
from backbones.weights.load import read_network
from backbones.weights.locate import find_weights
from tests.backbones.support import HALF, IMAGES, below
from tests.backbones.weights.test_layouts import STATE, model_of
from transfer.core.errors import MissingInput, UserError


OTHER = dict(model_of("plain", 2).state_dict())


def mmcv(state, other, prefix=""):
    own = below(prefix, state)
    return own | {f"ema_{name.replace('.', '_')}": tensor for name, tensor in below(prefix, other).items()}


def averaged(**more):
    return {"state_dict": STATE, "ema_state_dict": below("module.", OTHER) | more}


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
