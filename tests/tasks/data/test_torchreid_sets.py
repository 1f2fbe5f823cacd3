import sys
from pathlib import Path

import pytest

from backbones.data.spec import resolve_dataset
from backbones.errors import UsageError, UserError
from tasks.data.reid import open_reid
from tests.tasks.data.layouts import market, spec

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


def test_nothing_is_downloaded(tmp_path):
    pytest.importorskip("torchreid")
    with pytest.raises(UserError, match="no such folder"):
        open_reid(MISSING, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_set(tmp_path):
    pytest.importorskip("torchreid")
    with pytest.raises(UsageError, match="did you mean 'market1501'"):
        open_reid(resolve_dataset("torchreid:markt1501"), tmp_path)
