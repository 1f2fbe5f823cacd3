"""The intervals of a comparison are those that the documentation's script computes from `outcomes.npz` alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.documents import ROOT
from tests.transfer.comparison.test_paired_outcomes import Outcomes, coco_run, images, ranked
from tests.transfer.records.recorded import scored
from transfer.report.__main__ import main
from transfer.task import load_task

SCRIPT = ROOT / "docs" / "concepts" / "rebuild_intervals.py"


def written(out: Path, task: str, stem: str, seed: int, outcomes: Outcomes) -> None:
    scores = load_task(task).rescore(outcomes)
    if task == "detect":
        scores = {name: scores[name] for name in ("box_AP", "box_AP50", "mask_AP")}
    about = {"backbone": {"name": f"tiny_{stem}", "stem": stem}, "origin": {"seed": seed, "training": stem}}
    about |= {"seed": seed, "weights_id": f"sha256:{stem}{seed}", "scores": scores}
    scored(out, task, outcomes, f"{task}-{stem}-{seed}", **about)


def test_the_script_finds_the_intervals_again(tmp_path: Path) -> None:
    out, rng = tmp_path / "runs", np.random.default_rng(0)
    for place, stem in enumerate(("conv", "patchify")):
        for seed in range(3):
            queries = ranked(10 * place + seed)
            queries["tied"] = queries["hits"]  # the script leaves out what ties need
            written(out, "reid", stem, seed, queries)
        for seed in range(2):
            run = coco_run(tmp_path / f"{stem}{seed}", 2 * seed, without=3 + place)
            with np.load(run.folder / "outcomes.npz") as file:
                written(out, "detect", stem, seed, dict(file))
        rank = rng.integers(0, 2 + place, 300)
        written(out, "classify", stem, 0, images(rank=rank, ties=0 * rank))
        equal = np.repeat([0, 3], 40)
        written(out, "linear", stem, 0, images(rank=equal, ties=0 * equal, best_rank=equal, best_ties=0 * equal))
    rows = tmp_path / "rows.csv"
    assert not main([str(out), "--compare", "stem=conv", "stem=patchify", "--format", "csv", "--output", str(rows)])
    command = [sys.executable, str(SCRIPT), str(out), str(rows)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    told = [line.split(":")[0] for line in found.stdout.splitlines()]
    assert {"reid mAP", "reid rank1", "detect box_AP", "detect mask_AP", "classify top1", "linear top1"} <= {*told}
    # and it would tell: one value changed by a hundredth of its interval's width is found
    text = rows.read_text()
    low = next(line.split("[")[1].split(",")[0] for line in found.stdout.splitlines() if line.startswith("reid mAP"))
    rows.write_text(text.replace(low, json.dumps(float(low) - 1)))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
