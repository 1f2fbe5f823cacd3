"""Tiny datasets in the layouts of Market-1501 and MSMT17, under the names the real files have."""

from pathlib import Path

from tests.transfer.data.layouts import encoded
from transfer.data.spec import DatasetSpec

MARKET = {
    "bounding_box_train": ["0007_c2s3_070952_01.jpg", "0002_c1s1_000451_03.jpg", "0002_c3s1_000551_01.jpg"],
    "query": ["0003_c1s6_015971_00.jpg", "0005_c2s1_000151_00.jpg"],
    "bounding_box_test": [
        "0003_c3s3_064744_04.jpg",
        "0003_c1s6_015996_02.jpg",
        "0005_c4s1_000401_03.jpg",
        "0005_c6s1_000403_03.jpg",
        "0000_c1s1_000151_01.jpg",
        "0000_c4s6_038641_04.jpg",
        "0000_c2s6_038642_04.jpg",
        "-1_c1s1_000401_03.jpg",
        "-1_c5s3_000402_01.jpg",
    ],
}
MSMT17 = {
    "train": ["0001/0001_004_07_0302noon_0010_2.jpg 1", "0000/0000_000_01_0303morning_0008_0.jpg 0"],
    "val": ["0000/0000_003_15_0303morning_0020_0.jpg 0"],
    "query": ["0000/0000_001_03_0303morning_0031_1.jpg 0"],
    "gallery": ["0000/0000_002_14_0303afternoon_0031_1.jpg 0", "0001/0001_000_03_0303morning_0031_1.jpg 1"],
}


def draw(path: Path) -> None:
    """A small JPEG; every path gives another image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(*path.name.encode()))


def replaced(image: Path) -> None:
    """Another JPEG in the place of one, of as many bytes; what is done twice is undone."""
    content = bytearray(image.read_bytes())
    content[-3] ^= 1  # a bit of the last pixels
    image.write_bytes(content)


def market(root: Path, files: dict[str, list[str]] | None = None) -> Path:
    for folder, names in (files or MARKET).items():
        for name in names:
            draw(root / folder / name)
        (root / folder / "Thumbs.db").write_bytes(b"not an image")
    return root


def msmt17(root: Path, *, train: str = "train", test: str = "test") -> Path:
    for split, lines in MSMT17.items():
        for line in lines:
            draw(root / (train if split in ("train", "val") else test) / line.split()[0])
        (root / f"list_{split}.txt").write_text("".join(f"{line}\n" for line in lines))
    return root


def spec(root: Path, kind: str = "market1501", **facts: object) -> DatasetSpec:
    return DatasetSpec(name="tiny", format=kind, root=(str(root),), **facts)  # type: ignore[arg-type]
