from pathlib import Path

import pytest

from backbones.data.archives import Archive, read_archives
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
    ("value", "said"),
    [
        ("x", "must be a list"),
        (["x"], "each is a mapping"),
        ([{"url": URL, "sha265": SHA}], "unknown key 'sha265'; did you mean 'sha256'"),
        ([{"url": "ftp://host/a", "sha256": SHA}], "must begin with https://"),
        ([{"url": URL}], "needs its sha256"),
        ([{"url": URL, "sha256": SHA[:-1]}], "64 hex digits"),
        ([{"url": URL, "md5": SHA}], "32 hex digits"),
        ([{"url": URL, "sha256": SHA, "bytes": "7"}], "`bytes` is '7'"),
        ([{"url": URL, "sha256": SHA, "into": "../x"}], "without `..`"),
        ([{"url": URL, "sha256": SHA, "inside": "/x"}], "relative path"),
    ],
)
def test_what_is_wrong_is_named(value: object, said: str) -> None:
    with pytest.raises(UsageError, match=rf"^set.yaml: .*{said}"):
        read_archives(value, FILE)


def test_shipped_sets_have_archives_where_their_licence_is_stated() -> None:
    fetched = {name for name in dataset_names() if resolve_dataset(name).archives}
    assert fetched == {"caltech101", "cifar100", "dtd", "colorectal_histology", "oxford_pets", "uc_merced"}
    for name in fetched:
        assert resolve_dataset(name).license
