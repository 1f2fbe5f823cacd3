"""Kits against published numbers: the page has what the command prints, and what runs are said to reproduce."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.documents import ROOT, files_in, read
from tests.transfer.data.reid.layouts import market
from tests.transfer.report.published.runs import cell_of, run_of
from transfer.experiments.published_rows import read_paper
from transfer.records.run_set import StoredRuns
from transfer.records.store import Store
from transfer.sweep.__main__ import main
from transfer.sweep.kits import Kit

Captured = pytest.CaptureFixture[str]

PAGE = "docs/guide/reproduce.md"
LABELS = {
    "classify": "DeiT-S, released weights (README_deit.md: 79.854, 94.968)",
    "fewshot": "DINO ViT-S/16, released weights, few-shot probes",
    "trained": "TransReID's baseline, ViT-B/16, its trained weights (its repository)",
}


def planned(name: str) -> Kit:
    paper = read_paper("anchors")
    return Kit(name, paper, **paper.kits[name])


def test_the_page_has_the_printed_table(here: Path, capsys: Captured) -> None:
    assert main(["anchors", "--list"]) == 0
    assert capsys.readouterr().out.partition("\n\n")[0] in read(PAGE)
    assert main(["scaled_relu", "--list"]) == 2


STATES = [
    ("classify", {"top1": 0.7979, "top5": 0.9497}, {}, "yes: top1 79.79 (1 run), top5 94.97 (1 run)"),
    ("classify", {"top1": 0.7970, "top5": 0.9497}, {}, "no: top1 79.70 (1 run), top5 94.97 (1 run)"),
    ("classify", {"top1": 0.7985}, {}, "no: top1 79.85 (1 run), top5 failed (1 run)"),
    ("classify", {"top1": 0.7985}, {"changed": {"resize": 248}}, "not yet: resize 248 (none)"),
    ("classify", {"top1": 0.7985}, {"smoke": True}, "not yet: smoke"),
    ("trained", {"mAP": 0.871, "rank1": 0.946}, {"weights_id": "sha256:aa", "changed": {"weights": "market.pth"}},
        "yes: mAP 87.10 (1 run), rank1 94.60 (1 run)"),
    ("trained", {"mAP": 0.871, "rank1": 0.946}, {}, "not yet: no TransReID's trained weights"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "scores", "given", "said"), STATES)
def test_runs_within_the_tolerance_reproduce(tmp_path: Path, name: str, scores: Any, given: Any, said: str) -> None:
    kit = planned(name)
    cell = cell_of(kit.table, LABELS[name], name, "anchors")
    assert kit.state(StoredRuns.of([run_of(cell, tmp_path, 800, scores=scores, **given)])) == said


def test_a_number_that_is_not_published_is_recorded(tmp_path: Path) -> None:
    kit = planned("fewshot")
    cell = cell_of("classification", LABELS["fewshot"], "fewshot", "anchors")
    datasets = kit.sweep.steps["fewshot"].dataset
    scores = {"accuracy_10shot": 0.5}
    runs = [run_of(replace(cell, dataset=name), tmp_path, 800, scores=scores) for name in datasets]
    assert kit.state(StoredRuns.of(runs[:1])) == "not yet"
    assert kit.state(StoredRuns.of(runs)).startswith("recorded: accuracy_10shot 50.00")


@pytest.mark.nightly
def test_torchreids_osnet_gets_torchreids_own_scores(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchreid = pytest.importorskip("torchreid.reid")
        from torchreid.reid import data, metrics, models  # noqa: F401
    names = {"bounding_box_train": ["0050_c1s1_000001_01.jpg", "0051_c2s1_000001_01.jpg"]}
    names["query"] = [f"{person:04d}_c1s1_000001_00.jpg" for person in range(1, 13)]
    cameras = {2: range(1, 13), 3: range(1, 9)}
    names["bounding_box_test"] = [f"{p:04d}_c{c}s1_000001_00.jpg" for c, people in cameras.items() for p in people]
    market(tmp_path / "market1501" / "Market-1501-v15.09.15", names)
    torch.manual_seed(0)
    model = torchreid.models.build_model("osnet_x1_0", num_classes=751, pretrained=False).eval()
    torch.save({"state_dict": {f"module.{name}": t for name, t in model.state_dict().items()}}, tmp_path / "osnet.pth")
    (tmp_path / "osnet.py").write_text(files_in(PAGE)["osnet.py"])
    command = [sys.executable, "-W", "ignore", "osnet.py", "osnet.pth", "."]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.returncode == 0, done.stderr

    options = {"height": 256, "width": 128, "batch_size_train": 2, "workers": 0, "use_gpu": False}
    loaders = torchreid.data.ImageDataManager(root=str(tmp_path), sources="market1501", **options).test_loader
    batches = {name: list(loader) for name, loader in loaders["market1501"].items()}
    with torch.no_grad():
        features = {name: torch.cat([model(one["img"]) for one in of_name]) for name, of_name in batches.items()}
    labels = [
        np.concatenate([one[key].numpy() for one in batches[name]])
        for key in ("pid", "camid")
        for name in ("query", "gallery")
    ]

    def scores(metric: str) -> list[float]:
        distances = torchreid.metrics.compute_distance_matrix(features["query"], features["gallery"], metric)
        cmc, mean_ap = torchreid.metrics.evaluate_rank(distances.numpy(), *labels, max_rank=10, use_cython=False)
        return [mean_ap, cmc[0], cmc[4]]

    (run,) = Store(tmp_path / "sweeps" / "anchors_reid" / "runs").runs()[0]
    ours = [run.record.scores[name] for name in ("mAP", "rank1", "rank5")]
    assert ours == pytest.approx(scores("euclidean"), abs=1e-6)
    assert ours[0] != pytest.approx(scores("cosine")[0], abs=1e-3), "normalised features rank in another order"
