"""Which runs are compared with which, and what tells the rows apart."""

import csv
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transfer
from tests.transfer.records.recorded import made as recorded
from tests.transfer.records.recorded import trained
from tests.transfer.report.tables.test_comparison import made
from transfer.comparison.pairing import Matching, match_runs
from transfer.comparison.selection import select_arms
from transfer.core.errors import UsageError
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.__main__ import main

Runs = list[StoredRun] | list[Record]
RESNET = {"name": "resnet18", "arch": "resnet18", "stem": None}
PARTS = {"stem": "patchify", "attention": "softmax", "ffn": "mlp", "patch": 16, "alpha": None, "length": None}
VIT = {"name": "vit_tiny", "arch": "vit_ti", **PARTS}
CONV = VIT | {"name": "conv", "stem": "conv"}
RELU = VIT | {"name": "relu", "attention": "relu", "alpha": 1.0, "length": "tokens"}


def tuned(root: Path, backbone: Any, *, world: int = 1, seed: int = 0, level: float = 0.5, **options: Any) -> StoredRun:
    """A fine-tuning, by default in one process and with statistics of batch norm of each process."""
    options = {"lr": 0.1, "epochs": 10, "sync_bn": False, "optimizer": "sgd", "momentum": 0.9} | options
    environment = {"world_size": world, "precision": "fp32"}
    given: dict[str, Any] = {"backbone": backbone, "options": options, "environment": environment}
    return made(root, "conv", task="finetune", level=level, seed=seed, **given)


def paired(a: Runs, b: Runs, *texts: str, known: Any = ()) -> Matching:
    """The matches of two variants of runs, or of those that two selectors name among them."""
    runs = [one if isinstance(one, StoredRun) else StoredRun(Path(one.run_id), one) for one in (*a, *b, *known)]
    whole = StoredRuns.of(runs)
    texts = texts or (a[0].record.run_id, b[0].record.run_id)  # type: ignore[union-attr]
    return match_runs(select_arms(texts, whole), whole.exports)


def test_versions_of_a_part_with_one_name_are_not_pooled(tmp_path: Path) -> None:
    mine = [VIT | {"name": f"mine{digit}", "stem": "my.py:Stem", "files": {"stem": digit * 64}} for digit in "ab"]
    runs = [tuned(tmp_path / one["name"], one) for one in (VIT, *mine)]
    with pytest.raises(UsageError, match=r"Stem has versions of different content; choose Stem a{8} or Stem b{8}"):
        select_arms(["stem=Stem", "stem=patchify"], StoredRuns.of(runs))
    chosen, _ = select_arms(["stem=Stem bbbbbbbb", "stem=patchify"], StoredRuns.of(runs))
    assert chosen.runs == runs[2:]


ARMS = [
    ((RESNET, {}), (VIT, {}), ""),
    ((RESNET, {"world": 8}), (VIT, {}), ""),
    ((RESNET, {"world": 8, "sync_bn": True}), (VIT, {"world": 2}), ""),
    ((RESNET, {"world": 8}), (RESNET, {"lr": 0.1}), "world_size"),
    ((CONV, {"world": 8, "sync_bn": True}), (CONV, {}), ""),
    ((CONV, {"world": 8}), (CONV, {}), "world_size"),
    ((RESNET, {"world": 8, "sync_bn": True}), (RESNET, {"world": 8}), "sync_bn"),
    ((RESNET, {"sync_bn": True}), (RESNET, {"world": 8}), "sync_bn"),
    ((RESNET, {"optimizer": "adamw", "momentum": 0.5}), (VIT, {"optimizer": "adamw"}), ""),
    ((RESNET, {"momentum": 0.5}), (VIT, {}), "momentum"),
    ((RELU, {}), (VIT, {}), ""),
    ((RELU | {"alpha": 0.5}, {}), (VIT, {}), ""),
]


@pytest.mark.parametrize(("a", "b", "differs"), ARMS)
def test_what_acts_in_one_arm_alone_does_not_separate(tmp_path: Path, a: Any, b: Any, differs: str) -> None:
    runs = [tuned(tmp_path / name, backbone, **how) for name, (backbone, how) in (("a", a), ("b", b))]
    matching = paired(runs[:1], runs[1:], *(str(run.folder) for run in runs))
    assert len(matching.matches) == (not differs)
    if differs:
        (refusal,) = matching.exclusions
        assert differs in refusal.text
    else:
        assert not matching.exclusions


def test_what_acts_in_one_arm_alone_makes_a_row_for_each_of_its_values(tmp_path: Path) -> None:
    runs = [tuned(tmp_path, RELU | {"alpha": alpha}, seed=seed) for alpha in (1.0, 0.5) for seed in (0, 1)]
    runs = [tuned(tmp_path, VIT), *runs]
    found = paired(runs, [], "attention=relu", "attention=softmax").matches
    assert [(one.setting, len(one.variants[0])) for one in found] == [({"alpha": 0.5}, 2), ({"alpha": 1.0}, 2)]
    several = [tuned(tmp_path / "n", RESNET, world=world) for world in (1, 8)]
    found = paired([*several, runs[0]], [], "resnet18", "vit_tiny").matches
    assert [one.setting for one in found] == [{"world_size": 1}, {"world_size": 8}]


def test_settings_name_what_differs_in_the_pretraining() -> None:
    parents, stems = [trained("sha256:a"), trained("sha256:b", lr=0.1)], ("conv", "patchify")
    children = [recorded(stem=stem, weights_id=parent.export) for stem, parent in product(stems, parents)]
    found = paired(children, [], "stem=conv", "stem=patchify", known=parents).matches
    assert [one.setting for one in found] == [{"pretraining.lr": 0.05}, {"pretraining.lr": 0.1}]
    children += [recorded(stem=stem, weights_id="sha256:c") for stem in stems]
    other = recorded("pretrain-supervised", export="sha256:c", dataset={"name": "toy_digits"}, epochs=3)
    found = paired(children, [], "stem=conv", "stem=patchify", known=[*parents, other]).matches
    methods = [(one.setting["pretraining.task"], one.setting["pretraining.lr"]) for one in found]
    assert methods == [("pretrain-dino", 0.05), ("pretrain-dino", 0.1), ("pretrain-supervised", 0.05)]
    assert all(one.setting.keys() == {"pretraining.task", "pretraining.lr"} for one in found)
    lost = recorded(stem="conv", weights_id="sha256:d", origin={"training": "d" * 64, "seed": 0})
    *_, why = paired([*children, lost], [], "stem=conv", "stem=patchify", known=[*parents, other]).exclusions
    assert why.text.endswith("'stem=patchify' do not share their weights (training dddddddd without a record)")


@pytest.mark.parametrize(("shares", "matches"), [((1.0, 0.5), 1), ((1.0, 1.0), 0)])
def test_shares_of_a_training_set_are_compared(tmp_path: Path, shares: tuple[float, float], matches: int) -> None:
    """Other images under the same share are not."""
    runs = []
    for name, share in zip(("a", "b"), shares, strict=True):
        run = tuned(tmp_path / name, VIT | {"stem": name}, label_fraction=share)
        runs.append(replace(run, record=replace(run.record, dataset={**run.record.dataset, "digest": name * 64})))
    texts = (f"stem={name},label_fraction={share:g}" for name, share in zip(("a", "b"), shares, strict=True))
    assert len(paired(runs, [], *texts).matches) == matches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six settings of two backbones, one of which has batch norm, each by one process."""
    root = tmp_path_factory.mktemp("runs")
    for lr, warmup in product((0.0125, 0.013, 0.1), (0.0, 5.0)):
        for backbone, level in ((RESNET, 0.5), (VIT, 0.6)):
            tuned(root, backbone, level=level, lr=lr, warmup_epochs=warmup)
    return root


def columns(folder: Path, *compared: str) -> list[tuple[str, ...]]:
    """Setting, score, difference and interval of each row that the report prints."""
    file = folder.parent / "shown.csv"
    assert main([str(folder), "--compare", *compared, "--output", str(file)]) == 0
    rows = csv.DictReader(file.open())
    names = ("lr", "warmup_epochs", "score", "difference", "low", "high")
    return [tuple(row.get(name, "") for name in names) for row in rows]


def test_every_selector_gives_the_same_in_the_command_and_in_python(folder: Path) -> None:
    known = transfer.load(folder)
    expected = columns(folder, "resnet18", "vit_tiny")
    assert len({row[:3] for row in expected}) == 12
    assert [float(row[0]) for row in expected] == sorted(float(row[0]) for row in expected)
    for field, a, b in (("backbone", "resnet18", "vit_tiny"), ("arch", "resnet18", "vit_ti")):
        assert columns(folder, f"{field}={a}", f"{field}={b}") == expected
        frame = transfer.compare(known, field, a, b).to_frame()
        found = frame[["lr", "warmup_epochs", "difference"]].to_numpy(float)
        assert found == pytest.approx(np.array([[row[0], row[1], row[3]] for row in expected], float))


def test_the_ids_that_tables_print_are_selectors(folder: Path) -> None:
    known = transfer.load(folder)
    ids = [known.filter(backbone=name, lr=0.1, warmup_epochs=0.0)[0].run_id for name in ("resnet18", "vit_tiny")]
    short = [run_id.rpartition("-")[2] for run_id in ids]
    (expected,) = [row for row in columns(folder, "resnet18", "vit_tiny") if row[:3] == ("0.1", "0.0", "top1")]
    for texts in (short, ids, [f"run={name}" for name in short]):
        assert expected[2:4] in [row[2:4] for row in columns(folder, *texts)]
