import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from backbones.data.spec import resolve_dataset
from backbones.errors import UserError
from tasks.data.reid import open_reid
from tasks.data.toy_people import GENERATORS, MSMT, Size, _once, _write_market, toy_market


def content(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).digest()) for path in files]


@pytest.fixture
def small():
    """A drawn Market-1501 of a few people."""
    return Size(seed=3, train=2, test=2, cameras=3, seen_by=2, shots=1, distractors=2, junk=1)


@pytest.mark.parametrize("name", GENERATORS)
def test_shipped_facts_hold(name, drawn, cache):
    """`open_reid` compares what was drawn with the counts of the YAML file."""
    cache.mkdir(parents=True)
    (cache / drawn[name].name).symlink_to(drawn[name])
    data = open_reid(resolve_dataset(name), None)
    assert data.root.name == drawn[name].name
    assert data.skipped == 0


def test_every_query_has_a_match_under_another_camera(drawn, cache):
    cache.mkdir(parents=True)
    (cache / drawn["toy_msmt17"].name).symlink_to(drawn["toy_msmt17"])
    data = open_reid(resolve_dataset("toy_msmt17"), None)
    for query in data.query:
        assert any(one.identity == query.identity and one.camera != query.camera for one in data.gallery)
    assert len(data.query) == 2 * MSMT.test


def test_drawing_is_deterministic(small, tmp_path, monkeypatch):
    folders = []
    for place in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
        folders.append(_once("toy", small, _write_market))
    assert content(folders[0]) == content(folders[1])
    assert len(content(folders[0])) == 2 * 2 + 2 * (2 + 2) + 2 + 1


def test_another_size_is_another_folder(small, cache):
    one = _once("toy", small, _write_market)
    two = _once("toy", Size(**{**vars(small), "seed": 4}), _write_market)
    assert one != two


def test_drawn_once(small, cache):
    folder = _once("toy", small, _write_market)

    def write(root, size):
        raise AssertionError("drawn a second time")

    assert _once("toy", small, write) == folder


def test_writers_at_the_same_time_agree(small, cache):
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: _once("toy", small, _write_market), range(4)))
    assert len(folders) == 1
    assert [path.name for path in cache.iterdir()] == [folders.pop().name]


def test_an_interrupted_drawing_leaves_nothing(small, cache):
    def write(root, size):
        (root / "query").mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _once("toy", small, write)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        toy_market()


def test_mean_colour_does_not_identify(drawn):
    """A query's nearest image in mean colour is seldom of the same person: light and place weigh more."""
    paths = sorted((drawn["toy_market"] / "bounding_box_train").iterdir())
    means = np.array([np.asarray(Image.open(path), dtype=float).mean((0, 1)) for path in paths])
    people, cameras = (np.array([path.name[part] for path in paths]) for part in (slice(4), 6))
    distances = np.square(means[:, None] - means).sum(-1)
    distances[(people[:, None] == people) & (cameras[:, None] == cameras)] = np.inf
    assert (people[distances.argmin(1)] == people).mean() < 0.2
