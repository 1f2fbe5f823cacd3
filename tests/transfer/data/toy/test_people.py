import pytest

from transfer.data.reid.dataset import open_reid
from transfer.data.spec import resolve_dataset
from transfer.data.toy.people import GENERATORS, MSMT


@pytest.mark.parametrize("name", GENERATORS)
def test_shipped_facts_hold_and_every_query_has_a_match(name, drawn, private_cache):
    """`open_reid` compares what was drawn with the counts of the YAML file."""
    private_cache.mkdir(parents=True)
    (private_cache / drawn[name].name).symlink_to(drawn[name])
    data = open_reid(resolve_dataset(name), None)
    assert data.root.name == drawn[name].name
    assert (data.notes, len(data.query)) == ((), 2 * (MSMT.test if name == "toy_msmt17" else 24))
    for query in data.query:
        assert any(one.identity == query.identity and one.camera != query.camera for one in data.gallery)
