import os

import pytest
from PIL import Image

from backbones.data.loading.read_image import allow_pixels
from backbones.data.splits.integrity import check_present, check_split
from backbones.data.splits.split import FileSplit
from backbones.errors import UserError

NAMES = [f"{number}.jpg" for number in range(7)]


@pytest.fixture
def split(tmp_path):
    for name in NAMES:
        Image.effect_noise((32, 32), 60).convert("RGB").save(tmp_path / name)
    return FileSplit.unlabelled("train", tmp_path, NAMES)


def cut(path):
    path.write_bytes(path.read_bytes()[:300])


def test_damaged_images_are_counted_and_named(split):
    for name in NAMES[:6]:
        cut(split.folder / name)
    with pytest.raises(UserError, match=rf"6 of 7 images[\s\S]*{split.path(0)}[\s\S]*and 1 more"):
        check_split(split, name="set")
    assert check_split(split, name="set", skip=True)[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_orientations_are_counted_and_reasons_remembered(split):
    """Without the damaged image, whose reason comes from the cache at the second time."""
    exif = Image.Exif()
    exif[0x0112] = 8
    for name in NAMES[:3]:
        Image.effect_noise((32, 32), 60).convert("RGB").save(split.folder / name, exif=exif)
    Image.effect_noise((32, 32), 60).convert("F").save(split.folder / NAMES[0], "TIFF")
    Image.effect_noise((32, 32), 60).save(split.folder / NAMES[3], "TIFF", tiffinfo=exif)
    for _ in range(2):
        with pytest.raises(UserError, match=r"1 of 7 images cannot be read:\n.*0\.jpg: .* \(mode F, values from "):
            check_split(split, name="set")
        assert check_split(split, name="set", skip=True)[1] == [
            "2 images have an EXIF orientation; they are read as stored",
            "1 TIFF images are turned by their orientation tag",
        ]


def test_an_image_above_the_limit_is_read_once_that_is_raised(split):
    Image.new("L", (400, 400)).save(split.folder / NAMES[0])
    try:
        allow_pixels(100_000)
        with pytest.raises(UserError, match=r"160000 pixels\) exceeds limit of 100000 pixels; `--max-pixels N`"):
            check_split(split, name="set")
        allow_pixels(160_000)
        assert check_split(split, name="set")[0].tolist() == []
    finally:
        allow_pixels(None)


def test_each_state_is_decoded_once(split, monkeypatch, private_cache):
    decoded, plain = [], split.decoded
    monkeypatch.setattr(split, "decoded", lambda index: decoded.append(index) or plain(index))
    for _ in range(2):
        assert check_split(split, name="set")[0].tolist() == []
        assert sorted(decoded) == [*range(7)]
    cut(split.folder / NAMES[3])
    assert check_split(split, name="set", skip=True)[0].tolist() == [3]
    assert len(decoded) == 14
    for file in (private_cache / "read").iterdir():
        file.write_text("[]")  # damaged
    assert check_split(split, name="set", skip=True)[0].tolist() == [3]
    assert len(decoded) == 21


def test_an_unwritable_cache_is_said_and_gone_without(split, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert check_split(split, name="set")[0].tolist() == []
    assert "not cached" in capsys.readouterr().err


def test_missing_files_are_named(split):
    with pytest.raises(UserError, match=r"1 file\(s\)[\s\S]*absent\.jpg: No such file"):
        check_present([split.path(0), os.fspath(split.folder / "absent.jpg")], name="set")
