"""The published layouts, read from the files of the toy sets, which bear the real names."""

import hashlib
import pickle
import pickletools
import shutil

import numpy as np
import pytest
from scipy.io import loadmat

from tests.transfer.data.layouts import spec, write_toy
from transfer.core.errors import UserError
from transfer.data.classification import open_classification
from transfer.data.formats.published import LABELLED
from transfer.data.toy.digits import DIGIT_NAMES, toy_images

FORMATS = {"cars": "stanford_cars", "colorectal": "colorectal_histology", "pets": "oxford_pets", "cifar100": "cifar"}
MATLAB = "devkit/cars_train_annos.mat"
OPTIONS = {"colorectal": {"train_images": 112}, "uc_merced": {"train_images": 140}}


def opened(name, root, counts=None, **options):
    options = {**OPTIONS.get(name, {}), **options}
    return open_classification(spec(FORMATS.get(name, name), root, counts=counts, **options), None)


def pairs(split, classes):
    """[(name, class name)]."""
    return [(name, classes[label]) for name, label in zip(split.names, split.labels.tolist(), strict=True)]


def drawn(name, listed):
    """[training, validation] images of a toy set; `listed` gives one's name and class name from place and image."""
    everything = list(enumerate(toy_images(name)))
    return [[listed(*one) for one in everything if one[1].for_training is trained] for trained in (True, False)]


@pytest.mark.parametrize("name", ["cub200", "pets"])
def test_lists_of_paths_and_numbers(tmp_path, name):
    root = write_toy(name, tmp_path)
    if name == "pets":
        lists = root / "annotations" / "trainval.txt"
        lists.write_text("#Image CLASS-ID SPECIES BREED ID\n" + lists.read_text())
    data = opened(name, root)
    cub = [f"{digit + 1:03d}.{one.capitalize()}" for digit, one in enumerate(DIGIT_NAMES)]
    breeds = [one if digit % 2 else one.capitalize() for digit, one in enumerate(DIGIT_NAMES)]
    assert [*data.classes] == (cub if name == "cub200" else breeds)

    def listed(place, one):
        kind, number = data.classes[one.digit], one.number + 1
        path = f"{kind}/{kind[4:]}_{number:04d}_{place + 1}.jpg" if name == "cub200" else f"{kind}_{number}.jpg"
        return path, kind

    assert [pairs(split, data.classes) for split in (data.train, data.val)] == drawn(name, listed)


@pytest.mark.parametrize("layout", ["published", "labels in the devkit, Kaggle"])
def test_stanford_cars(tmp_path, layout):
    root = write_toy("cars", tmp_path)
    labelled = root / "cars_test_annos_withlabels.mat"
    if layout != "published":
        labelled = labelled.rename(root / "devkit" / labelled.name)
        for folder in ("cars_train", "cars_test"):
            (root / folder).rename(root / "images")
            (root / folder).mkdir()
            (root / "images").rename(root / folder / folder)
    data = opened("cars", root)
    assert data.classes == DIGIT_NAMES
    for split, path in ((data.train, root / "devkit" / "cars_train_annos.mat"), (data.val, labelled)):
        entries = loadmat(path)["annotations"][0]
        assert list(split.names) == [str(entry["fname"][0]) for entry in entries]
        assert split.labels.tolist() == [int(entry["class"][0, 0]) - 1 for entry in entries]


def test_dtd(tmp_path):
    root = write_toy("dtd", tmp_path)
    data = opened("dtd", root)
    assert data.classes == tuple(sorted(DIGIT_NAMES))
    assert list(data.train.names) == (root / "labels" / "train1.txt").read_text().split()
    assert list(data.val.names) == (root / "labels" / "test1.txt").read_text().split()
    assert all(name.startswith(f"{kind}/") for name, kind in pairs(data.val, data.classes))
    (root / "labels" / "train1.txt").rename(root / "labels" / "test3.txt")
    (root / "labels" / "test1.txt").rename(root / "labels" / "train3.txt")
    (root / "labels" / "train1.txt").touch()
    (root / "labels" / "test1.txt").touch()
    third = opened("dtd", root, partition=3)
    assert (list(third.train.names), list(third.val.names)) == (list(data.val.names), list(data.train.names))


def test_gaps_in_the_numbers_of_classes_are_named(tmp_path):
    root = write_toy("pets", tmp_path)
    names = opened("pets", root).classes
    for path in (root / "annotations").iterdir():
        lines = path.read_text().splitlines()
        path.write_text("\n".join(line for line in lines if line.split()[1] not in ("3", "4")))
    data = opened("pets", root)
    assert data.notes == ("classes 1, 2, 5, ... 10 are numbered 0 to 7 (without 3, 4)",)
    assert data.classes == (*names[:2], *names[4:])
    assert all(name.startswith(kind) for name, kind in pairs(data.val, data.classes))


@pytest.mark.parametrize("below", ["", "101_ObjectCategories"])
def test_caltech101(tmp_path, below):
    root = write_toy("caltech101", tmp_path)
    data = opened("caltech101", root / below)
    assert data.classes == tuple(sorted(["BACKGROUND_Google", *DIGIT_NAMES[1:]]))
    stream = np.random.RandomState(1234)
    for kind in data.classes:
        names = [f"{kind}/image_{number + 1:04d}.jpg" for number in range(38)]
        train = stream.choice(names, 30, replace=False)
        assert [name for name, own in pairs(data.train, data.classes) if own == kind] == sorted(train)
        assert [name for name, own in pairs(data.val, data.classes) if own == kind] == sorted({*names} - {*train})


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
    for wrong in ({}, {"train_images": len(ordered)}):
        with pytest.raises(UserError, match=r": `train_images` is .*; it must be a number of images"):
            open_classification(spec(FORMATS.get(name, name), root, **wrong), None)


@pytest.fixture
def root(tmp_path):
    return write_toy("cifar100", tmp_path / "cifar-100-python")


def changed(path, **values):
    content = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps({**content, **values}, protocol=2))


def test_fine_labels_and_pixels(root):
    data = opened("cifar100", root)
    assert data.classes == DIGIT_NAMES
    everything = list(toy_images("cifar100"))
    for split, trained in ((data.train, True), (data.val, False)):
        part = [one for one in everything if one.for_training is trained]
        part = [part[place] for place in np.random.default_rng(1).permutation(len(part))]
        assert split.labels.tolist() == [one.digit for one in part]
        assert split.labels.dtype == np.int64
        assert all(split.read(index).tobytes() == one.image.tobytes() for index, one in enumerate(part))
        assert split.sizes.tolist() == [3072] * len(part)
    assert data.train.names[:2] == ["train/000000", "train/000001"]
    assert data.val.names[5] == "val/000005"
    assert data.train.place(7) == f"{root / 'train'}, row 7"


def test_cifar10_in_batches(root, tmp_path):
    new = tmp_path / "cifar-10-batches-py"
    new.mkdir()
    parts = {f"data_batch_{number + 1}": ("train", 28 * number) for number in range(5)} | {"test_batch": ("test", 0)}
    for name, (part, start) in parts.items():
        content, rows = pickle.loads((root / part).read_bytes()), slice(start, start + 28 if part == "train" else None)
        batch = {"data": content["data"][rows], "labels": content["fine_labels"][rows]}
        (new / name).write_bytes(pickle.dumps(batch, protocol=2))
    (new / "batches.meta").write_bytes(pickle.dumps({"label_names": list(DIGIT_NAMES)}, protocol=2))
    ten, hundred = opened("cifar100", new), opened("cifar100", root)
    assert ten.train.labels.tolist() == hundred.train.labels.tolist()
    assert ten.train.images.tobytes() == hundred.train.images.tobytes()
    assert ten.train.place(30) == f"{new / 'data_batch_2'}, row 2"


def python2(content):
    """What Python 2 and the numpy of 2009 wrote: texts and bytes are both byte strings, names are the old ones."""
    written, old = bytearray(pickle.dumps(content, protocol=3)), {"X": "T", "B": "T", "C": "U"}
    for kind, _, place in pickletools.genops(bytes(written)):
        written[place] = ord(old.get(kind.code, kind.code))
    written[1] = 2  # the protocol
    return bytes(written).replace(b"numpy._core", b"numpy.core")


def test_files_of_python_2(root):
    before = opened("cifar100", root)
    for name in ("train", "test", "meta"):
        content = pickle.loads((root / name).read_bytes())
        kept = {key: value for key, value in content.items() if not isinstance(value, str)}
        (root / name).write_bytes(python2(kept))
    after = opened("cifar100", root)
    assert after.classes == before.classes
    assert after.digest == before.digest
    assert after.train.images.tobytes() == before.train.images.tobytes()


def test_a_pickle_runs_no_code(root):
    (root / "train").write_bytes(f"cos\nmkdir\n(S'{root}/owned'\ntR.".encode())
    with pytest.raises(UserError, match=r"as a file of CIFAR \(UnpicklingError: it asks for os\.mkdir, which"):
        opened("cifar100", root)
    assert not (root / "owned").exists()


def line(file, text):
    """Write a text in the third line of a list."""

    def spoil(root):
        lines = (root / file).read_text().splitlines()
        (root / file).write_text("\n".join([*lines[:2], text, *lines[3:]]) + "\n")

    return spoil


def labels(*values):
    """Write other labels of the images to train on."""
    return lambda root: changed(root / "train", fine_labels=[*values])


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("cars", lambda root: (root / MATLAB).write_bytes(b"MATLAB"), f"{MATLAB}: cannot be read as a MATLAB file"),
        ("cars", lambda root: (root / LABELLED).unlink(), f"{LABELLED}: file not found"),
        ("cub200", lambda root: shutil.rmtree(root / "images" / "003.Two"), r"14 file\(s\)[\s\S]*images.txt names"),
        ("colorectal", lambda root: shutil.rmtree(root / "08_EMPTY"), "missing, empty or unreadable: 08_EMPTY/"),
        ("cub200", line("images.txt", "3"), "images.txt:3: '3' is not of the form `N VALUE`"),
        ("cub200", line("image_class_labels.txt", "2 1"), "do not list the same images"),
        ("dtd", line("labels/train1.txt", "one/one_0099.jpg"), "images/one/one_0099.jpg: No such file"),
        ("pets", line("annotations/test.txt", "Zero_20 1 1"), "test.txt:3: 'Zero_20 1 1' is not of the form"),
        ("cifar100", lambda root: (root / "train").write_bytes(b"\x80"), "train: cannot be read as a file of CIFAR"),
        ("cifar100", labels(0, 1, 10, *[0] * 137), "train, row 2: label 10 is outside"),
        ("cifar100", labels(0, 1), "train: not images with rows of 3072 bytes and as"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, spoil, said):
    root = write_toy(name, tmp_path / "set")
    spoil(root)
    with pytest.raises(UserError, match=said):
        opened(name, root)
