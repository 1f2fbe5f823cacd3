"""Images that are replaced after their data set was opened are refused when they are read; touched ones are not."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from backbones.data import classification
from backbones.data.loading.loader import unwrap_worker_errors
from backbones.data.spec import DatasetSpec
from backbones.data.splits import contents
from backbones.data.splits.dataset import SplitDataset
from backbones.data.splits.packed_names import PackedNames
from backbones.data.splits.split import FileSplit
from backbones.data.splits.subsets import content_digests
from backbones.errors import Replaced, UserError

NAMES = ["a/0.bmp", "a/1.bmp", "b/0.bmp"]
READS: dict[str, Callable[[FileSplit, int], object]] = {
    "decoded": lambda split, index: split.decoded(index).tobytes(),
    "encoded": lambda split, index: split.encoded(index),
    "fast": lambda split, index: split.read_pixels(index).numpy().tobytes(),
    "content digest": lambda split, index: split.content_digest(index),
}


def bitmap(shade: int) -> bytes:
    """Images of equal size have as many bytes."""
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, shade, shade)).save(stream, "BMP")
    return stream.getvalue()


@pytest.fixture
def split(tmp_path: Path) -> FileSplit:
    for row, name in enumerate(NAMES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bitmap(row))
    sizes = np.array([len(bitmap(0))] * 3)
    split = FileSplit("val", np.array([0, 0, 1]), PackedNames(NAMES), sizes, tmp_path)
    split.contents("mine")
    return split


def replace(path: Path, content: bytes, *, in_place: bool) -> None:
    """Write another file with the same time."""
    state = path.stat()
    written = path if in_place else path.with_suffix(".new")
    written.write_bytes(content)
    os.utime(written, ns=(state.st_atime_ns, state.st_mtime_ns))
    written.replace(path)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_replaced_image_is_named(
    split: FileSplit, tmp_path: Path, read: Callable[[FileSplit, int], object], in_place: bool
) -> None:
    before = [read(split, row) for row in range(3)]
    replace(tmp_path / NAMES[1], bitmap(9), in_place=in_place)
    assert [read(split, row) for row in (0, 2)] == [before[0], before[2]]
    for place, rows in ((1, split), (0, split.select(np.array([1])))):
        with pytest.raises(UserError, match=r"a/1.bmp: replaced while this command was at work; start it again"):
            read(rows, place)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_file_that_was_copied_over_itself_is_read(
    split: FileSplit, tmp_path: Path, read: Callable[[FileSplit, int], object]
) -> None:
    before = read(split, 1)
    replace(tmp_path / NAMES[1], bitmap(1), in_place=False)
    (tmp_path / NAMES[1]).chmod(0o600)
    assert read(split, 1) == before


def test_an_image_replaced_while_it_is_read(split: FileSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from backbones.data.splits import known_files

    plain = known_files.read_image

    def cut_meanwhile(*arguments: object, **named: object) -> Image.Image:
        (tmp_path / NAMES[1]).write_bytes(bitmap(9)[:60])
        return plain(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(known_files, "read_image", cut_meanwhile)
    with pytest.raises(UserError, match=r"a/1.bmp: replaced while"):
        split.decoded(1)


def test_a_replaced_image_is_no_damaged_one(split: FileSplit, tmp_path: Path) -> None:
    data = SplitDataset(split, np.asarray, preload=False)  # type: ignore[arg-type]
    data.replace_damaged(3)
    replace(tmp_path / NAMES[1], bitmap(9), in_place=False)
    with pytest.raises(UserError, match=r"a/1.bmp: replaced while"):
        data[1]


def test_a_file_that_grew_since_it_was_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / name).write_bytes(bitmap(0))
    plain = classification._digest

    def grown(*arguments: object) -> str:
        (tmp_path / "train" / NAMES[1]).write_bytes(bitmap(0) + b"more")
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(classification, "_digest", grown)
    spec = DatasetSpec(name="mine", format="image_folder", root=(str(tmp_path),))
    with pytest.raises(UserError, match=r"1.bmp: replaced while"):
        classification.open_classification(spec, None)


def test_digests_of_a_file_that_another_process_has_read_since_are_not_taken(split: FileSplit, tmp_path: Path) -> None:
    """Features of these digests would be found in the store, and no image be read."""
    before = content_digests(split, np.arange(3))
    replace(tmp_path / NAMES[1], bitmap(9), in_place=False)
    other = FileSplit("val", split.labels, split.names, split.sizes, tmp_path)
    other.contents("mine")
    assert content_digests(other, np.arange(3))[1] != before[1]
    assert content_digests(split, np.arange(3)) == before


def test_a_file_replaced_while_its_digest_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.bmp").write_bytes(bitmap(0))
    plain = contents._read

    def replaced(path: str) -> bytes:
        replace(Path(path), bitmap(9), in_place=False)
        return plain(path)

    monkeypatch.setattr(contents, "_read", replaced)
    with pytest.raises(UserError, match=r"0.bmp: replaced while this command was at work"):
        contents.file_contents(tmp_path, ["0.bmp"], what="mine")


class Encoded(Dataset[int]):
    """The sizes of files that a process of the loader reads."""

    def __init__(self, split: FileSplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> int:
        return len(self.split.encoded(index))


def test_a_replaced_image_met_by_a_process_of_the_loader_is_named_once(split: FileSplit) -> None:
    path = split.folder / NAMES[1]
    path.write_bytes(bitmap(200))
    loader = DataLoader(Encoded(split), batch_size=1, num_workers=1)
    with pytest.raises(Replaced) as caught:
        list(unwrap_worker_errors(loader))
    assert str(caught.value) == f"{path}: replaced while this command was at work; start it again"


def test_an_image_on_a_failing_disk_is_an_error_in_words(split: FileSplit) -> None:
    path = split.folder / NAMES[1]
    path.unlink()
    path.symlink_to("/proc/self/mem")  # whose first byte cannot be read
    with pytest.raises(UserError, match=r"a/1.bmp: cannot be read: Input/output error"):
        split.encoded(1)
