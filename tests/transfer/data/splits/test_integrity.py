import hashlib
import math
import shutil

import pytest
from PIL import Image

from tests.transfer.data.coco import coco_tree
from tests.transfer.data.layouts import encoded, spec, write_folders, write_images, write_parquet
from tests.transfer.data.reid import layouts
from transfer.core.errors import MissingInput, UserError
from transfer.data.classification import open_classification
from transfer.data.coco.dataset import open_coco
from transfer.data.reid.dataset import open_reid
from transfer.data.splits.integrity import check_split, pictures_of, take_fraction
from transfer.data.splits.split import FileSplit

NAMES = [f"{number}.jpg" for number in range(7)]


@pytest.fixture
def split(tmp_path):
    return FileSplit.of("train", write_images(tmp_path, len(NAMES), 0), NAMES)


def test_orientations_are_counted_and_reasons_remembered(split):
    """Without the damaged image, whose reason comes from the cache at the second time."""
    exif = Image.Exif()
    exif[0x0112] = 8
    for name in NAMES[:3]:
        Image.effect_noise((32, 32), 60).convert("RGB").save(split.folder / name, exif=exif)
    Image.effect_noise((32, 32), 60).convert("F").save(split.folder / NAMES[0], "TIFF")
    for _ in range(2):
        with pytest.raises(UserError, match=r"1 of 7 images cannot be read:\n.*0\.jpg: .* \(mode F, values from "):
            check_split(split, name="set")
        _, looks, (note, left_out) = check_split(split, name="set", skip=True)
        assert pictures_of(looks) == {"smallest": [16, 12], "largest": [32, 32], "modes": {"RGB": 6}}
        assert note == "2 images have an EXIF orientation; they are read as stored"
        assert left_out == f"1 excluded, as they cannot be read: {NAMES[0]}"


def test_each_state_is_decoded_once(split, monkeypatch, private_cache):
    decoded, plain = [], split.decoded
    monkeypatch.setattr(split, "decoded", lambda index: decoded.append(index) or plain(index))
    for _ in range(2):
        assert check_split(split, name="set")[0].tolist() == []
        assert sorted(decoded) == [*range(7)]
    (split.folder / NAMES[3]).write_bytes(encoded(0)[:300])
    assert check_split(split, name="set", skip=True)[0].tolist() == [3]
    assert len(decoded) == 14
    for file in (private_cache / "read").iterdir():
        file.write_text("[]")  # damaged
    assert check_split(split, name="set", skip=True)[0].tolist() == [3]
    assert len(decoded) == 21
    monkeypatch.setattr("PIL.__version__", "99")  # which may read what this one cannot
    assert check_split(split, name="set", skip=True)[0].tolist() == [3]
    assert len(decoded) == 28


def test_an_image_that_vanishes_is_no_corrupt_one(split, monkeypatch, private_cache):
    path, plain = split.folder / NAMES[3], split.decoded
    monkeypatch.setattr(split, "decoded", lambda index: path.unlink(missing_ok=True) or plain(index))
    with pytest.raises(MissingInput, match=rf"^{path}: cannot be read \(No such file or directory\); restore ") as lost:
        check_split(split, name="set", skip=True)
    assert "drop-corrupt" not in str(lost.value)
    assert not (private_cache / "read").exists()


def test_an_unwritable_cache_is_said_and_gone_without(split, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert check_split(split, name="set")[0].tolist() == []
    assert "not cached" in capsys.readouterr().err


@pytest.fixture
def root(tmp_path):
    root = write_folders(tmp_path / "set", train=10, val=1)
    write_images(root / "train" / "cat", 3, 7)
    return root


def train(root, **given):
    return open_classification(spec("image_folder", root), None, **given).train


def contents(split):
    return sorted((int(split.labels[index]), split.encoded(index)) for index in range(len(split)))


@pytest.mark.parametrize(("share", "seed"), [(0.3, 4), (0.3, 0), (0.01, 4), (0.1, 4), (0.99, 4)])
def test_a_share_is_the_first_of_each_class_by_content_and_seed(root, share, seed):
    split = train(root)
    kept = take_fraction(split, share, seed=seed)
    expected = []
    for label in range(3):
        own = [split.encoded(index) for index in range(len(split)) if split.labels[index] == label]
        own.sort(key=lambda content: hashlib.sha256(hashlib.sha256(content).digest() + b"%d" % seed).digest())
        expected += [(label, content) for content in own[: math.ceil(share * len(own) - 1e-9)]]
    assert contents(kept) == sorted(expected)
    assert list(kept.names) == sorted(kept.names, key=list(split.names).index)
    assert take_fraction(split, 1.0) is split


@pytest.mark.usefixtures("arrow_cache")
@pytest.mark.parametrize("given", [{"label_fraction": 0.3}, {"subset": 4}, {"subset": 7, "label_fraction": 0.5}])
def test_a_folder_and_parquet_give_the_same_images(root, tmp_path, given):
    whole = contents(train(root))
    rows = [(content, label) for label, content in reversed(whole)]
    write_parquet(tmp_path / "rows" / "train.parquet", rows)
    from_rows = open_classification(spec("parquet", tmp_path / "rows"), None, **given).train
    assert contents(from_rows) == contents(train(root, **given))
    assert len(from_rows) < len(whole)


def copied(files, onto, count):
    for file, other in zip(files[:count], onto[:count], strict=True):
        shutil.copy(file, other)


def folders(root, count):
    write_folders(root, train=40, val=50)
    copied(sorted(root.glob("train/*/*")), sorted(root.glob("val/*/*"), reverse=True), count)
    return open_classification(spec("image_folder", root), None)


def rows(root, count):
    train, val = ([(encoded(key, n), n % 3) for n in range(150)] for key in (1, 2))
    write_parquet(root / "train.parquet", train)
    write_parquet(root / "val.parquet", val[count:] + train[:count])
    return open_classification(spec("parquet", root), None)


def people(root, count):
    names = {"bounding_box_train": [f"{n:04}_c{c}s1_000151_01.jpg" for n in range(900, 940) for c in (1, 2)]}
    names |= {"query": [f"{n:04}_c1s1_000151_00.jpg" for n in range(1, 151)]}
    layouts.market(root, names | {"bounding_box_test": [f"{n:04}_c2s1_000151_00.jpg" for n in range(1, 151)]})
    copied(sorted(root.glob("bounding_box_train/*.jpg")), sorted(root.glob("bounding_box_test/*.jpg")), count)
    return open_reid(layouts.spec(root), None)


@pytest.mark.usefixtures("arrow_cache")
@pytest.mark.parametrize(("opened", "split"), [(folders, "val"), (rows, "val"), (people, "gallery")])
def test_from_one_percent_on_it_is_refused_and_below_noted(opened, split, tmp_path):
    assert not [note for note in opened(tmp_path / "none", 0).notes if "training" in note]
    *_, note = opened(tmp_path / "few", 1).notes
    assert note.startswith(f"1 of 150 {split} images are also training images: ")
    with pytest.raises(UserError, match=rf"2 of 150 {split} images are also training images: .* = .*, .* = .*remove"):
        opened(tmp_path / "many", 2)


def test_detection_is_refused_unless_the_set_is_stated_to_be_a_self_test(tmp_path):
    root = coco_tree.written(tmp_path)
    shutil.copy(root / "train2017" / "train3.jpg", root / "val2017" / "val1.jpg")
    with pytest.raises(UserError, match=r"1 of 4 val images are also training images: val1\.jpg = train3\.jpg;"):
        coco_tree.opened(root)
    data = open_coco(coco_tree.spec(root, overlap="allow"), None)
    assert data.notes == ("1 of 4 val images are also training images: val1.jpg = train3.jpg",)
