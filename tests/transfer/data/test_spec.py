import hashlib
import re
from pathlib import Path

import pytest

from tests.transfer.data.reid.layouts import market
from transfer.core.errors import UsageError, UserError
from transfer.data.layouts import read_archives
from transfer.data.spec import dataset_names, find_root, manifest_digest, resolve_dataset
from transfer.task import load_task


def written(path, text):
    path.write_text(text)
    return resolve_dataset(str(path))


def test_shipped_files_state_the_facts():
    specs = {name: resolve_dataset(name) for name in dataset_names()}
    assert [spec.name for spec in specs.values()] == list(specs)
    assert not [name for name, spec in specs.items() if not (spec.license and spec.citation)]


def test_a_users_file(tmp_path):
    spec = written(tmp_path / "campus.yaml", "format: market1501\nroot: images\ncounts: {train: {images: 3}}\n")
    assert (spec.name, spec.format, spec.counts) == ("campus", "market1501", {"train": {"images": 3}})
    assert spec.root == (str(tmp_path / "images"), "images")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format: market1501\nroot: x\nlicence: MIT\n", "unknown key 'licence'; did you mean 'license'"),
        ("format: market1051\nroot: x\n", "did you mean 'market1501'"),
        ("root: x\n", "`format` is 'None'"),
        ("format: market1501\n", "`root` is missing"),
        ("format: market1501\nroot: 3\n", "`root` is 3"),
        ("format: market1501\nroot: x\nversion: 1.10\n", "`version` is 1.1; it must be text"),
        ("format: market1501\nroot: x\ncounts: 12\n", "`counts` is 12"),
        ("format: dtd\nroot: x\nheld_out: 0.0\n", "`held_out` is 0.0; it must be a share above 0 and below 1"),
        ("format: coco\nroot: x\nheld_out: 0.2\n", "coco does not take `held_out`; remove it; it is for image_folder"),
        ("format: dtd\nroot: x\narchives: 1\n", "`archives` is 1; it must be a list"),
        ("format: dtd\nroot: x\nname: x/../../victim\n", "`name` is 'x/../../victim'"),
        ("format: dtd\nroot: x\nname: .hidden\n", "`name` is '.hidden'"),
    ],
)
def test_wrong_words_name_file_and_key(tmp_path, text, message):
    with pytest.raises(UsageError, match=rf"mine\.yaml[\s\S]*{re.escape(message)}"):
        written(tmp_path / "mine.yaml", text)


@pytest.mark.parametrize("place", ["market1501", "market1501/Market-1501-v15.09.15", "Market-1501-v15.09.15"])
def test_found_in_the_data_folder(tmp_path, monkeypatch, place):
    root = market(tmp_path / place)
    spec = resolve_dataset("market1501")
    assert find_root(spec, tmp_path) == root
    monkeypatch.setenv("TRANSFER_DATA", str(tmp_path))
    assert find_root(spec, None) == root


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ("train/a/0.jpg val/a/0.jpg", "image_folder"),
        ("valid/a/0.jpg", "image_folder"),
        ("ILSVRC/Data/CLS-LOC/train/n01440764/0.jpg", "imagenet"),
        ("bounding_box_train/x bounding_box_test/x query/x", "market1501"),
        ("train/x test/x list_train.txt list_query.txt list_gallery.txt", "msmt17"),
        ("data/train-00000-of-00002.parquet README.md", "parquet"),
        ("train/state.json test/state.json dataset_dict.json", "parquet"),
        ("annotations/instances_val2017.json val2017/0.jpg train2017/0.jpg", "coco"),
        ("0.jpg a/b/1.png", "images"),
        ("train/x bounding_box_train/x bounding_box_test/x query/x", "may be of format image_folder or market1501"),
        ("notes.txt", "a folder in no known layout, without images"),
    ],
)
def test_a_folder_alone(tmp_path, monkeypatch, files, kind):
    for name in files.split():
        (tmp_path / "my.set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "my.set" / name).write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    if " " in kind:
        with pytest.raises(UsageError, match=rf"{kind}; name a YAML.*\n  format: \w+\n  root: {tmp_path}/my\.set"):
            resolve_dataset(str(tmp_path / "my.set"))
    else:
        spec = resolve_dataset("~/my.set")
        assert (spec.name, spec.format, spec.root) == ("my.set", kind, (f"{tmp_path}/my.set",))
        assert find_root(spec, None) == tmp_path / "my.set"


def test_a_folder_for_another_task_names_a_fitting_dataset(tmp_path):
    (tmp_path / "0.jpg").touch()
    with pytest.raises(UsageError, match="set --dataset to coco2017"):
        load_task("detect").check_kind(resolve_dataset(str(tmp_path)))


@pytest.mark.parametrize("entry", ["~/images", "$HOME/images", "[elsewhere, ~/images]"])
def test_the_home_folder_in_a_users_file(tmp_path, monkeypatch, entry):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = market(tmp_path / "home" / "images")
    assert find_root(written(tmp_path / "mine.yaml", f"format: market1501\nroot: {entry}\n"), None) == root
    monkeypatch.setenv("TRANSFER_DATA", "~")
    root.rename(tmp_path / "home" / "market1501")
    assert find_root(resolve_dataset("market1501"), None) == tmp_path / "home" / "market1501"


def test_nowhere(tmp_path):
    with pytest.raises(UserError, match=r"MSMT17_V1.*: no such folder[\s\S]*--data[\s\S]*mask_train_v2/[\s\S]*ask the"):
        find_root(resolve_dataset("msmt17"), tmp_path)


def test_two_copies_are_not_chosen_between(tmp_path):
    one, two = market(tmp_path / "market1501"), market(tmp_path / "Market-1501")
    with pytest.raises(UserError, match=rf"{two}\n  {one}"):
        find_root(resolve_dataset("market1501"), tmp_path)


def test_manifest_digest():
    files = [("b.jpg", 20, b"\x01\x02"), ("a.jpg", 3, b"\xff")]
    expected = hashlib.sha256(b"a.jpg\x003\x00ff\nb.jpg\x0020\x000102\n").hexdigest()
    assert manifest_digest(files) == manifest_digest(reversed(files)) == expected
    assert manifest_digest([("b.jpg", 2, b"\x01\x02"), ("a.jpg", 30, b"\xff")]) != expected
    assert manifest_digest([("b.jpg", 20, b"\x01\x03"), ("a.jpg", 3, b"\xff")]) != expected


URL, SHA = "https://host/a.tar.gz", "0" * 64


@pytest.mark.parametrize(
    "entry",
    [
        "x",
        {"url": URL, "sha265": SHA},
        {"url": "ftp://host/a", "sha256": SHA},
        {"url": URL},
        {"url": URL, "sha256": SHA, "into": "../x"},
        {"url": URL, "sha256": SHA, "inside": "/x"},
    ],
)
def test_what_is_wrong_with_an_archive_is_named(entry):
    with pytest.raises(UsageError, match=r"^set.yaml: `archives`: .*wanted: a `url`"):
        read_archives([entry], Path("set.yaml"))
