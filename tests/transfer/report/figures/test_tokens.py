"""Similarity of tokens by layer."""

from tests.transfer.report.figures.plots import rows, words
from tests.transfer.report.page.pages import make_run
from transfer.records.run_set import RunSet
from transfer.report.figures.curves import merged_order, similarity_plot


def token_runs() -> RunSet:
    values = {"stem": 0.2, "block 1": 0.9}
    layers = [{"place": place, "kind": "block", "similarity": value} for place, value in values.items()]
    return RunSet.of(make_run(seed, task="tokens", details={"layers": layers}) for seed in range(2))


def test_similarity_of_every_place_and_run() -> None:
    plot = similarity_plot(runs := token_runs(), runs.backbone_names)
    assert rows(plot)["similarity"].tolist() == [0.2, 0.9, 0.2, 0.9]
    assert {"stem", "block 1"} <= {*words(plot)}


def test_places_of_unlike_stems_stand_in_one_order() -> None:
    plain_stem, conv = ["stem", "block 1", "norm"], ["conv before", "conv after", "stem", "block 1", "block 2", "norm"]
    both = ["conv before", "conv after", "stem", "block 1", "block 2", "norm"]
    assert merged_order([plain_stem, conv]) == merged_order([conv, plain_stem]) == both
    assert merged_order([]) == []
