"""The published layouts, read from the files of the toy sets, which bear the real names."""

import hashlib

import numpy as np
import pytest
from PIL import Image
from scipy.io import loadmat, savemat

from backbones.data.classification import open_classification
from backbones.data.formats.unofficial_split import tfds_order
from backbones.data.spec import resolve_dataset
from backbones.data.toy.coloured_digits import toy_images
from backbones.data.toy.layouts import NAMES
from backbones.errors import UsageError, UserError
from tests.backbones.data.layouts import spec, write_toy

FORMATS = {"cars": "stanford_cars", "colorectal": "colorectal_histology", "pets": "oxford_pets", "cifar100": "cifar"}
OPTIONS = {"colorectal": {"train_images": 112}, "uc_merced": {"train_images": 140}}


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch):
    monkeypatch.delenv("TRANSFER_DATA", raising=False)


def opened(name, root, counts=None, **options):
    options = {**OPTIONS.get(name, {}), **options}
    return open_classification(spec(FORMATS.get(name, name), root, counts=counts, **options), None)


def pairs(split, classes):
    """[(name, class name)]."""
    return [(name, classes[label]) for name, label in zip(split.names, split.labels.tolist(), strict=True)]


def assert_shows(split, index, image):
    """The image at `index` is `image`, but for the loss of a JPEG."""
    difference = np.asarray(split.read(index), dtype=float) - np.asarray(image, dtype=float)
    assert np.abs(difference).mean() < 4


def test_cub200(tmp_path):
    data = opened("cub200", write_toy("cub200", tmp_path))
    assert data.classes == tuple(f"{digit + 1:03d}.{name.capitalize()}" for digit, name in enumerate(NAMES))
    listed = {True: [], False: []}
    for number, one in enumerate(toy_images("cub200"), start=1):
        folder = f"{one.digit + 1:03d}.{NAMES[one.digit].capitalize()}"
        listed[one.for_training].append((f"{folder}/{folder[4:]}_{one.number + 1:04d}_{number}.jpg", folder))
    assert pairs(data.train, data.classes) == listed[True]
    assert pairs(data.val, data.classes) == listed[False]
    assert_shows(data.train, 14, next(one.image for one in toy_images("cub200") if one.digit == 1))


def test_the_order_is_that_of_the_lists(tmp_path):
    root = write_toy("cub200", tmp_path)
    plain = opened("cub200", root)
    lines = (root / "images.txt").read_text().splitlines()
    (root / "images.txt").write_text("\n".join(lines[::-1]) + "\n\n")
    turned = opened("cub200", root)
    assert pairs(turned.train, turned.classes) == pairs(plain.train, plain.classes)[::-1]
    assert turned.digest == plain.digest


@pytest.mark.parametrize("layout", ["published", "labels in the devkit", "Kaggle"])
def test_stanford_cars(tmp_path, layout):
    root = write_toy("cars", tmp_path)
    labelled = root / "cars_test_annos_withlabels.mat"
    if layout == "labels in the devkit":
        labelled = labelled.rename(root / "devkit" / labelled.name)
    if layout == "Kaggle":
        for folder in ("cars_train", "cars_test"):
            (root / folder).rename(root / "images")
            (root / folder).mkdir()
            (root / "images").rename(root / folder / folder)
    data = opened("cars", root)
    assert data.classes == NAMES
    for split, path in ((data.train, root / "devkit" / "cars_train_annos.mat"), (data.val, labelled)):
        entries = loadmat(path)["annotations"][0]
        assert list(split.names) == [str(entry["fname"][0]) for entry in entries]
        assert split.labels.tolist() == [int(entry["class"][0, 0]) - 1 for entry in entries]
    assert data.train.names[:2] == ["00001.jpg", "00002.jpg"]
    assert np.bincount(data.train.labels).tolist() == [14] * 10
    everything = list(toy_images("cars"))
    first = everything[np.random.default_rng(1).permutation(200)[0]]
    split = data.train if first.for_training else data.val
    assert split.labels[0] == first.digit
    assert_shows(split, 0, first.image)


def test_dtd(tmp_path):
    root = write_toy("dtd", tmp_path)
    data = opened("dtd", root)
    assert data.classes == tuple(sorted(NAMES))
    assert list(data.train.names) == (root / "labels" / "train1.txt").read_text().split()
    assert list(data.val.names) == (root / "labels" / "test1.txt").read_text().split()
    assert all(name.startswith(f"{kind}/") for name, kind in pairs(data.val, data.classes))
    left_out = set((root / "labels" / "val1.txt").read_text().split())
    assert len(left_out) == 20
    assert not left_out & {*data.train.names, *data.val.names}
    third = opened("dtd", root, partition=3)
    assert list(third.train.names) == (root / "labels" / "train3.txt").read_text().split()
    assert set(third.train.names) != set(data.train.names)
    for wrong in (0, 11, "1", True):
        with pytest.raises(UsageError, match="`partition` is"):
            opened("dtd", root, partition=wrong)


def test_oxford_pets(tmp_path):
    root = write_toy("pets", tmp_path)
    lists = root / "annotations" / "trainval.txt"
    lists.write_text("#Image CLASS-ID SPECIES BREED ID\n" + lists.read_text())
    data = opened("pets", root)
    assert data.classes == tuple(name if digit % 2 else name.capitalize() for digit, name in enumerate(NAMES))
    listed = {True: [], False: []}
    for one in toy_images("pets"):
        kind = data.classes[one.digit]
        listed[one.for_training].append((f"{kind}_{one.number + 1}.jpg", kind))
    assert pairs(data.train, data.classes) == listed[True]
    assert pairs(data.val, data.classes) == listed[False]


@pytest.mark.parametrize("below", ["", "101_ObjectCategories"])
def test_caltech101(tmp_path, below):
    root = write_toy("caltech101", tmp_path)
    data = opened("caltech101", root / below)
    assert data.classes == tuple(sorted(["BACKGROUND_Google", *NAMES[1:]]))
    stream = np.random.RandomState(1234)
    for kind in data.classes:
        names = [f"{kind}/image_{number + 1:04d}.jpg" for number in range(38)]
        train = stream.choice(names, 30, replace=False)
        assert [name for name, own in pairs(data.train, data.classes) if own == kind] == sorted(train)
        assert [name for name, own in pairs(data.val, data.classes) if own == kind] == sorted({*names} - {*train})


def test_the_order_of_tfds():
    keys = [f"tumor/{number}.tif" for number in range(50)]
    plain = sorted(keys, key=lambda key: int.from_bytes(hashlib.md5(b"train" + key.encode()).digest(), "big"))
    assert [keys[index] for index in tfds_order(keys)] == plain


@pytest.mark.parametrize(("name", "count"), [("colorectal", 112), ("uc_merced", 140)])
def test_sets_divided_by_md5(tmp_path, name, count):
    root = write_toy(name, tmp_path)
    data = opened(name, root)
    keys = {}
    for path in root.rglob("*.tif"):
        folder = path.parent.name
        key = f"{folder[3:].lower()}/{path.name}" if name == "colorectal" else path.name
        keys[hashlib.md5(f"train{key}".encode()).hexdigest()] = (f"{folder}/{path.name}", folder)
    ordered = [keys[digest] for digest in sorted(keys)]
    if name == "colorectal":
        assert data.classes == ("tumor", "stroma", "complex", "lympho", "debris", "mucosa", "adipose", "empty")
        ordered = [(path, folder[3:].lower()) for path, folder in ordered]
    assert pairs(data.train, data.classes) == ordered[:count]
    assert pairs(data.val, data.classes) == ordered[count:]
    with Image.open(data.train.path(3)) as image:
        assert data.train.read(3).tobytes() == image.convert("RGB").tobytes()


def test_the_number_of_training_images(tmp_path):
    root = write_toy("uc_merced", tmp_path)
    for wrong in (None, 0, "140", True):
        with pytest.raises(UsageError, match="`train_images` is"):
            opened("uc_merced", root, train_images=wrong)
    with pytest.raises(UserError, match="200 images, of which `train_images` takes 200"):
        opened("uc_merced", root, train_images=200)
    with pytest.raises(UserError, match=r"class\(es\) without training images"):
        opened("uc_merced", root, train_images=5)


@pytest.mark.parametrize(
    ("name", "toy", "place", "complaint"),
    [
        ("cub200", "cub200", "CUB_200_2011", "train images: expected 5994, found 140"),
        ("cub200", "cub200", "cub200/CUB_200_2011", "val classes: expected 200, found 10"),
        ("caltech101", "caltech101", "caltech-101", "train images: expected 3060, found 300"),
        ("caltech101", "caltech101", "", "train images: expected 3060, found 300"),
        ("stanford_cars", "cars", "stanford_cars", "val images: expected 8041, found 60"),
        ("cifar100", "cifar100", "cifar100/cifar-100-python", "train images: expected 50000, found 140"),
        ("dtd", "dtd", "dtd/dtd", "train images: expected 1880, found 120"),
        ("colorectal_histology", "colorectal", "Kather_texture_2016_image_tiles_5000", "`train_images` takes 2000"),
        ("oxford_pets", "pets", "oxford-iiit-pet", "train images: expected 3680, found 140"),
        ("uc_merced", "uc_merced", "UCMerced_LandUse", "`train_images` takes 1000"),
    ],
)
def test_found_in_the_data_folder_and_counted(tmp_path, name, toy, place, complaint):
    write_toy(toy, tmp_path / place)
    with pytest.raises(UserError) as error:
        open_classification(resolve_dataset(name), tmp_path)
    assert complaint in str(error.value)


def test_classes_that_matlab_keeps_as_floating_point_numbers(tmp_path):
    root = write_toy("cars", tmp_path)
    before = opened("cars", root)
    path = root / "devkit" / "cars_train_annos.mat"
    entries = loadmat(path)["annotations"]
    for entry in entries[0]:
        entry["class"] = float(entry["class"][0, 0])
    savemat(path, {"annotations": entries})
    assert opened("cars", root).train.labels.tolist() == before.train.labels.tolist()


def lines_of(path, change):
    """Rewrites the lines of a list."""
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def spoil_cub200(root, how):
    if how == "missing list":
        (root / "classes.txt").unlink()
    elif how == "malformed":
        lines_of(root / "images.txt", lambda lines: [*lines[:4], "5", *lines[5:]])
    elif how == "not UTF-8":
        (root / "classes.txt").write_bytes(b"1 \xff\n")
    elif how == "id twice":
        lines_of(root / "image_class_labels.txt", lambda lines: [*lines, lines[6]])
    elif how == "other ids":
        lines_of(root / "train_test_split.txt", lambda lines: lines[:-2])
    elif how == "label":
        lines_of(root / "image_class_labels.txt", lambda lines: [lines[0], "2 11", *lines[2:]])
    elif how == "split":
        lines_of(root / "train_test_split.txt", lambda lines: [lines[0], "2 2", *lines[2:]])
    elif how == "image twice":
        lines_of(root / "images.txt", lambda lines: [*lines[:-1], "200 " + lines[0].split()[1]])
    elif how == "missing images":
        for path in sorted((root / "images" / "003.Two").iterdir())[:7]:
            path.unlink()
    elif how == "no training":
        lines_of(root / "train_test_split.txt", lambda lines: [f"{n} {int(n > 20)}" for n in range(1, 201)])
    elif how == "numbering":
        lines_of(root / "classes.txt", lambda lines: [*lines[:-1], "12 012.Nine"])
    return root


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ("missing list", ["missing, empty or unreadable: classes.txt"]),
        ("malformed", ["images.txt:5: '5' is not of the form `ID VALUE`"]),
        ("not UTF-8", ["classes.txt: cannot be read: not UTF-8"]),
        ("id twice", ["image_class_labels.txt:201: id 7 stands in", "image_class_labels.txt:7 already"]),
        ("other ids", ["images.txt and train_test_split.txt do not list the same images: ids 199, 200"]),
        ("label", ["image_class_labels.txt:2: class '11' is outside 1..10"]),
        ("split", ["train_test_split.txt:2: '2' is neither 1 (training) nor 0 (test)"]),
        ("image twice", ["images.txt: 1 image(s) listed more than once", "Zero_0001_1.jpg"]),
        ("missing images", ["7 file(s)", "and 2 more", "003.Two/Two_0001_41.jpg", "images.txt names them"]),
        ("no training", ["images.txt: 1 class(es) without training images: 001.Zero"]),
        ("numbering", ["classes.txt: the classes are not numbered from 1 to 10"]),
    ],
)
def test_what_is_wrong_with_cub200(tmp_path, how, parts):
    with pytest.raises(UserError) as error:
        opened("cub200", spoil_cub200(write_toy("cub200", tmp_path), how))
    for part in parts:
        assert part in str(error.value)


def spoil_cars(root, how):
    train = root / "devkit" / "cars_train_annos.mat"
    if how == "unlabelled test":
        (root / "cars_test_annos_withlabels.mat").unlink()
    elif how == "damaged":
        train.write_bytes(train.read_bytes()[:400])
    elif how == "text":
        train.write_text("no MATLAB file at all" * 20)
    elif how == "no classes":
        (root / "cars_test_annos_withlabels.mat").write_bytes((root / "devkit" / "cars_test_annos.mat").read_bytes())
    elif how == "other variable":
        savemat(train, {"annos": np.arange(3)})
    elif how == "fewer classes":
        savemat(root / "devkit" / "cars_meta.mat", {"class_names": np.array(NAMES[:9], dtype=object)})
    elif how == "missing image":
        (root / "cars_train" / "00007.jpg").unlink()
    return root


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ("unlabelled test", ["cars_test_annos_withlabels.mat: there is no such file (nor in devkit/)", "no labels"]),
        ("damaged", ["cars_train_annos.mat: cannot be read as a MATLAB file"]),
        ("text", ["cars_train_annos.mat: cannot be read as a MATLAB file"]),
        ("no classes", ["cars_test_annos_withlabels.mat: `annotations` lacks the fields"]),
        ("other variable", ["cars_train_annos.mat", "it has no variable 'annotations'"]),
        ("fewer classes", ["cars_train_annos.mat, 0", "class '10' is outside 1..9"]),
        ("missing image", ["1 file(s)", "cars_train/00007.jpg: No such file", "cars_train_annos.mat names them"]),
    ],
)
def test_what_is_wrong_with_cars(tmp_path, how, parts):
    with pytest.raises(UserError) as error:
        opened("cars", spoil_cars(write_toy("cars", tmp_path), how))
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("name", "file", "line", "complaint"),
    [
        ("dtd", "labels/train1.txt", "one_0001.jpg", "train1.txt:3: 'one_0001.jpg' is not of the form `CLASS/IMAGE`"),
        ("dtd", "labels/test1.txt", "ten/ten_0001.jpg", "test1.txt:3: 'ten' is not a class"),
        ("dtd", "labels/train1.txt", "one/one_0099.jpg", "images/one/one_0099.jpg: No such file"),
        ("pets", "annotations/test.txt", "Zero_20 1 1", "test.txt:3: 'Zero_20 1 1' is not of the form"),
        ("pets", "annotations/test.txt", "Zero_17 2 1 1", "test.txt:3: Zero_17 is of class 2, unlike a line before"),
        ("pets", "annotations/test.txt", "Zero_17 12 1 1", "test.txt:3: Zero_17 is of class 12, unlike"),
        ("pets", "annotations/test.txt", "ten_17 12 1 1", "the classes are not numbered from 1 to 11"),
        ("pets", "annotations/test.txt", "Zero_1 1 1 1", "1 image(s) listed more than once"),
        ("pets", "annotations/test.txt", "Zero_99 1 1 1", "images/Zero_99.jpg: No such file"),
    ],
)
def test_what_is_wrong_with_a_line(tmp_path, name, file, line, complaint):
    root = write_toy(name, tmp_path)
    lines_of(root / file, lambda lines: [*lines[:2], line, *lines[3:]])
    with pytest.raises(UserError) as error:
        opened(name, root)
    assert complaint in str(error.value)


def test_lists_that_are_not_there(tmp_path):
    root = write_toy("dtd", tmp_path)
    (root / "labels" / "test1.txt").unlink()
    with pytest.raises(UserError, match=r"test1\.txt: cannot be read: No such file"):
        opened("dtd", root)


def test_too_few_images_of_a_class(tmp_path):
    root = write_toy("caltech101", tmp_path)
    for path in sorted((root / "101_ObjectCategories" / "five").iterdir())[:8]:
        path.unlink()
    with pytest.raises(UserError, match="five: 30 images, where 30 for training and one to score"):
        opened("caltech101", root)


def test_other_names_give_no_split(tmp_path):
    """Converted files have other md5 sums, so another split."""
    root = write_toy("uc_merced", tmp_path)
    path = root / "Images" / "four" / "four03.tif"
    path.rename(path.with_suffix(".png"))
    with pytest.raises(UserError, match=r"four03\.png.*goes by the names of the published \.tif"):
        opened("uc_merced", root)


def test_a_missing_tissue(tmp_path):
    root = write_toy("colorectal", tmp_path)
    (root / "08_EMPTY").rename(tmp_path / "away")
    with pytest.raises(UserError, match="missing, empty or unreadable: 08_EMPTY/"):
        opened("colorectal", root)


def test_a_damaged_image_is_named(tmp_path):
    root = write_toy("colorectal", tmp_path)
    path = sorted((root / "01_TUMOR").iterdir())[4]
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError) as error:
        opened("colorectal", root)
    assert str(path) in str(error.value)
