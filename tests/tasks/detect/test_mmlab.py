"""mmdetection over the bridge: it imports in silence, trains and predicts."""

import subprocess
import sys

import pytest

from tasks.detect import mmlab
from transfer.core.errors import UserError

mmlab.load()


SILENT = """
from tasks.detect import mmlab
mmlab.load()
mmlab.load()
from mmengine.registry import DefaultScope
from mmdet.datasets.transforms import RandomCrop
print(mmlab.ops_source(), DefaultScope.get_current_instance().scope_name)
"""


@pytest.mark.nightly
def test_import_is_silent():
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("bridge mmdet\n", "")


def test_compiled_operators_are_found_without_importing_them(monkeypatch, tmp_path):
    (tmp_path / "mmcv").mkdir()
    for name in ("__init__", "_ext"):
        (tmp_path / "mmcv" / f"{name}.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mmcv", "mmcv._ext"):
        monkeypatch.delitem(sys.modules, name)
    assert mmlab.ops_source() == "compiled"
    (tmp_path / "mmcv/_ext.py").unlink()
    assert mmlab.ops_source() == "bridge"


def test_missing_packages_are_named_with_what_installs_them(monkeypatch):
    find = mmlab.find_spec
    monkeypatch.setattr(mmlab, "find_spec", lambda name: None if name in ("mmcv", "mmdet") else find(name))
    for name in ("mmcv", "mmdet"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"mmcv, mmdet: pip install -e '\.\[detection\]'"):
        mmlab.load()


@pytest.mark.parametrize("official", ["mmcv-full", "mmdet"])
def test_official_packages_beside_the_fork_are_an_error(official, monkeypatch, tmp_path):
    folder = tmp_path / f"{official.replace('-', '_')}-2.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {official}\nVersion: 2.1.0\n")
    (folder / "top_level.txt").write_text(official.removesuffix("-full"))
    monkeypatch.syspath_prepend(tmp_path)
    mmlab._owners.cache_clear()
    with pytest.raises(UserError, match=rf"onedl-\w+ and {official} are both installed|{official} and onedl"):
        mmlab.load()
    mmlab._owners.cache_clear()
