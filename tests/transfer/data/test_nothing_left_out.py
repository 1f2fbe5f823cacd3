"""Whatever programs write into a folder: a file is used, or counted as left out once, or the set is refused."""

import re
from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.transfer.data.layouts import saved
from transfer.core.errors import UserError
from transfer.data.layouts import SPLITS
from transfer.data.reid.market1501 import LISTS
from transfer.data.spec import resolve_dataset
from transfer.doctor.datasets import open_any

drawn = settings(max_examples=60, deadline=None, derandomize=True)
Tree = dict[str, bytes | str]
"""Contents of files, or targets of links, by path."""


def few(*names: str) -> st.SearchStrategy[list[str]]:
    """Draw up to three of these."""
    return st.lists(st.sampled_from(names), max_size=3, unique=True)


PROGRAMS = ("@eaDir", "__MACOSX", ".thumbnails", "#recycle", "$RECYCLE.BIN", ".git")
LEAVINGS = (*(f"{name}/0.jpg" for name in PROGRAMS), "@eaDir/1.jpg/SYNOPHOTO_THUMB_XL.jpg", "._0.jpg", ".DS_Store")
LEAVINGS += ("Thumbs.db", "desktop.ini", ".0.png", "readme.txt", "0.json", "notes/todo.txt", "0.jpg.bak", "clip.mp4")
LINKS = {"up": "..", "here": "."}
STEMS, ENDINGS = ("0", "1", "o\u0308l", "\u00f6l", "犬", "a b", "v1.2"), (".jpg", ".JPG", ".png", ".PNG", ".tif")
FILES = few(*(stem + ending for stem in STEMS for ending in ENDINGS)).map(lambda names: names or ["0.jpg"])
CLASSES = few("cat", "cat/far", "T\u00fcr", "Tu\u0308r", "0", "10", "my dog").map(lambda names: names or ["cat"])
SETS = few(*chain(*SPLITS.values())).map(lambda names: ["train", *names])
PERSONS = st.sampled_from((["train", "query", "gallery"], ["query", "gallery"], ["train", "query", "gallery", "more"]))
LISTED = {f"lists/{name}.txt" for name in chain(*SPLITS.values())}
KINDS = {".png": "PNG", ".bmp": "BMP", ".tif": "TIFF", ".jpg": "JPEG"}


def picture(name: str, number: int) -> bytes:
    """Return an image in a file that no other number gives."""
    return saved(Image.new("RGB", (2, 2)), KINDS[name[-4:].lower()]) + number.to_bytes(2)


@st.composite
def littered(draw: st.DrawFn, tree: Tree) -> Tree:
    """Draw what is left beside the files of a tree, which become pictures where they are empty."""
    full = {name: content or picture(name, number) for number, (name, content) in enumerate(tree.items())}
    places = sorted({str(place) for name in tree for place in Path(name).parents})
    left = draw(st.lists(st.tuples(st.sampled_from(places), st.sampled_from((*LEAVINGS, *LINKS))), max_size=6))
    return {str(Path(place, name)): LINKS.get(name, b"{}") for place, name in left} | full


@st.composite
def folders(draw: st.DrawFn) -> Tree:
    """Draw class folders, folders of persons, or pictures in no such order, in splits or not."""
    splits, classes = draw(st.tuples(PERSONS, CLASSES) | st.tuples(SETS, CLASSES | st.sampled_from(([""], ["more"]))))
    splits = splits if len(splits) > 1 or classes != ["more"] else [""]
    names = [Path(split, name, file) for split in splits for name in classes for file in draw(FILES)]
    return draw(littered(dict.fromkeys([*map(str, names), *draw(few("drafts/0.jpg", "0.jpg"))], b"")))


@st.composite
def written(draw: st.DrawFn, lines: list[str]) -> bytes:
    """Draw how programs write the lines of a list."""
    end, encoding = draw(st.sampled_from(("\n", "\r\n", "\r"))), draw(st.sampled_from(("utf-8", "utf-8-sig", "utf-16")))
    return "".join(line + draw(st.sampled_from(("", end, " ", "\t"))) + end for line in lines or [""]).encode(encoding)


@st.composite
def masked(draw: st.DrawFn) -> Tree:
    """Draw images with masks, in splits or lists or neither."""
    tree: Tree = dict.fromkeys(draw(few("masks/a.png", "more/0.png")), b"")
    tree["classes.txt"] = draw(written(["soil", "öl"]))
    listed, splits, ending = draw(st.booleans()), draw(SETS), draw(st.sampled_from((".png", ".PNG", ".bmp", ".jpg")))
    for split in splits:
        stems = {file[:-4]: file for file in draw(FILES)}
        for stem, file in stems.items():
            values = b"\0\1" + draw(st.sampled_from((b"\0\1", b"\0\xff", b"\xff\xff")))
            mode = "L" if ending == ".jpg" else draw(st.sampled_from("LLP"))
            mask = Image.frombytes("L", (2, 2), values).convert(mode)
            place = "" if listed or len(splits) == 1 else f"{split}/"
            tree |= {f"images/{place}{file}": b"", f"masks/{place}{stem}{ending}": saved(mask, KINDS[ending.lower()])}
        if listed:
            tree[f"lists/{split}.txt"] = draw(written(sorted(stems)[draw(st.integers(0, 1)) :]))
    return draw(littered(tree))


def opened(root: Path, tree: Tree, keys: str = "") -> Any:
    """Write a tree and open it as the doctor does; None where it is refused."""
    for file, content in tree.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).symlink_to(content) if isinstance(content, str) else (root / file).write_bytes(content)
    (yaml := root.with_name("set.yaml")).write_text(f"root: {root}\n{keys}")
    refused = ""
    try:
        return open_any(resolve_dataset(str(yaml if keys else root)), None)
    except UserError as error:
        refused = str(error).removeprefix("set: ")
    parts = {part for name in tree for part in name.split("/") if part[2:]}
    assert any(part in refused for part in (str(root), *parts)), refused
    return None


def used(root: Path, data: Any) -> tuple[set[Path], set[Path]]:
    """Return the files of pictures and masks, and the folders in which they are looked for."""
    if hasattr(data, "gallery"):
        files = {Path(sample.path) for part in LISTS for sample in getattr(data, part)}
        return files, {root / part for part in LISTS}
    splits = [part for one in (data.train, data.val) if one for part in (one, *one.parts().values())]
    return {Path(one.path(row)) for one in splits for row in range(len(one))}, {one.folder for one in splits}


def check(root: Path, data: Any, lists: Collection[str] = ()) -> None:
    """Check that what is not used is counted or named, once: a folder that is not read as one."""
    files, read = used(root, data)
    inside = {*(path.resolve() for path in files), *(root / name for name in lists)}
    read |= {(root / name).parent for name in lists if "/" in name}
    left = set()
    for path in root.rglob("*"):
        if path.is_symlink() or (path.is_file() and path not in inside):
            above = [part for part in reversed(path.parents) if root in part.parents]
            known = read | {place for one in read for place in one.parents}
            apart = [part for part in above if part not in known and not read & {*part.parents}]
            left.add(next((part for part in above if part.name in PROGRAMS or part in apart), path).relative_to(root))
    said = {name for note in data.notes if "skipped" not in note for name in re.split(", | ", note)}
    left = {name for name in left if not {f"{name}/", re.sub("^masks", "images", f"{name}/")} & said}
    assert sum(map(int, re.findall(r"(\d+) skipped", "\n".join(data.notes)))) == len(left), (left, data.notes)


@given(tree=folders())
@drawn
def test_folders(tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> None:
    root = tmp_path_factory.mktemp("folders") / "set"
    if data := opened(root, tree):
        check(root, data)


@given(tree=masked())
@drawn
def test_masks(tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> None:
    keys = "format: masks\nimages: images\nmasks: masks\nlists: lists/{}.txt\noverlap: allow\n"
    root = tmp_path_factory.mktemp("masks") / "set"
    if data := opened(root, tree, keys if LISTED & {*tree} else ""):
        check(root, data, ["classes.txt", *LISTED])
        for split in filter(None, (data.train, data.val)):
            void = split.values[255] if "255, which is ignored" in str(data.notes) else 0
            assert 4 * len(split) == split.of_labels().sum() + void


@given(data=st.data())
@drawn
def test_lists_of_persons(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A list says what belongs to a set: each of its lines is used, or counted."""
    names = st.sampled_from(("0.jpg", "a b.png", "犬/1.JPG", "to\u0308/2.jpg"))
    cells = st.tuples(names, *map(st.sampled_from, (("1", "2", "-1"), "01", (*LISTS, "val", "Query"))))
    parts, mark = data.draw(st.sampled_from((LISTS, LISTS[1:]))), data.draw(st.sampled_from((",", " ", "\t")))
    rows = [("5.png", "1", "0", "train"), ("6.png", "1", "0", "train")]
    rows += [("7.png", "1", "0", "query"), ("8.png", "1", "1", "gallery")]
    rows += data.draw(st.lists(cells, max_size=6, unique_by=lambda row: row[0]))
    tree: Tree = {f"pictures/{name}": picture(name, number) for number, (name, *_) in enumerate(rows)}
    tree["all.txt"] = data.draw(written([mark.join(row) for row in rows]))
    keys = "format: reid_lists\nimages: pictures/{}\ncolumns: image identity camera part\n"
    root = tmp_path_factory.mktemp("lists") / "set"
    found = opened(root, tree, keys + "".join(f"{part}: all.txt\n" for part in parts))
    skipped = sum(map(int, re.findall(r"(\d+) lines skipped", "\n".join(found.notes))))
    assert len(used(root, found)[0]) + found.counts["junk"] + skipped == len(rows)
