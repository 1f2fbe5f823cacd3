import json
from pathlib import Path

import torch

from backbones.backbone import create
from backbones.spec import resolve
from backbones.weights.export import export
from tasks.tokens.task import TASK
from tests.backbones.support import users_file
from tests.support import context
from tests.tasks.support import digits, run_task, smoke_options


def test_a_run_gives_scores_details_and_outcomes_of_its_images() -> None:
    data = digits(task="tokens")
    options, here = smoke_options("tokens", "--size", "32", "--resize", "32", "--images", "10"), context()
    scores, outcomes = TASK.execute(resolve("tiny", stem="conv", attention="relu"), data, options, here)
    assert TASK.rescore(outcomes) == scores
    assert set(scores) == {"similarity_stem", "similarity_positions", "similarity_last"}
    assert len(outcomes["sample"]) == len(outcomes["similarity_stem"]) == 10
    assert outcomes["sample"][3] == data.val.names[3 * len(data.val) // 10]
    assert len({data.val.labels[cluster] for cluster in outcomes["cluster"]}) >= 9, "spread over the classes"
    layers = {about["place"]: about for about in here.details["layers"]}
    assert layers["stem"]["similarity"] == scores["similarity_stem"]
    assert layers["block 2"]["similarity"] == scores["similarity_last"]
    assert layers["stem"]["similarity"] <= layers["stem"]["bound"]
    assert [about["place"] for about in here.details["attention"]] == ["block 1", "block 2"]
    assert len(json.dumps(here.details, allow_nan=False)) < 40_000


def run_images(*words, data=None, **parts):
    """A run on `tiny` with these parts, on images of 32 pixels."""
    spec = resolve("tiny", **({"stem": "patchify"} | parts))
    return run_task("tokens", data or digits(3, "tokens"), "--size", "32", "--resize", "32", *words, spec=spec)


def test_a_stem_that_died_has_no_similarity_and_the_record_says_so(tmp_path: Path) -> None:
    scores, _, here = run_images(stem=f"{users_file(tmp_path)}:Dead")
    assert set(scores) == {"similarity_positions", "similarity_last"}
    assert any("similarity_stem is not defined" in note for note in here.notes)
    stem = here.details["layers"][0]
    assert (stem["zero_rows"], stem["similarity"], stem["bound"]) == (1, None, None)
    json.dumps(here.details, allow_nan=False)


def test_broken_weights_are_an_outcome(tmp_path: Path) -> None:
    backbone = create("tiny", img_size=32)
    torch.nn.init.constant_(backbone.model.blocks[1].mlp.fc1.weight, 3e38)  # which files may have, unlike NaN
    export(backbone, tmp_path / "broken")
    scores, outcomes, here = run_images(weights=str(tmp_path / "broken"))
    assert (scores, outcomes) == ({}, {})
    assert here.outcome.status == "nonfinite"
    assert "of the val split: not finite for " in here.outcome.reason
    norms = {about["place"]: about["norm"] for about in here.details["layers"]}
    assert [place for place, norm in norms.items() if norm is None] == ["block 2", "final norm"]
    json.dumps(here.details, allow_nan=False)
