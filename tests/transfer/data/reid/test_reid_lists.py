"""Re-identification sets as list files, on small drawn copies of their layouts, and the sets of torchreid."""

import hashlib
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.transfer.data.reid.layouts import draw, market, spec
from transfer.core.errors import MissingInput, UsageError, UserError
from transfer.data.reid.dataset import open_reid
from transfer.data.spec import DatasetSpec, resolve_dataset


def shipped(name, root, **options):
    found = resolve_dataset(name)
    return replace(found, root=(str(root),), counts=None, options=found.options | options)


def rows(data, split):
    return [(data.name_of(sample), sample.identity) for sample in getattr(data, split)]


def test_stanford_online_products(tmp_path):
    listed = [(f"bicycle_final/{person}_{image}.JPG", person) for person in (1, 2, 3, 4) for image in (0, 1)]
    for part, images in {"train": listed[:4], "test": listed[4:]}.items():
        lines = [f"{number} {person} 1 {name}" for number, (name, person) in enumerate(images)]
        (tmp_path / f"Ebay_{part}.txt").write_text("\n".join(["image_id class_id super_class_id path", *lines]))
        for name, _ in images:
            draw(tmp_path / name)
    data = open_reid(shipped("stanford_online_products", tmp_path), None)
    assert rows(data, "query") == rows(data, "gallery") == listed[4:]
    assert rows(data, "train") == [(name, person - 1) for name, person in listed[:4]]
    assert not data.cameras


def test_in_shop(tmp_path):
    """Names of items are numbered in sorted order; a byte order mark, CRLF and backslashes are understood."""
    listed = {"a_1": ("id_00000007", "query"), "b_1": ("id_00000002", "train"), "c_1": ("id_00000007", "gallery")}
    lines = ["3", "image_name item_id evaluation_status"]
    for name, (item, part) in listed.items():
        draw(tmp_path / f"img/WOMEN/{item}/{name}.jpg")
        lines.append(f"img\\WOMEN\\{item}\\{name}.jpg          {item}     {part}")
    (tmp_path / "Eval").mkdir()
    (tmp_path / "Eval" / "list_eval_partition.txt").write_bytes("\ufeff".encode() + "\r\n".join(lines).encode())
    data = open_reid(shipped("in_shop", tmp_path), None)
    assert rows(data, "train") == [("img/WOMEN/id_00000002/b_1.jpg", 0)]
    assert rows(data, "query") == [("img/WOMEN/id_00000007/a_1.jpg", 2)]
    assert rows(data, "gallery") == [("img/WOMEN/id_00000007/c_1.jpg", 2)]


def test_an_image_that_is_listed_twice(tmp_path):
    for name in "abcde":
        draw(tmp_path / f"{name}.jpg")
    (tmp_path / "query.txt").write_text("d.jpg 9\n")
    (tmp_path / "gallery.txt").write_text("e.jpg 9\n")
    options = {"train": "train.txt", "query": "query.txt", "gallery": "gallery.txt", "columns": "image identity"}
    told = replace(spec(tmp_path, options={**options, "cameras": "none"}), format="reid_lists")
    (tmp_path / "train.txt").write_text("a.jpg 1\nb.jpg 1\na.jpg 1\n")
    assert "1 training images are listed twice" in open_reid(told, None).notes
    (tmp_path / "train.txt").write_text("a.jpg 1\nb.jpg 1\na.jpg 2\n")
    with pytest.raises(UserError, match=r"a\.jpg is listed under two identities"):
        open_reid(told, None)


def test_vehicleid(tmp_path):
    people = {f"{10 + image:07d}": image // 3 for image in range(12)}
    for name in people:
        draw(tmp_path / "image" / f"{name}.jpg")
    lists = tmp_path / "train_test_split"
    lists.mkdir()
    lines = [f"{name} {person}\n" for name, person in people.items()]
    (lists / "test_list_800.txt").write_text("".join(lines))
    (lists / "train_list.txt").touch()
    first = open_reid(shipped("vehicleid", tmp_path), None)
    assert [identity for _, identity in rows(first, "gallery")] == [0, 1, 2, 3]
    test = [(f"image/{name}.jpg", person) for name, person in people.items()]
    assert sorted(rows(first, "query") + rows(first, "gallery")) == test
    assert "drawn at random (draw 0 of 10" in first.notes[0]
    (lists / "test_list_800.txt").write_text("".join(reversed(lines)))
    assert open_reid(shipped("vehicleid", tmp_path), None).digest == first.digest
    digests = {open_reid(shipped("vehicleid", tmp_path, split=number), None).digest for number in range(10)}
    assert len(digests) > 5
    with pytest.raises(UserError, match="`split` is 10; it must be a number from 0 to 9"):
        open_reid(shipped("vehicleid", tmp_path, split=10), None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "image"}, "`columns` must name image, identity, camera"),
        ({"columns": "image identity"}, "or the YAML say `cameras: none`"),
        ({"columns": "image identity camera"}, "query.txt:1: .a.jpg 3. does not parse"),
        ({"cameras": "none", "train": "utf16.txt"}, "utf16.txt:1: neither UTF-8 nor UTF-16 with a byte order mark"),
        ({"cameras": "none", "train": "latin1.txt"}, "latin1.txt:2: neither UTF-8"),
        ({"cameras": "none", "train": "trian.txt"}, "missing, empty or unreadable: trian.txt"),
    ],
)
def test_what_a_list_cannot_say(tmp_path, options, said):
    (tmp_path / "query.txt").write_text("a.jpg 3\n")
    (tmp_path / "utf16.txt").write_bytes("a.jpg 3".encode("utf-16-le"))
    (tmp_path / "latin1.txt").write_bytes("a.jpg 3\ncaf\u00e9.jpg 3".encode("latin1"))
    keys = {"query": "query.txt", "gallery": "query.txt", **options}
    with pytest.raises(UserError, match=said):
        open_reid(spec(tmp_path, "reid_lists", options=keys), None)


@pytest.mark.parametrize("apart", [" ", ","])
@pytest.mark.parametrize("place", ["{}", "~/photos/", "$HOME/photos/", ""])
def test_columns_apart_by_commas_or_spaces_and_images_anywhere(tmp_path, monkeypatch, place, apart):
    """Identities and cameras are names; the name of an image has a space, and accents in another form on the disk."""
    monkeypatch.setenv("HOME", str(tmp_path))
    root, keys = tmp_path / "lists", {"columns": "identity image camera", "images": "../photos/{}"}
    root.mkdir()
    for part, camera in {"query": "north", "gallery": "south"}.items():
        draw(tmp_path / f"photos/{part} cafe\u0301.jpg")
        cells = ["anna", place.format(f"{tmp_path}/photos/") + f"{part} caf\u00e9.jpg", camera]
        (root / f"{part}.txt").write_text(apart.join(cells))
        keys[part] = f"{part}.txt"
    data = open_reid(spec(root, "reid_lists", options=keys), None)
    found = [(data.name_of(one), one.identity, one.camera) for one in (*data.query, *data.gallery)]
    assert found == [("../photos/query cafe\u0301.jpg", 1, 1), ("../photos/gallery cafe\u0301.jpg", 1, 2)]


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
