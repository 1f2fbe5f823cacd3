import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from backbones.spec import resolve
from tasks.reid.task import TASK
from tests.support import context
from tests.tasks.support import smoke_options
from tests.transfer.data.reid.layouts import MARKET, draw, market, msmt17, replaced, spec
from transfer.core.errors import UserError
from transfer.data.reid.dataset import ReidData, join, open_reid, split_off
from transfer.data.reid.market1501 import MARKET_FOLDERS, matched_queries
from transfer.data.spec import resolve_dataset
from transfer.data.toy.people import Size, write_market


def names(samples):
    return [Path(sample.path).name for sample in samples]


@pytest.mark.parametrize("kind", ["market1501", "reid_lists", "reader"])
def test_market_junk_is_dropped_distractors_stay_and_what_is_passed_over_is_named(tmp_path, kind):
    root = market(tmp_path / "set")
    draw(root / "bounding_box_train" / "-1_c1s1_000401_07.jpg")
    lists = {}
    for part, folder in MARKET_FOLDERS.items():
        found = [re.match(r".*/(-?\d+)_c(\d)s.*", str(path)) for path in (root / folder).glob("*.jpg")]
        lists[part] = [(one[0], int(one[1]), int(one[2])) for one in found]
        (root / f"{part}.txt").write_text("".join(f"{name} {who} {camera}\n" for name, who, camera in lists[part]))
    (tmp_path / "r.py").write_text(f"def read(root):\n    return {lists}\n")
    options = {part: f"{part}.txt" for part in lists} | {"columns": "image identity camera"}
    for name in ("README.txt", "0003_c9s1_1_1.heic", ".DS_Store", "._0003_c1s6_015971_00.jpg"):
        (root / "query" / name).touch()
    draw(root / "query" / ".thumbnails" / "0003_c8s1_1_1.jpg")
    kinds = {"reid_lists": spec(root, kind, options=options), "reader": spec(root, f"{tmp_path}/r.py:read")}
    data = open_reid(kinds.get(kind, spec(root)), None)
    assert names(data.train) == sorted(MARKET["bounding_box_train"])
    assert names(data.gallery) == sorted(name for name in MARKET["bounding_box_test"] if not name.startswith("-1"))
    assert data.counts == {
        "train": {"images": 3, "identities": 2, "cameras": 3},
        "query": {"images": 2, "identities": 2, "cameras": 2},
        "gallery": {"images": 7, "identities": 2, "cameras": 5},
        "distractors": 3,
        "junk": 3,
        "ignored": 8 * (kind == "market1501"),
    }
    if kind == "market1501":
        skipped = ["6 skipped, left by programs", "2 skipped, not images"]
        assert [note.partition(":")[0] for note in data.notes[:2]] == skipped


VERI = {"train": "image_train", "query": "image_query", "gallery": "image_test"}
NUMBERS = {"pattern": r"(\d+)_\d+_(\d+)"}
BELOW = {"pattern": r"(?:.*/)?(-?\d+)_c(\d+)"}
LETTERS = {"pattern": r"(?P<camera>[AB])(\d)_(?P<identity>\w\d)"}


@pytest.mark.parametrize(
    ("options", "train", "query", "gallery", "people"),
    [
        ({}, "0002_c1s1_000451_03.jpg.jpg", "0003_c1s1_1_1.JPG", "0003_C02s1_1_1.webp", [(2, 1), (3, 1), (3, 2)]),
        ({}, "0001_c2_f0046182.jpg", "0005_c2_f0046985.jpg", "0005_c5_f0051781.jpg", [(1, 2), (5, 2), (5, 5)]),
        (BELOW, "0001_c1_1.png", "0003_c1_22.png", "sub/0003_c2_27.png", [(1, 1), (3, 1), (3, 2)]),
        ({}, "0000_c1_1.png", "0000_c14_2.png", "0000_c2_3.png", [(0, 1), (0, 14), (0, 2)]),
        (VERI, "0001_c001_1_0.jpg", "0002_c002_1_0.jpg", "0002_c020_1_0.jpg", [(1, 1), (2, 2), (2, 20)]),
        (NUMBERS, "0004_000_01_x.jpg", "0001_000_02_x.jpg", "0001_001_03_x.jpg", [(4, 1), (1, 2), (1, 3)]),
        (LETTERS, "A3_x1.png", "A3_x2.png", "B3_x2.png", [(1, 1), (2, 1), (2, 2)]),
    ],
)
def test_names_and_folders_of_other_sets(tmp_path, options, train, query, gallery, people):
    for part, name in {"train": train, "query": query, "gallery": gallery}.items():
        draw(tmp_path / (options.get(part) or MARKET_FOLDERS[part]) / name)
    data = open_reid(spec(tmp_path, options=options), None)
    found = [(sample.identity, sample.camera) for sample in (*data.query, *data.gallery)]
    assert (found, len(data.train), data.counts["distractors"]) == (people[1:], 1, 0)
    from_zero = ("identities start at 0: identity 0 is a person in the training or query images",)
    seen = (f"1 of 1 training identities are also in query or gallery: {Path(gallery).name}",)
    assert data.notes == from_zero * (people[1][0] == 0) + seen * (people[0][0] in dict(people[1:]))


@pytest.mark.parametrize("empty", [False, True])
def test_a_set_without_training_images_is_scored_only(tmp_path, empty):
    root = market(tmp_path / "set", {part: names for part, names in MARKET.items() if part != "bounding_box_train"})
    if empty:
        (root / "bounding_box_train").mkdir()
    data = open_reid(spec(root, counts={"train": {"images": 3}, "query": {"images": 2}}), None, subset=1)
    assert (data.train, len(data.query), data.notes[-1]) == ([], 1, "no training images: evaluation only")
    TASK.check(resolve("tiny"), data, smoke_options("reid", "--epochs", "0"), context())
    with pytest.raises(UserError, match="tiny: no training images; use --epochs 0"):
        TASK.check(resolve("tiny"), data, smoke_options("reid"), context())
    with pytest.raises(UserError, match="missing, empty or unreadable: other/"):
        open_reid(spec(root, options={"train": "other"}), None)


@pytest.mark.parametrize("kind", ["market1501", "reader"])
def test_without_cameras_every_file_has_its_own(tmp_path, kind):
    """The gallery is a link to the folder of the queries: each image has itself under its own camera."""
    people = {f"{person:04d}_{image}.png": person for person in (1, 2, 3, 4) for image in range(person)}
    root = market(tmp_path / "set", {"query": [*people]})
    (root / "gallery").symlink_to(root / "query")
    lists = {part: [(f"query/{name}", people[name]) for name in people] for part in ("query", "gallery")}
    (tmp_path / "r.py").write_text(f"def read(root):\n    return {lists}\n")
    folders = spec(root, options={"cameras": "none", "gallery": "gallery"})
    data = open_reid(folders if kind == "market1501" else spec(root, f"{tmp_path}/r.py:read"), None)
    assert data.name_of(data.query[0]) == "query/0001_0.png"
    assert data.counts["gallery"] == {"images": 10, "identities": 4, "cameras": 0}
    assert "no cameras: only the query image itself is excluded from its ranking" in data.notes
    assert [sample.camera for sample in data.query] == [sample.camera for sample in data.gallery]
    assert len({sample.camera for sample in data.query}) == 10


ODD = {"pattern": r"(\d+)(_x)?_c(\d+)"}


@pytest.mark.parametrize(
    ("name", "options"), [("bounding_box_test/holiday.jpg", {}), ("bounding_box_train/0007_c2s3_070952_01.jpg", ODD)]
)
def test_an_image_of_a_wrong_name_is_named(tmp_path, name, options):
    root = market(tmp_path / "set", MARKET | {"bounding_box_train": ["0007_c2s3_070952_01.jpg"]})
    draw(root / name)
    with pytest.raises(UserError, match=f"{name}: not named like a Market-1501 image .*lacks identity or camera"):
        open_reid(spec(root, options=options), None)


@pytest.mark.parametrize(("pattern", "cameras"), [(None, 0), (r"cam(\d)", 2), (r"[^/]*/cam(?P<camera>\d)", 2)])
def test_folders_of_persons(tmp_path, pattern, cameras):
    """Names are text: 007 and 7 are two persons, and accents have either form."""
    people = {"train": ["Bo", "Zoe\u0301"], "query": ["007", "R\u00e9my"], "gallery": ["007", "7", "Re\u0301my"]}
    for part, names in people.items():
        for name in names:
            for camera in (1, 2):
                draw(tmp_path / "set" / part / name / f"cam{camera}_{part}.jpg")
    named = resolve_dataset(str(tmp_path / "set"))
    assert named.format == "reid_folders"
    data = open_reid(replace(named, options={"pattern": pattern} if pattern else {}), None)
    assert [sample.identity for sample in data.train] == [0, 0, 1, 1]
    assert [sample.identity for sample in data.query] == [1, 1, 4, 4]
    assert {sample.identity for sample in data.gallery} == {1, 2, 4}
    assert [data.counts["query"]["cameras"], data.cameras] == [cameras, bool(cameras)]
    draw(tmp_path / "set" / "query" / "Bo" / "other.jpg")
    draw(tmp_path / "set" / "gallery" / "cam1_x.jpg")
    with pytest.raises(UserError, match=r"Bo/other.jpg: it lacks .* camera" if pattern else "gallery/cam1_x.jpg: it"):
        open_reid(replace(named, options={"pattern": pattern} if pattern else {}), None)


@pytest.mark.parametrize("name", ["Anna/0007_c1_1.jpg", "0008/0007_c1_1.jpg", "2024/0008/0007_c1_1.jpg"])
def test_a_folder_that_contradicts_the_name_of_a_file(tmp_path, name):
    root = market(tmp_path / "set")
    draw(root / "bounding_box_train" / "7" / "c2" / "0007_c1_1.jpg")
    assert len(open_reid(spec(root), None).train) == 4
    draw(root / "bounding_box_train" / name)
    with pytest.raises(UserError, match=rf"{name}: .* identity 0007, .*`format: reid_folders`.*`pattern` of the path"):
        open_reid(spec(root), None)
    assert len(open_reid(spec(root, options=BELOW), None).train) == 5


def test_training_identities_of_one_image(tmp_path):
    files = MARKET | {"bounding_box_train": [f"{person:04d}_c1_0.jpg" for person in range(2, 6)]}
    root = market(tmp_path / "set", files)
    with pytest.raises(UserError, match=r"4 of 4 training identities have one image each: 0002_c1_0.jpg.*`pattern`"):
        open_reid(spec(root), None)
    assert "4 of 4 training" in str(open_reid(spec(root), None, trained=False).notes)
    draw(root / "bounding_box_train" / "0002_c2_0.jpg")
    assert "3 of 4 training identities have one image each: 0003" in str(open_reid(spec(root), None).notes)
    draw(root / "bounding_box_train" / "0003_c2_0.jpg")
    assert "one image each" not in str(open_reid(spec(root), None).notes)


def test_the_digest_knows_names_and_contents_and_not_the_place(tmp_path):
    one = open_reid(spec(market(tmp_path / "one")), None)
    two = open_reid(spec(market(tmp_path / "two")), None)
    assert one.digest == two.digest
    for split in (two.train, two.query, two.gallery):
        replaced(Path(split[0].path))
        assert open_reid(spec(tmp_path / "two"), None).digest != one.digest
        replaced(Path(split[0].path))
        assert open_reid(spec(tmp_path / "two"), None).digest == one.digest
    query = tmp_path / "one" / "query"
    (query / "0003_c1s6_015971_00.jpg").rename(query / "0003_c2s6_015971_00.jpg")
    assert open_reid(spec(tmp_path / "one"), None).digest != one.digest


@pytest.mark.parametrize(("mask", "end", "version"), [("", "", "V1"), ("mask_", "_v2", "V2")])
def test_msmt17(tmp_path, mask, end, version):
    root = msmt17(tmp_path / "set", train=f"{mask}train{end}", test=f"{mask}test{end}")
    data = open_reid(spec(root, "msmt17"), None)
    assert data.version == version
    people = [[(one.identity, one.camera) for one in part] for part in (data.train, data.query, data.gallery)]
    assert people == [[(0, 1), (0, 15), (1, 7)], [(0, 3)], [(0, 14), (1, 3)]]
    assert (data.counts["distractors"], data.counts["gallery"]["identities"]) == (0, 2)


def test_msmt17_without_the_validation_list_and_with_a_line_that_does_not_parse(tmp_path):
    root = msmt17(tmp_path / "set")
    counts = {"train_val": {"images": 3, "identities": 2}}
    known = spec(root, "msmt17", counts=counts)
    assert len(open_reid(known, None).train) == 3
    assert len(open_reid(known, None, msmt17_val=False, trained=False).train) == 2
    (root / "list_val.txt").unlink()
    assert len(open_reid(known, None, msmt17_val=False, trained=False).train) == 2
    with pytest.raises(UserError, match=r"list_val\.txt.*--no-msmt17-val"):
        open_reid(known, None)
    for line in ("0000/0000_000_01_x.jpg", "0000/0000_000_xx_x.jpg 0", "0000/0000.jpg 0"):
        (root / "list_val.txt").write_text(f"\n\n{line}\n")
        with pytest.raises(UserError, match=r"list_val\.txt:3.*does not parse"):
            open_reid(known, None)


def test_damaged_images(tmp_path):
    root = market(tmp_path / "set")
    whole = open_reid(spec(root), None)
    cut = root / "bounding_box_test" / "0005_c4s1_000401_03.jpg"
    empty = root / "bounding_box_train" / "0007_c2s3_070952_01.jpg"
    cut.write_bytes(cut.read_bytes()[:200])
    empty.write_bytes(b"")
    with pytest.raises(UserError, match=rf"2 of 12 images[\s\S]*{cut}[\s\S]*--drop-corrupt"):
        open_reid(spec(root), None)
    data = open_reid(spec(root), None, drop_corrupt=True)
    assert (data.skipped, cut.name in data.notes[-1]) == (2, True)
    assert data.counts["train"] == {"images": 2, "identities": 1, "cameras": 2}
    cut.unlink()
    empty.unlink()
    assert open_reid(spec(root), None).digest == data.digest != whole.digest


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    root = tmp_path_factory.mktemp("crowd")
    write_market(root, Size(seed=1, train=8, test=6, cameras=4, seen_by=3, shots=2, distractors=10, junk=2))
    return root


def test_subset_keeps_whole_identities_and_the_share_of_distractors(crowd):
    whole, part = open_reid(spec(crowd), None), open_reid(spec(crowd), None, subset=3)
    chosen = {sample.identity for sample in part.query}
    assert {sample.identity for sample in part.train} == set(range(3))
    assert part.counts["train"]["images"] == 3 * 6
    assert (len(chosen), part.counts["gallery"]["identities"], part.counts["distractors"]) == (3, 3, 10 * 3 / 6)
    for split in ("query", "gallery"):
        kept = [sample for sample in getattr(part, split) if sample.identity]
        assert kept == [sample for sample in getattr(whole, split) if sample.identity in chosen]
    assert part.digest != whole.digest


def test_subset_depends_on_content_alone(crowd, tmp_path):
    """The same people are chosen after every identity got another number (and order), file by file."""
    root = shutil.copytree(crowd, tmp_path / "renamed")
    for path in root.rglob("*.jpg"):
        identity, _, rest = path.name.partition("_")
        if int(identity) > 0:
            path.rename(path.with_name(f"{1000 - int(identity):04d}_{rest}"))
    here, there = (open_reid(spec(folder), None, subset=3) for folder in (crowd, root))
    for split in ("train", "query", "gallery"):
        contents = [sorted(Path(sample.path).read_bytes() for sample in getattr(data, split)) for data in (here, there)]
        assert contents[0] == contents[1]


def test_what_cannot_be_chosen_is_refused(crowd, tmp_path):
    with pytest.raises(UserError, match="8 training and 6 test identities"):
        open_reid(spec(crowd), None, subset=7)
    files = {**MARKET, "bounding_box_test": ["0003_c1s6_015996_02.jpg", "0009_c2s6_015996_02.jpg"]}
    with pytest.raises(UserError, match="none of the 2 queries has a match"):
        open_reid(spec(market(tmp_path / "unmatched", files)), None)
    root = msmt17(tmp_path / "set")
    with pytest.raises(UserError, match="V1, but V2 was asked for"):
        open_reid(spec(root, "msmt17", version="V2"), None)
    msmt17(root, train="mask_train_v2", test="mask_test_v2")
    with pytest.raises(UserError, match="both V1 and V2"):
        open_reid(spec(root, "msmt17"), None)


@pytest.fixture(scope="module")
def sets() -> list[ReidData]:
    return [open_reid(resolve_dataset(name), None) for name in ("toy_msmt17", "toy_market")]


def test_identities_and_cameras_of_sets_are_apart(sets: list[ReidData]) -> None:
    joint = join(sets)
    assert (joint.name, joint.query, joint.gallery) == ("toy_market+toy_msmt17", [], [])
    assert joint.joined == [[one.name, one.digest] for one in reversed(sets)]
    origin = {sample.path: (one.name, sample) for one in sets for sample in one.train}
    assert len(joint.train) == len(origin) == joint.counts["train"]["images"]
    for kind in ("identity", "camera"):
        pairs = {(getattr(one, kind), origin[one.path][0], getattr(origin[one.path][1], kind)) for one in joint.train}
        assert len({pair[0] for pair in pairs}) == len({pair[1:] for pair in pairs}) == len(pairs)
    files = joint.files(joint.train)
    assert sorted({*files.labels.tolist()}) == list(range(joint.counts["train"]["identities"]))
    assert join(sets[::-1]) == joint
    assert files.read(0).size == (64, 128), "each is found below the folder of both"


def test_sets_that_share_images(sets: list[ReidData]) -> None:
    with pytest.raises(UserError, match="again and toy_market have 384 training images in common"):
        join([sets[1], replace(sets[1], name="again")])


@pytest.mark.parametrize("cameras", [True, False])
def test_a_share_of_identities_is_split_off(sets: list[ReidData], cameras: bool) -> None:
    data = sets[1]
    if not cameras:  # as where the YAML says `cameras: none`
        data = replace(data, train=[replace(one, camera=number) for number, one in enumerate(data.train)])
    found = split_off(data, 0.25, seed=3)
    seen = {sample.path: sample for sample in data.train}
    held = {seen[sample.path].identity for sample in (*found.query, *found.gallery)}
    kept = {seen[sample.path].identity for sample in found.train}
    assert (len(held), len(kept), held & kept) == (12, 36, set())
    assert {sample.identity for sample in found.train} == set(range(36))
    asked = [(sample.identity, sample.camera) for sample in found.query]
    assert sorted(asked) == sorted({(one.identity, one.camera) for one in data.train if one.identity in held})
    assert matched_queries(found.query, found.gallery) == found.query
    paths = [{sample.path for sample in part} for part in (found.query, found.gallery, found.train)]
    assert set.union(*paths) == seen.keys()
    assert (not paths[0] & paths[1]) if cameras else paths[0] == paths[1], "an image of its own camera stays"
    assert [split_off(data, 0.25, seed) == found for seed in (3, 4)] == [True, False]


@pytest.mark.parametrize(("share", "count"), [(0.01, 0), (0.99, 48)])
def test_a_share_of_too_few_or_too_many(sets: list[ReidData], share: float, count: int) -> None:
    message = f"--validation-share {share} of 48 training identities is {count}; it must be from 2 to 46"
    with pytest.raises(UserError, match=message):
        split_off(sets[1], share, 0)
