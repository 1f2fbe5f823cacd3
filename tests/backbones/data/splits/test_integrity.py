import os

import pytest
from PIL import Image

from backbones.data.splits import integrity
from backbones.data.splits.integrity import check_images, stat_files
from backbones.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vit-transfer" / "checked"


@pytest.fixture
def paths(tmp_path):
    for number in range(7):
        Image.effect_noise((32, 32), 60).convert("RGB").save(tmp_path / f"{number}.jpg")
    return [str(tmp_path / f"{number}.jpg") for number in range(7)]


def cut(path):
    with open(path, "r+b") as file:  # noqa: PTH123
        file.truncate(os.path.getsize(path) // 2)  # noqa: PTH202


def test_damaged_images_are_counted_and_named(paths):
    for path in paths[:6]:
        cut(path)
    with pytest.raises(UserError) as error:
        check_images(stat_files(paths, name="set"), name="set")
    assert "6 of 7 images" in str(error.value)
    assert paths[0] in str(error.value)
    assert "and 1 more" in str(error.value)
    assert check_images(stat_files(paths, name="set"), name="set", skip=True) == paths[:6]


def test_each_state_is_decoded_once(paths, monkeypatch, cache):
    stats = stat_files(paths, name="set")
    check_images(stats, name="set")
    decoded = []
    monkeypatch.setattr(integrity, "read_image", decoded.append)
    check_images(dict(reversed(stats.items())), name="set")
    assert decoded == []
    os.utime(paths[3], ns=(0, 0))
    check_images(stat_files(paths, name="set"), name="set")
    assert sorted(decoded) == paths
    (verdicts, _) = cache.iterdir()
    verdicts.write_text("[]")  # damaged
    decoded.clear()
    check_images(stats, name="set")
    check_images(stat_files(paths, name="set"), name="set")
    assert len(decoded) == 7


def test_an_unwritable_cache_is_said_and_gone_without(paths, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert check_images(stat_files(paths, name="set"), name="set") == []
    assert "not remembered" in capsys.readouterr().err


def test_missing_files_are_named(paths):
    with pytest.raises(UserError, match=r"1 file\(s\)[\s\S]*absent\.jpg: No such file"):
        stat_files([*paths, "/nowhere/absent.jpg"], name="set")
