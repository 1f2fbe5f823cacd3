import hashlib
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.transfer.data.reid.layouts import market, spec
from transfer.core.errors import MissingInput, UsageError, UserError
from transfer.data.reid.dataset import open_reid
from transfer.data.spec import DatasetSpec, resolve_dataset

MISSING = resolve_dataset("torchreid:market1501")


def test_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchreid.reid.data", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[torchreid\]'"):
        open_reid(MISSING, tmp_path)


def test_the_same_lists_as_ours(tmp_path):
    pytest.importorskip("torchreid")
    root = market(tmp_path / "market1501" / "Market-1501-v15.09.15")
    theirs, ours = open_reid(MISSING, tmp_path), open_reid(spec(root), None)
    for split in ("train", "query", "gallery"):
        rows = [
            [(Path(sample.path).name, sample.identity, sample.camera - first) for sample in getattr(data, split)]
            for data, first in ((theirs, 0), (ours, 1))  # torchreid counts cameras from 0
        ]
        assert rows[0] == rows[1]
    assert theirs.counts["distractors"] == 3
    assert theirs.counts["gallery"] == ours.counts["gallery"]
    assert theirs.name == "torchreid:market1501"


SETS = {
    "viper": [f"viper/VIPeR/cam_{cam}/{person:03d}_0.bmp" for cam in "ab" for person in range(12)],
    "sensereid": [f"sensereid/SenseReID/test_{part}/{n:05d}_{cam}.jpg"
                  for part, cam in {"probe": 0, "gallery": 1}.items() for n in range(4)],
}  # fmt: skip


def drawn(name, root, *, backwards=False):
    for file in sorted(SETS[name], reverse=backwards):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 4), tuple(hashlib.sha256(file.encode()).digest()[:3])).save(root / file)
    return root


def opened(name, root, **options):
    pytest.importorskip("torchreid")
    return open_reid(DatasetSpec(name=name, format="torchreid", options={"set": name, **options}), root)


def generator_states():
    return random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002


def test_every_machine_scores_the_same_split_and_nothing_is_written_beside_the_data(tmp_path):
    data = []
    for copy in (False, True):
        root = drawn("viper", tmp_path / str(copy), backwards=copy)
        if copy:
            (root / "viper" / "splits.json").write_text("[]")  # drawn before, and not used
        before = sorted(root.rglob("*"))
        random.seed(int(copy))
        np.random.seed(int(copy))  # noqa: NPY002
        states = generator_states()
        data.append(opened("viper", root))
        assert generator_states() == states
        assert sorted(root.rglob("*")) == before
    assert data[0].digest == data[1].digest
    assert data[0].notes[0].startswith("test split 0 of 20 (`split: N` in a YAML file)")
    last = opened("viper", root, split=19)
    assert [sample.path for sample in last.query] != [sample.path for sample in data[1].query]
    with pytest.raises(UsageError, match="`split` is 20; it must be a number from 0 to 19"):
        opened("viper", root, split=20)


def test_test_images_are_not_trained_on(tmp_path):
    data = opened("sensereid", drawn("sensereid", tmp_path))
    assert (data.train, len(data.query), len(data.gallery)) == ([], 4, 4)
    assert "torchreid uses the test images as training images" in data.notes


@pytest.mark.parametrize("name", ["market1501", "university1652"])
def test_nothing_is_downloaded(tmp_path, monkeypatch, name):
    for function in ("socket.socket.connect", "socket.getaddrinfo"):
        monkeypatch.setattr(function, lambda *args, **options: pytest.fail("reaches for the network"))
    with pytest.raises(MissingInput, match=f"{name}: directory not found; set `--data` to its parent folder"):
        opened(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_set(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'market1501'"):
        opened("markt1501", tmp_path)
