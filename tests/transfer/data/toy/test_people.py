import pytest

from tests.transfer.data.layouts import content
from transfer.data.reid.dataset import open_reid
from transfer.data.spec import resolve_dataset
from transfer.data.toy.people import GENERATORS, MSMT, Size, write_market

SMALL = Size(seed=3, train=2, test=2, cameras=3, seen_by=2, shots=1, distractors=2, junk=1)


@pytest.mark.parametrize("name", GENERATORS)
def test_shipped_facts_hold_and_every_query_has_a_match(name, drawn, private_cache):
    """`open_reid` compares what was drawn with the counts of the YAML file."""
    private_cache.mkdir(parents=True)
    (private_cache / drawn[name].name).symlink_to(drawn[name])
    data = open_reid(resolve_dataset(name), None)
    assert data.root.name == drawn[name].name
    assert len(data.query) == 2 * (MSMT.test if name == "toy_msmt17" else 24)
    for query in data.query:
        assert any(one.identity == query.identity and one.camera != query.camera for one in data.gallery)


def test_drawing_is_deterministic(tmp_path):
    for place in ("one", "two"):
        write_market(tmp_path / place, SMALL)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert len(content(tmp_path / "one")) == 2 * 2 + 2 * (2 + 2) + 2 + 1
