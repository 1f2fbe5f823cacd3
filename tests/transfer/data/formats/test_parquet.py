"""Parquet files, and a set as published, as such files and in the cache of the Hugging Face hub: the same images."""

import os
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.transfer.data.layouts import encoded, rows, spec, write_images, write_parquet, write_toy
from transfer.core.errors import UsageError, UserError
from transfer.core.settings import CONFIGS
from transfer.data.classification import open_classification
from transfer.data.spec import resolve_dataset
from transfer.data.toy.digits import WRITERS

pytestmark = pytest.mark.usefixtures("arrow_cache")
REVISION, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40


def opened(root, kind="parquet", **options):
    return open_classification(spec(kind, root, **options), None)


@pytest.fixture
def root(tmp_path):
    write_parquet(tmp_path / "set" / "train.parquet", rows())
    write_parquet(tmp_path / "set" / "test.parquet", rows(2, key=100))
    return tmp_path / "set"


@pytest.mark.parametrize("form", ["data/train-0000{}", "default/train/000{}"])
def test_rows_of_several_files_keep_their_order(tmp_path, arrow_cache, form):
    listed = rows()
    for part in range(3):
        write_parquet(tmp_path / "set" / f"{form.format(part)}.parquet", listed[5 * part : 5 * part + 5])
    (tmp_path / "mine.yaml").write_text("format: parquet\nroot: set\nlabel: label\n")
    data = open_classification(resolve_dataset(str(tmp_path / "mine.yaml")), None)
    assert data.classes == ("bird", "cat", "dog")
    assert data.train.labels.tolist() == [label for _, label in listed]
    assert data.train.labels.dtype == np.int64
    assert [data.train.encoded(index) for index in range(15)] == [content for content, _ in listed]
    assert data.train.sizes.tolist() == [len(content) for content, _ in listed]
    assert data.train.names[:2] == ["train/000000", "train/000001"]
    assert arrow_cache.is_dir()
    assert data.train.place(6).endswith(form.format(1) + ".parquet, row 1")
    pattern = str(tmp_path / "set" / f"{form.format('[01]')}.parquet")
    assert len(opened(tmp_path, train=pattern).train) == 10


def test_plain_columns_are_named(tmp_path):
    images, labels = zip(*rows())
    pd.DataFrame({"jpeg": images, "class_id": labels, "n": 1}).to_parquet(tmp_path / "train.parquet")
    data = opened(tmp_path, image="jpeg", label="class_id")
    assert data.classes == ("0", "1", "2")
    assert data.train.encoded(4) == images[4]
    for keys, said in (
        ({"label": "class_id"}, r"train\.parquet: no columns of type Image.*key `image`.*class_id \(int64\)"),
        ({"image": "jpeg"}, "train has no labels .*no columns of type ClassLabel.*key `label`"),
        ({"image": "picture", "label": "class_id"}, "no column 'picture': set the key `image` to one of.*: jpeg"),
        ({"image": "n", "label": "class_id"}, "'n' holds no images"),
    ):
        with pytest.raises(UserError, match=said):
            opened(tmp_path, **keys)


@pytest.mark.parametrize(
    ("train", "test", "classes", "first", "note"),
    [
        (["birch", "oak", "ash"], ["oak"], ("ash", "birch", "oak"), [1, 2, 0], "labels ash, birch, oak are numbered"),
        (["2", "10", "0"], ["10"], ("0", "2", "10"), [1, 2, 0], "labels 0, 2, 10 are numbered 0 to 2"),
        (pd.Categorical(["b", "a", "c"], ["c", "b", "a"]), ["b"], ("a", "b", "c"), [1, 0, 2], "labels a, b, c are"),
        ([1, 3, 2], [2], ("1", "2", "3"), [0, 2, 1], "labels 1, 2, 3 are numbered 0 to 2"),
        ([1, 6, 2], [2], ("1", "2", "6"), [0, 2, 1], "labels 1, 2, 6 are numbered 0 to 2 (without 3, 4, 5)"),
        ([1.0, 0.0, 2.0], [1.0], ("0", "1", "2"), [1, 0, 2], ""),
        ([True, False, True], [True], ("0", "1"), [1, 0, 1], ""),
        (np.array([2, 0, 1], np.uint8), [1], ("0", "1", "2"), [2, 0, 1], ""),
        ([0, 1, 2], [-1], ("0", "1", "2"), None, "test has no labels (-1)"),
        ([0, 1, 2], [None], ("0", "1", "2"), None, "test has no labels (no value)"),
        (["a", "b", "c"], [""], ("a", "b", "c"), None, "test has no labels (empty texts)"),
        (["0", "1", "2"], ["-1"], ("0", "1", "2"), None, "test has no labels (-1)"),
    ],
)
def test_labels_in_other_forms(tmp_path, train, test, classes, first, note):
    for name, labels in (("train", train), ("test", test)):
        images = [encoded(len(name), place) for place in range(len(labels))]
        pd.DataFrame({"image": images, "label": labels}).to_parquet(tmp_path / f"{name}.parquet")
    data = opened(tmp_path)
    assert data.classes == classes
    assert note in "; ".join(data.notes)
    assert (data.val is None) == (first is None)
    if first:
        assert data.train.labels.tolist() == first
        assert [data.classes[label] for label in data.val.labels] == [str(test[0]) if test[0] != True else "1"]  # noqa: E712


def test_texts_are_the_names_of_the_other_splits_classes(tmp_path):
    write_parquet(tmp_path / "train.parquet", rows())  # bird, cat, dog by number
    pd.DataFrame({"image": [encoded(8)], "label": ["dog"]}).to_parquet(tmp_path / "test.parquet")
    assert opened(tmp_path).val.labels.tolist() == [2]
    pd.DataFrame({"image": [encoded(8)], "label": ["cow"]}).to_parquet(tmp_path / "test.parquet")
    with pytest.raises(UserError, match=r"test\.parquet, row 0: label -1 is outside 0\.\.2"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0.5, 1.0], "row 0: label 0.5 in column 'label' is not an integer"),
        ([[0], [1]], r"column 'label' holds list<.*>, not classes"),
        ([-1, -1], r"train has no labels \(-1\)"),
        ([-1, 0], r"1 label\(s\) are not classes of train: -1"),
    ],
)
def test_labels_that_are_none(tmp_path, labels, said):
    pd.DataFrame({"image": [encoded(1), encoded(2)], "label": labels}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(UserError, match=said):
        opened(tmp_path)


@pytest.mark.parametrize("form", ["beside", "backslashes", "absolute", "home", "struct", "in data"])
def test_rows_name_files(tmp_path, monkeypatch, form):
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / "set"
    write_images(root / "im", 3, 5)
    prefix = {"backslashes": ".\\im\\", "absolute": f"{root}/im/", "home": "~/set/im/"}.get(form, "im/")
    paths = [f"{prefix}{number}.jpg" for number in (2, 0, 1)]
    images = [{"bytes": None, "path": path} for path in paths] if form == "struct" else paths
    file = root / ("data/train-0.parquet" if form == "in data" else "train.parquet")
    file.parent.mkdir(exist_ok=True)
    pd.DataFrame({"image": images, "label": ["b", "a", "b"]}).to_parquet(file)
    data = opened(root)
    assert [data.train.encoded(index) for index in range(3)] == [encoded(5, number) for number in (2, 0, 1)]
    assert data.train.labels.tolist() == [1, 0, 1]
    (root / "im" / "0.jpg").unlink()
    with pytest.raises(UserError, match=r"1 file\(s\) of the dataset cannot be opened:\s+.*0\.jpg"):
        opened(root)


def test_shards_that_are_missing_or_of_another_set_are_named(tmp_path):
    for number in (0, 2):
        write_parquet(tmp_path / "set" / f"train-{number:05d}-of-00003.parquet", rows(2))
    with pytest.raises(UserError, match=r"shards are missing or of several sets \(train-00000-of-00003"):
        open_classification(resolve_dataset(str(tmp_path / "set")), None)
    write_parquet(tmp_path / "set" / "train-00001-of-00003.parquet", rows(3))
    assert len(open_classification(resolve_dataset(str(tmp_path / "set")), None).train) == 7 * 3


@pytest.mark.parametrize("form", ["dict", "one"])
def test_folders_that_datasets_saved(tmp_path, form):
    from datasets import Dataset, DatasetDict

    write_parquet(tmp_path / "a.parquet", rows() + rows(2, key=100)[:2])
    table = Dataset.from_parquet(str(tmp_path / "a.parquet"), cache_dir=str(tmp_path / "c"))
    whole = table.select(range(14, -1, -1))
    saved = DatasetDict(train=whole, valid=table.select([15, 16])) if form == "dict" else whole
    saved.save_to_disk(tmp_path / "set")
    files = [*(tmp_path / "set").rglob("*")]
    data = open_classification(resolve_dataset(str(tmp_path / "set")), None)
    assert [data.train.encoded(index) for index in range(15)] == [content for content, _ in rows()[::-1]]
    names = [data.classes[label] for label in data.train.labels]
    assert names == [("bird", "cat", "dog")[label] for _, label in rows()[::-1]]
    notes = ("evaluated on valid", "val: no image of 2 of 3 classes: bird, dog")
    assert data.notes == (notes if form == "dict" else ())
    assert [*(tmp_path / "set").rglob("*")] == files, "nothing is written beside the user's data"
    assert data.val is None or data.val.labels.tolist() == [label for _, label in rows(2)[:2]]


def test_files_replaced_by_others_of_the_same_times_are_seen(root):
    """`datasets` would give the rows that it converted before."""
    file = root / "train.parquet"
    os.utime(file, ns=(10**18, 10**18))
    before = opened(root)
    write_parquet(file, rows(5)[::-1])
    os.utime(file, ns=(10**18, 10**18))
    after = opened(root)
    assert len(before.train) == len(after.train)
    assert before.digest != after.digest
    assert [*before.train.labels] != [*after.train.labels]


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([(content, label or None) for content, label in rows()], r"row \d+: no value in column 'label' .5 rows"),
        ([(None, label) for _, label in rows()], "train.parquet, row 0: no value in column 'image'"),
        ([(content[:200], label) for content, label in rows()], r"15 of 15 images cannot be rea[\s\S]*parquet, row 0"),
        ([], "train.parquet: there are no rows"),
    ],
)
def test_what_is_wrong_is_named(root, listed, said):
    write_parquet(root / "train.parquet", listed)
    with pytest.raises(UserError, match=said):
        opened(root)


def test_what_is_wrong_with_files_is_named(root, tmp_path):
    write_parquet(root / "test.parquet", rows(2), names=("bird", "cow", "dog"))
    with pytest.raises(UserError, match="only in training: cat; only in validation: cow"):
        opened(root)
    write_parquet(root / "test.parquet", rows(2), names=("bird", "dog", "cat"))
    with pytest.raises(UserError, match="different orders: label 1 is cat in training and dog in validation"):
        opened(root)
    (root / "train.parquet").write_text("image,label\n")
    with pytest.raises(UserError, match=r"train\.parquet: cannot be read as Parquet"):
        opened(root)
    with pytest.raises(UserError, match=r"\(Parquet files\) has none of train, val, validation"):
        opened(tmp_path)


def test_a_cached_revision_of_the_hub(tmp_path):
    snapshot = tmp_path / "hub" / "datasets--lab--animals" / "snapshots" / REVISION
    write_parquet(snapshot / "data" / "train-00000-of-00001.parquet", rows())
    write_parquet(snapshot / "data" / "validation-00000-of-00001.parquet", rows(2, key=100))
    keys = {"hub": "lab/animals", "revision": REVISION}
    assert len(opened("", "hf", **keys, train="validation", val="train").train) == 6
    for wrong, part in (({"revision": "main"}, "`revision` 'main'"), ({"hub": None}, "`hub` is None")):
        with pytest.raises(UsageError, match=part):
            opened("", "hf", **keys | wrong)


FULL = {"cars": "stanford_cars", "colorectal": "colorectal_histology", "pets": "oxford_pets"}
TOYS = {FULL.get(toy, toy): toy for toy in WRITERS}
QUICK = ("dtd", "uc_merced", "cifar100")
ONE_SPLIT = ("colorectal_histology", "uc_merced")


def facts(name, tmp_path, **pinned):
    """The shipped file of a set, with the counts of its toy set."""
    content, toy = (
        yaml.safe_load((CONFIGS / "datasets" / f"{file}.yaml").read_text()) for file in (name, f"toy_{TOYS[name]}")
    )
    content |= {key: toy[key] for key in ("counts", "train_images") if key in toy}
    content["hub"] |= pinned
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return resolve_dataset(str(path)), content["hub"]


def as_published(name, tmp_path):
    root = write_toy(TOYS[name], tmp_path / "published" / name)
    return open_classification(facts(name, tmp_path)[0], root)


def rows_of(data, split, *, paths=True):
    return [
        (split.encoded(index), name.rpartition("/")[2] if paths else None, data.classes[split.labels[index]])
        for index, name in enumerate(split.names)
    ]


def write_hub(data, name, hub, folder, **given):
    """The splits in files as the hub lays them out: mixed, with classes in another order, and more labels."""
    names = sorted(data.classes, key=str.lower, reverse=True)
    splits = {"train": rows_of(data, data.train, **given), "val": rows_of(data, data.val, **given)}
    if name in ONE_SPLIT:
        splits = {"train": splits["train"] + splits["val"]}
    for split, listed in splits.items():
        order = np.random.default_rng(0).permutation(len(listed))
        mixed = [({"bytes": listed[row][0], "path": listed[row][1]}, names.index(listed[row][2])) for row in order]
        path, columns = folder / f"{hub[split]}-00000-of-00001.parquet", {key: hub[key] for key in ("image", "label")}
        write_parquet(path, mixed, names, **columns, coarse=order % 2)


def snapshot(tmp_path, hub, revision=REVISION):
    folder = f"datasets--{hub['id'].replace('/', '--')}"
    return tmp_path / "hub" / folder / "snapshots" / revision


def contents(data):
    """Sorted (content digest, class name) of both splits."""
    return [
        sorted((split.content_digest(index), data.classes[label]) for index, label in enumerate(split.labels))
        for split in (data.train, data.val)
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in TOYS]
)
def test_three_forms_of_the_same_images(tmp_path, capfd, name):
    published = as_published(name, tmp_path)
    spec, hub = facts(name, tmp_path)
    write_hub(published, name, hub, tmp_path / "rows" / "data")
    parquet = open_classification(spec, tmp_path / "rows")
    revision = hub["revision"] or REVISION
    folder = snapshot(tmp_path, hub, revision)
    write_hub(published, name, hub, folder / (hub["config"] or "data"))
    if hub["config"]:
        (folder / "README.md").write_text(
            f"---\nconfigs:\n- config_name: {hub['config']}\n  data_files:\n  - split: train\n    path: "
            f"{hub['config']}/train-*\n  - split: test\n    path: {hub['config']}/test-*\n---\n"
        )
    capfd.readouterr()
    cached = open_classification(spec, tmp_path / "nowhere")
    assert [data.storage for data in (published, parquet, cached)] == ["published", "parquet", "hub"]
    assert contents(published) == contents(parquet) == contents(cached)
    assert published.counts == parquet.counts == cached.counts
    assert cached.origin == f"{hub['id']}@{revision}"
    assert capfd.readouterr().err == ""


def test_the_published_layout_comes_first_and_a_pinned_revision_of_the_cache_last(tmp_path):
    published, root = as_published("dtd", tmp_path), tmp_path / "published" / "dtd"
    pinned, hub = facts("dtd", tmp_path, revision=REVISION)
    for folder in (root / "data", snapshot(tmp_path, hub, OTHER) / "data"):
        write_hub(published, "dtd", hub, folder)
    assert open_classification(pinned, root).storage == "published"
    shutil.rmtree(root / "labels")
    assert open_classification(pinned, root).storage == "parquet"
    shutil.rmtree(root / "data")
    with pytest.raises(UserError, match=rf"is not in the cache[\s\S]*--revision {REVISION}"):
        open_classification(pinned, root)
    write_hub(published, "dtd", hub, snapshot(tmp_path, hub) / "data")
    assert open_classification(pinned, root).storage == "hub"
    with pytest.raises(UserError, match=f"{REVISION}, {OTHER}, but no revision is pinned"):
        open_classification(facts("dtd", tmp_path)[0], None)


def test_rows_without_file_names(tmp_path):
    published = as_published("uc_merced", tmp_path)
    spec, hub = facts("uc_merced", tmp_path)
    write_hub(published, "uc_merced", hub, tmp_path / "rows", paths=False)
    with pytest.raises(UserError, match=r"parquet, row 0: no file name.*published \.tif files.*UCMerced_LandUse\.zip"):
        open_classification(spec, tmp_path / "rows")
