"""Several datasets as one training set, and identities split off for validation."""

from dataclasses import replace

import pytest

from transfer.core.errors import UserError
from transfer.data.reid.dataset import ReidData, join, open_reid, split_off
from transfer.data.reid.market1501 import matched
from transfer.data.spec import resolve_dataset


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
    assert matched(found.query, found.gallery) == found.query
    paths = [{sample.path for sample in part} for part in (found.query, found.gallery, found.train)]
    assert set.union(*paths) == seen.keys()
    assert (not paths[0] & paths[1]) if cameras else paths[0] == paths[1], "an image of its own camera stays"
    assert [split_off(data, 0.25, seed) == found for seed in (3, 4)] == [True, False]


@pytest.mark.parametrize(("share", "count"), [(0.01, 0), (0.99, 48)])
def test_a_share_of_too_few_or_too_many(sets: list[ReidData], share: float, count: int) -> None:
    message = f"--validation-share {share} of 48 training identities is {count}; it must be from 2 to 46"
    with pytest.raises(UserError, match=message):
        split_off(sets[1], share, 0)
