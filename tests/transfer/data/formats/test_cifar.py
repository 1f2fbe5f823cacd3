import pickle
import re
import struct

import numpy as np
import pytest

from tests.transfer.data.layouts import spec, write_toy
from transfer.core.errors import UserError
from transfer.data.classification import open_classification
from transfer.data.toy.digits import NAMES, toy_images


@pytest.fixture
def root(tmp_path):
    return write_toy("cifar100", tmp_path / "cifar-100-python")


def opened(root, **given):
    return open_classification(spec("cifar", root), None, **given)


def changed(path, **values):
    content = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps({**content, **values}, protocol=2))


def test_fine_labels_and_pixels(root):
    data = opened(root)
    assert data.classes == NAMES
    everything = list(toy_images("cifar100"))
    for split, trained in ((data.train, True), (data.val, False)):
        part = [one for one in everything if one.for_training is trained]
        part = [part[place] for place in np.random.default_rng(1).permutation(len(part))]
        assert split.labels.tolist() == [one.digit for one in part]
        assert split.labels.dtype == np.int64
        assert all(split.read(index).tobytes() == one.image.tobytes() for index, one in enumerate(part))
        assert split.sizes.tolist() == [3072] * len(part)
    assert data.train.images.shape == (140, 32, 32, 3)
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
    (new / "batches.meta").write_bytes(pickle.dumps({"label_names": list(NAMES)}, protocol=2))
    ten, hundred = opened(new), opened(root)
    assert ten.train.labels.tolist() == hundred.train.labels.tolist()
    assert ten.train.images.tobytes() == hundred.train.images.tobytes()
    assert ten.train.place(30) == f"{new / 'data_batch_2'}, row 2"


def python2(content):
    """What Python 2 and the numpy of 2009 wrote: texts and bytes are both byte strings, names are the old ones."""

    def text(value):
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value):
        return b"J" + struct.pack("<i", value)

    def array(value):
        start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\nt" + text(b"b") + b"tR"
        kind = b"cnumpy\ndtype\n(" + text(b"u1") + b"I0\nI1\ntR(I3\n" + text(b"|") + b"NNNI-1\nI-1\nI0\ntb"
        shape = b"(" + b"".join(map(number, value.shape)) + b"t"
        return start + b"(I1\n" + shape + kind + b"I00\n" + text(value.tobytes()) + b"tb"

    written = b"\x80\x02}("
    for key, value in content.items():
        listed = (text(entry.encode()) if isinstance(entry, str) else number(entry) for entry in value)
        written += text(key.encode())
        written += array(value) if isinstance(value, np.ndarray) else b"](" + b"".join(listed) + b"e"
    return written + b"u."


def test_files_of_python_2(root):
    before = opened(root)
    for name in ("train", "test", "meta"):
        content = pickle.loads((root / name).read_bytes())
        kept = {key: value for key, value in content.items() if not isinstance(value, str)}
        (root / name).write_bytes(python2(kept))
    after = opened(root)
    assert after.classes == before.classes
    assert after.digest == before.digest
    assert after.train.images.tobytes() == before.train.images.tobytes()


class Evil:
    """Writes a file when it is unpickled by the plain unpickler."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w').write('owned')",)


def test_a_pickle_runs_no_code(root, tmp_path):
    (root / "train").write_bytes(pickle.dumps({"data": Evil(tmp_path / "owned")}, protocol=2))
    with pytest.raises(UserError, match=r"as a file of CIFAR \(UnpicklingError: it asks for \w+\.exec, which"):
        opened(root)
    assert not (tmp_path / "owned").exists()
    pickle.loads((root / "train").read_bytes())
    assert (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda root: (root / "train").write_bytes(b"\x80\x02}"), "train: cannot be read as a file of CIFAR"),
        (lambda root: changed(root / "train", fine_labels=[0, 1, 10] + [0] * 137), "train, row 2: label 10 is outside"),
        (lambda root: changed(root / "train", fine_labels=[0, 1]), "train: not images with rows of 3072 bytes and as"),
    ],
)
def test_what_is_wrong_is_named(root, spoil, complaint):
    spoil(root)
    with pytest.raises(UserError, match=re.escape(complaint)):
        opened(root)
