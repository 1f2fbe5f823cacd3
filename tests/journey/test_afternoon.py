"""The journey of docs/guide/afternoon.md, as the page has it, with numbers checked by numpy, scipy and scikit-learn.

The page's files, and the task that it takes from another page, are written to an empty folder, and its commands run in
order, with the smaller numbers of `SMALLER`.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from tests.documents import ROOT, blocks, files_in

pytestmark = pytest.mark.nightly
PAGE = "docs/guide/afternoon.md"
SMALLER = {
    "--epochs 10": "--epochs 1", "epochs=10": "epochs=1",
    "--seeds 0 1 2": "--seeds 0 1", "seeds=[0, 1, 2]": "seeds=[0, 1]",
    **{f"transfer.report {name} runs": f"transfer.report {name} runs --dirty" for name in ("table", "compare", "page")},
}  # fmt: skip
SEEDS = (0, 1)
VARIANTS = {"patchify": "patchify + softmax", "lap": "LapStem + softmax", "lap_relu2": "LapStem + relu2"}
FEATURES = """
import sys
import backbones.vit, numpy as np, timm, torch
from pathlib import Path
from PIL import Image

for weights in sys.argv[1:]:
    model = timm.create_model(f"local-dir:{weights}", pretrained=True, num_classes=0).eval()
    mean, std = (torch.tensor(model.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    found = {}
    for split in ("train", "val"):
        paths = sorted(Path("digits/new", split).glob("*/*.png"))
        for name, side in (("plain", 32), ("resized", 36)):
            edge = (side - 32) // 2
            box = (edge, edge, edge + 32, edge + 32)
            images = [
                Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BICUBIC).crop(box)
                for path in paths
            ]
            pixels = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 for image in images])
            with torch.inference_mode():
                found[f"{split}_{name}"] = torch.cat([model((part - mean) / std) for part in pixels.split(64)]).numpy()
        found[f"{split}_labels"] = np.array([int(path.parent.name) for path in paths])
    np.savez(f"{weights.replace('/', '-')}.npz", **found)
"""


def shell(script: str, folder: Path) -> str:
    """Run a script of the page with this Python, in a process of its own, and return what it prints to stdout."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def smaller(text: str) -> str:
    """Replace the page's numbers by those of the test."""
    for large, small in SMALLER.items():
        text = text.replace(large, small)
    return text


@pytest.fixture(scope="module")
def journey(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder after the journey, and what each block of commands printed."""
    folder = tmp_path_factory.mktemp("afternoon")
    task = {"my_task.py": files_in("docs/adding-a-part.md")["my_task.py"]}
    for name, text in (files_in(PAGE) | task).items():
        (folder / name).write_text(smaller(text))
    return folder, {script: shell(smaller(script), folder) for script in blocks(PAGE, "sh")}


def records(folder: Path, task: str, name: str) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Return record and per-sample results of a task's runs with the weights of a variant."""
    found = []
    for path in sorted((folder / "runs").glob(f"{task}-new-{name}-*/record.json")):
        with np.load(path.with_name("outcomes.npz")) as arrays:
            found.append((json.loads(path.read_text()), dict(arrays)))
    assert len(found) == len(SEEDS)
    return found


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return mean and 95 % interval over S seeds and M test images, [S, M], by docs/concepts/statistics.md."""
    seeds, images = values.shape
    by_seed = values.mean(1)
    parts = (values - by_seed[:, None]) / images / np.sqrt(1 - 1 / images)
    over_images = (parts.mean(0) ** 2).sum()
    both = ((parts - parts.mean(0)) ** 2).sum() / (seeds - 1) / seeds
    over_seeds = max(by_seed.var(ddof=1) / seeds - both, 0)
    total = over_images + over_seeds
    df = total**2 / (over_images**2 / (images - 1) + over_seeds**2 / (seeds - 1))
    alone = stats.t.ppf(0.975, seeds - 1) * by_seed.std(ddof=1) / np.sqrt(seeds)
    half = max(stats.t.ppf(0.975, df) * np.sqrt(total), alone)
    return by_seed.mean(), max(by_seed.mean() - half, 0), min(by_seed.mean() + half, 1)


def test_scores_equal_those_of_scikit_learn(journey: tuple[Path, dict[str, str]]) -> None:
    folder, _ = journey
    weights = {(name, seed): f"weights/{name}/seed{seed}" for name in VARIANTS for seed in SEEDS}
    command = [sys.executable, "-c", FEATURES, *weights.values()]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    for name in VARIANTS:
        accuracies, neighbours = list[float](), list[float]()
        for seed in SEEDS:
            found = np.load(folder / f"weights-{name}-seed{seed}.npz")
            labels = found["train_labels"], found["val_labels"]
            centroids = NearestCentroid().fit(found["train_plain"], labels[0])
            accuracies.append((centroids.predict(found["val_plain"]) == labels[1]).mean())
            votes = KNeighborsClassifier(20, metric="cosine", weights=lambda apart: np.exp((1 - apart) / 0.07))
            votes.fit(found["train_resized"], labels[0])
            neighbours.append((votes.predict(found["val_resized"]) == labels[1]).mean())
        for task, score, values in (("nearest_mean", "accuracy", accuracies), ("knn", "top1", neighbours)):
            own = sorted(one["scores"][score] for one, _ in records(folder, task, name))
            # sums of some processors round one image to another class
            assert own == pytest.approx(sorted(values), abs=1.01 / len(labels[1])), task


def test_the_pivot_has_the_means_and_intervals_of_the_records(journey: tuple[Path, dict[str, str]]) -> None:
    folder, printed = journey
    (table,) = [text for script, text in printed.items() if script.rstrip().endswith("--pivot")]
    latex = (folder / "table.tex").read_text()
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    for name, title in VARIANTS.items():
        values = np.stack([arrays["accuracy"] for _, arrays in records(folder, "nearest_mean", name)])
        expected = [f"{100 * number:.1f}" for number in interval(values)]
        for text, sign in ((table, r"\|"), (latex, "&")):
            (row,) = [line for line in text.splitlines() if re.match(rf"[| ]*{re.escape(title)} *{sign}", line)]
            assert all(number in re.findall(r"\d+\.\d", row) for number in expected), (expected, row)


def test_the_page_names_the_variants(journey: tuple[Path, dict[str, str]]) -> None:
    page = (journey[0] / "report.html").read_text()
    assert [part for part in ("patchify", "LapStem", "relu2") if part not in page] == []


def test_python_finds_the_runs_of_the_commands(journey: tuple[Path, dict[str, str]]) -> None:
    folder, printed = journey
    ids = {path.parent.name for path in (folder / "runs").glob("*/record.json")}
    assert len(ids) == (3 + 3 * 3) * len(SEEDS)  # the page's Python, the last of its commands, has added none
    (text,) = [text for script, text in printed.items() if "study.py" in script]
    assert {word for word in text.split() if word.startswith("nearest_mean-new-lap-")} <= ids
    assert text.count("nearest_mean-new-lap-") == len(SEEDS)
