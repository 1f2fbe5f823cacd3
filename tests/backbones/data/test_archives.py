from pathlib import Path

import pytest

from backbones.data.layouts import Archive, read_archives
from backbones.data.spec import dataset_names, resolve_dataset
from backbones.errors import UsageError

URL, SHA, MD5 = "https://host/a.tar.gz", "0" * 64, "f" * 32
FILE = Path("set.yaml")


def test_an_archive_is_read() -> None:
    entry = {"url": URL, "sha256": SHA, "bytes": 7, "into": "a/b", "inside": "c.tar"}
    assert read_archives([entry], FILE) == (Archive(URL, "sha256", SHA, 7, "a/b", "c.tar"),)
    assert read_archives([{"url": URL, "md5": MD5}], FILE) == (Archive(URL, "md5", MD5),)
    assert read_archives([], FILE) == ()


@pytest.mark.parametrize(
    "entry",
    [
        "x",
        {"url": URL, "sha265": SHA},
        {"url": "ftp://host/a", "sha256": SHA},
        {"url": URL},
        {"url": URL, "md5": SHA},
        {"url": URL, "sha256": SHA, "bytes": "7"},
        {"url": URL, "sha256": SHA, "into": "../x"},
        {"url": URL, "sha256": SHA, "inside": "/x"},
    ],
)
def test_what_is_wrong_is_named(entry: object) -> None:
    with pytest.raises(UsageError, match=r"^set.yaml: `archives` has .*wanted: a `url`"):
        read_archives([entry], FILE)


def test_shipped_sets_have_archives_where_their_licence_is_stated() -> None:
    fetched = {name for name in dataset_names() if resolve_dataset(name).archives}
    assert fetched == {"caltech101", "cifar100", "dtd", "colorectal_histology", "oxford_pets", "uc_merced"}
    for name in fetched:
        assert resolve_dataset(name).license
