import shutil
from pathlib import Path

import pytest

from backbones.errors import UserError
from tasks.data.reid import open_reid
from tests.tasks.data.layouts import MARKET, draw, market, msmt17, replaced, spec


def names(samples):
    return [Path(sample.path).name for sample in samples]


def test_market_junk_is_dropped_and_distractors_stay(tmp_path):
    data = open_reid(spec(market(tmp_path / "set")), None)
    assert names(data.train) == sorted(MARKET["bounding_box_train"])
    assert names(data.gallery) == sorted(name for name in MARKET["bounding_box_test"] if not name.startswith("-1"))
    assert data.counts == {
        "train": {"images": 3, "identities": 2, "cameras": 3},
        "query": {"images": 2, "identities": 2, "cameras": 2},
        "gallery": {"images": 7, "identities": 2, "cameras": 5},
        "distractors": 3,
        "junk": 2,
        "ignored": 3,
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bounding_box_test/holiday.jpg", "not named like a Market-1501 image"),
        ("bounding_box_test/-2_c1s1_000401_03.jpg", "not named like a Market-1501 image"),
    ],
)
def test_an_image_of_a_wrong_name_is_named(tmp_path, name, said):
    root = market(tmp_path / "set")
    draw(root / name)
    with pytest.raises(UserError, match=f"{name}: .*{said}"):
        open_reid(spec(root), None)


def test_no_query_with_a_match(tmp_path):
    files = {**MARKET, "bounding_box_test": ["0003_c1s6_015996_02.jpg", "0009_c2s6_015996_02.jpg"]}
    with pytest.raises(UserError, match="none of the 2 queries has a match"):
        open_reid(spec(market(tmp_path / "set", files)), None)


def test_the_digest_knows_names_and_contents_and_not_the_place(tmp_path):
    one = open_reid(spec(market(tmp_path / "one")), None)
    two = open_reid(spec(market(tmp_path / "two")), None)
    assert one.digest == two.digest
    for split in (two.train, two.query, two.gallery):
        replaced(Path(split[0].path))
        assert open_reid(spec(tmp_path / "two"), None).digest != one.digest
        replaced(Path(split[0].path))
        assert open_reid(spec(tmp_path / "two"), None).digest == one.digest
    (tmp_path / "one" / "query" / "0003_c1s6_015971_00.jpg").rename(
        tmp_path / "one" / "query" / "0003_c2s6_015971_00.jpg"
    )
    assert open_reid(spec(tmp_path / "one"), None).digest != one.digest


@pytest.mark.parametrize(
    ("train", "test", "version"), [("train", "test", "V1"), ("mask_train_v2", "mask_test_v2", "V2")]
)
def test_msmt17(tmp_path, train, test, version):
    data = open_reid(spec(msmt17(tmp_path / "set", train=train, test=test), "msmt17"), None)
    assert data.version == version
    assert [(sample.identity, sample.camera) for sample in data.train] == [(0, 1), (0, 15), (1, 7)]
    assert [(sample.identity, sample.camera) for sample in data.query] == [(0, 3)]
    assert [(sample.identity, sample.camera) for sample in data.gallery] == [(0, 14), (1, 3)]
    assert data.counts["distractors"] == 0
    assert data.counts["gallery"]["identities"] == 2


def test_msmt17_without_the_validation_list(tmp_path):
    root = msmt17(tmp_path / "set")
    counts = {"train_val": {"images": 3, "identities": 2}}
    known = spec(root, "msmt17", counts=counts)
    assert len(open_reid(known, None).train) == 3
    assert len(open_reid(known, None, msmt17_val=False).train) == 2
    (root / "list_val.txt").unlink()
    assert len(open_reid(known, None, msmt17_val=False).train) == 2
    with pytest.raises(UserError, match=r"list_val\.txt.*--no-msmt17-val"):
        open_reid(known, None)


@pytest.mark.parametrize("line", ["0000/0000_000_01_x.jpg", "0000/0000_000_xx_x.jpg 0", "0000/0000.jpg 0"])
def test_msmt17_line_that_does_not_parse(tmp_path, line):
    root = msmt17(tmp_path / "set")
    with (root / "list_query.txt").open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(UserError, match=r"list_query\.txt:3.*does not parse"):
        open_reid(spec(root, "msmt17"), None)


def test_damaged_images(tmp_path):
    root = market(tmp_path / "set")
    whole = open_reid(spec(root), None)
    cut = root / "bounding_box_test" / "0005_c4s1_000401_03.jpg"
    cut.write_bytes(cut.read_bytes()[:200])
    (root / "bounding_box_train" / "0007_c2s3_070952_01.jpg").write_bytes(b"")
    for _ in range(2):  # the second verdict comes from the cache
        with pytest.raises(UserError, match=rf"2 of 12 images[\s\S]*{cut}[\s\S]*--skip-unreadable"):
            open_reid(spec(root), None)
    data = open_reid(spec(root), None, skip_unreadable=True)
    assert data.skipped == 2
    assert cut.name not in names(data.gallery)
    assert data.counts["train"] == {"images": 2, "identities": 1, "cameras": 2}
    assert {sample.identity for sample in data.train} == {0}
    cut.unlink()
    (root / "bounding_box_train" / "0007_c2s3_070952_01.jpg").unlink()
    assert open_reid(spec(root), None).digest == data.digest != whole.digest


def drawn_spec(drawn, name):
    return spec(drawn[name], {"toy_market": "market1501", "toy_msmt17": "msmt17"}[name])


def test_subset_keeps_whole_identities_and_the_share_of_distractors(drawn):
    whole = open_reid(drawn_spec(drawn, "toy_market"), None)
    part = open_reid(drawn_spec(drawn, "toy_market"), None, subset=6)
    assert part.counts["train"] == {"images": 48, "identities": 6, "cameras": part.counts["train"]["cameras"]}
    assert part.counts["query"]["images"] == 12
    assert part.counts["gallery"]["identities"] == 6
    assert part.counts["distractors"] == 10  # 40 * 6 / 24
    chosen = {sample.identity for sample in part.query}
    assert [sample for sample in whole.gallery if sample.identity in chosen] == [
        sample for sample in part.gallery if sample.identity
    ]
    assert {sample.identity for sample in part.train} == set(range(6))
    assert part.digest != whole.digest


def test_subset_depends_on_content_alone(drawn, tmp_path):
    """The same people are chosen after every identity got another number (and order), file by file."""
    root = tmp_path / "renamed"
    for path in sorted(drawn["toy_market"].rglob("*.jpg")):
        identity, rest = path.name.split("_", 1)
        label = f"{1000 - int(identity):04d}" if int(identity) > 0 else identity
        target = root / path.parent.name / f"{label}_{rest}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    here = open_reid(drawn_spec(drawn, "toy_market"), None, subset=5)
    there = open_reid(spec(root), None, subset=5)
    for split in ("train", "query", "gallery"):
        contents = [sorted(Path(sample.path).read_bytes() for sample in getattr(data, split)) for data in (here, there)]
        assert contents[0] == contents[1]


def test_what_cannot_be_chosen_is_refused(drawn, tmp_path):
    with pytest.raises(UserError, match="48 training and 24 test identities"):
        open_reid(drawn_spec(drawn, "toy_market"), None, subset=25)
    root = msmt17(tmp_path / "set")
    with pytest.raises(UserError, match="V1, but V2 was asked for"):
        open_reid(spec(root, "msmt17", version="V2"), None)
    msmt17(root, train="mask_train_v2", test="mask_test_v2")
    with pytest.raises(UserError, match="side by side"):
        open_reid(spec(root, "msmt17"), None)
