"""A set as published, as Parquet files and in the cache of the Hugging Face hub holds the same images."""

import shutil

import numpy as np
import pytest
import yaml

from tests.transfer.data.layouts import write_parquet, write_toy
from transfer.core.errors import UserError
from transfer.core.settings import CONFIGS
from transfer.data.classification import open_classification
from transfer.data.spec import resolve_dataset
from transfer.data.toy.digits import WRITERS

pytestmark = pytest.mark.usefixtures("arrow_cache")
REVISION, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40
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


def write_rows(path, rows, classes, columns):
    """Rows of (bytes, path, class name), mixed, with classes in another order and a column more of labels."""
    order = np.random.default_rng(0).permutation(len(rows))
    names = sorted(classes, key=str.lower, reverse=True)
    mixed = [rows[place] for place in order]
    listed = [({"bytes": content, "path": file}, names.index(name)) for content, file, name in mixed]
    write_parquet(path, listed, names, **columns, coarse=[place % 2 for place in order])


def rows_of(data, split, *, paths=True):
    return [
        (split.encoded(index), name.rpartition("/")[2] if paths else None, data.classes[split.labels[index]])
        for index, name in enumerate(split.names)
    ]


def write_hub(data, name, hub, folder, **given):
    """The splits in files as the hub lays them out."""
    splits = {"train": rows_of(data, data.train, **given), "val": rows_of(data, data.val, **given)}
    if name in ONE_SPLIT:
        splits = {"train": splits["train"] + splits["val"]}
    for split, rows in splits.items():
        path = folder / f"{hub[split]}-00000-of-00001.parquet"
        write_rows(path, rows, data.classes, {"image": hub["image"], "label": hub["label"]})


def snapshot(tmp_path, hub, revision=REVISION):
    folder = f"datasets--{hub['id'].replace('/', '--')}"
    return tmp_path / "hub" / folder / "snapshots" / revision


def contents(data):
    """{split: sorted (content digest, class name)}."""
    return {
        split.name: sorted(
            (split.content_digest(index), data.classes[split.labels[index]]) for index in range(len(split))
        )
        for split in (data.train, data.val)
    }


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


def test_the_published_layout_comes_first(tmp_path):
    published = as_published("dtd", tmp_path)
    spec, hub = facts("dtd", tmp_path)
    root = tmp_path / "published" / "dtd"
    write_hub(published, "dtd", hub, root / "data")
    write_hub(published, "dtd", hub, snapshot(tmp_path, hub) / "data")
    assert open_classification(spec, root).storage == "published"
    shutil.rmtree(root / "labels")
    assert open_classification(spec, root).storage == "parquet"
    shutil.rmtree(root / "data")
    assert open_classification(spec, root).storage == "hub"


def test_revisions_in_the_cache(tmp_path):
    published = as_published("dtd", tmp_path)
    pinned, hub = facts("dtd", tmp_path, revision=REVISION)
    write_hub(published, "dtd", hub, snapshot(tmp_path, hub, OTHER) / "data")
    with pytest.raises(UserError, match=rf"is not in the cache[\s\S]*--revision {REVISION}"):
        open_classification(pinned, None)
    write_hub(published, "dtd", hub, snapshot(tmp_path, hub) / "data")
    assert open_classification(pinned, None).storage == "hub"
    with pytest.raises(UserError, match=f"{REVISION}, {OTHER}, but no revision is pinned"):
        open_classification(facts("dtd", tmp_path)[0], None)


def test_rows_without_file_names(tmp_path):
    published = as_published("uc_merced", tmp_path)
    spec, hub = facts("uc_merced", tmp_path)
    write_hub(published, "uc_merced", hub, tmp_path / "rows", paths=False)
    with pytest.raises(UserError, match=r"parquet, row 0: no file name.*published \.tif files.*UCMerced_LandUse\.zip"):
        open_classification(spec, tmp_path / "rows")
