"""What keeps an own number apart from a published one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.transfer.report.published.runs import PROBED, cell_of, cells_of, full, line_of, lines_of, run_of
from tests.transfer.report.published.test_table import BASELINE, TABLES
from transfer.core.settings import CONFIGS, read_yaml
from transfer.experiments.published_rows import read_paper, table_of
from transfer.experiments.step import step_options
from transfer.records.protocol import protocol
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.published.matching import Matcher

CONV = "ViT_c, 1e-3, AdamW, warm-up 5"
RELEASED = [
    (table, row.label, value)
    for table in read_paper("anchors").tables.values()
    for row in table.rows
    for value in row.values
    if "weights" in row.steps.get(value.step, {}) and value.percent is not None
]
NO_VERDICT = ("", "not comparable")


@pytest.mark.parametrize(("table", "label", "value"), RELEASED[::4], ids=lambda one: getattr(one, "metric", None))
def test_a_run_from_the_weights_of_a_row_is_comparable(tmp_path: Path, table: Any, label: str, value: Any) -> None:
    cells = cells_of(table.name, label, value.step, "anchors")
    cell = next(cell for cell in cells if cell.dataset == value.dataset)
    own = run_of(cell, tmp_path, 800, scores={value.metric: 0.8})
    lines = lines_of([own], table.name, label, "anchors")
    (line,) = [line for line in lines if line["own"] and line["metric"] == value.metric]
    assert line["not comparable because"] == ""
    assert line["verdict"] not in NO_VERDICT


REASONS = [
    ({"smoke": True}, "smoke"),
    ({"subset": 8}, "subset 8"),
    ({"environment": {"dirty": True}}, "dirty"),
    ({"origin": {"smoke": True, "dirty": True, "subset": 8}}, "smoke; dirty; subset 8"),
    ({"origin": {"modified": True}}, "weights modified"),
    ({"untrained": ["stem.proj.weight", "norm.bias"]}, "left untrained: stem.proj.weight, norm.bias"),
    ({"dataset": {"name": "cifar10"}}, "cifar10 for imagenet1k"),
    ({"dataset": {"skipped": 3}}, "3 images unreadable"),
    ({"dataset": {"version": "v2"}}, "imagenet1k version v2 (ILSVRC2012)"),
    ({"dataset": {"counts": {}}}, "imagenet1k: what it holds is not recorded"),
    ({"dataset": {"counts": {"train": {"images": 9, "classes": 1000}}}}, "imagenet1k train images 9 (1281167)"),
    ({"weights_id": "sha256:aa"}, "starts from weights sha256:aa (random)"),
    ({"task_version": 2}, "pretrain-supervised version 2 (1)"),
    ({"environment": {"precision": "fp32"}}, "precision fp32 (auto: bf16 or fp16)"),
    ({"environment": {"eval_precision": "bf16"}}, "eval_precision bf16 (fp32)"),
    # the number of processes counts for batch norm
    ({"environment": {"world_size": 8}}, ""),
    ({"environment": {"world_size": 2}}, "world_size 2 (8)"),
    ({"environment": {"world_size": 16, "sequence_parallel": 2}}, ""),
    ({"environment": {"world_size": None}}, "world_size not recorded (8)"),
]


@pytest.mark.parametrize(("given", "reason"), REASONS)
def test_what_keeps_numbers_apart_is_said(tmp_path: Path, given: dict[str, Any], reason: str) -> None:
    line = line_of([run_of(cell_of("1", CONV, "deit"), tmp_path, 819, **given)], "1", CONV)
    assert (line["own"], line["not comparable because"]) == ("81.9", reason)
    assert (line["verdict"] == "not comparable") is bool(reason)


BEHIND: list[tuple[dict[str, Any], str]] = [
    ({"environment": {"world_size": 1}}, ""),  # of synchronised batch norm
    ({"dataset": {"version": "2010"}, "environment": {"precision": "fp32"}, "task_version": 2},
        "dino: imagenet1k version 2010 (ILSVRC2012); dino: pretrain-dino version 2 (1); "
        "dino: precision fp32 (auto: bf16 or fp16)"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "reason"), BEHIND)
def test_differences_of_the_training_behind_a_cell(tmp_path: Path, given: dict[str, Any], reason: str) -> None:
    trained = run_of(cell_of("2", PROBED, "dino"), tmp_path, 500, export="sha256:dd", **given)
    probe = run_of(cell_of("2", PROBED, "linear"), tmp_path, 734, weights_id="sha256:dd")
    assert line_of([trained, probe], "2", PROBED)["not comparable because"] == reason


def test_every_option_of_the_recipe_counts(tmp_path: Path) -> None:
    cell = cell_of("1", BASELINE, "deit")
    row = next(row for row in table_of("scaled_relu", "1").rows if row.label == BASELINE)
    named_elsewhere = {"method", "dataset", "pos_embed_interp", "precision", "eval_precision"}
    recipe = set(read_yaml(CONFIGS / "pretrain" / "deit.yaml")) - named_elsewhere
    assert {"erase", "batch_size", "epochs"} <= recipe & set(protocol(run_of(cell, tmp_path / "as it is", 798).record))
    for name in recipe:
        run = run_of(cell, tmp_path / name, changed={name: 9.25})
        matcher = Matcher(full("scaled_relu_table1"), read_paper("scaled_relu"), StoredRuns.of([run]))
        found = matcher.matches(row, row.values[0])
        if name in ("lr", "sam", "warmup_epochs"):
            assert not found, f"{name}: with others it belongs to another row"
        else:
            said = [str(reason) for match in found for reason in match.reasons]
            assert bool(said) == (name in protocol(run.record)), "and no difference where it has no effect"
            assert all(reason.startswith(f"{name} 9.25 (") for reason in said)


def test_every_part_of_the_backbone_counts(tmp_path: Path) -> None:
    run = run_of(cell_of("1", BASELINE, "deit"), tmp_path, 798)
    for name, value in {"depth": 11, "attention": "relu", "patch": 8, "pos_embed_interp": "antialias"}.items():
        other = StoredRun(run.folder, replace(run.record, backbone=run.record.backbone | {name: value}))
        assert f"{name} {value} (" in line_of([other], "1", BASELINE)["not comparable because"]
    of_conv = run_of(cell_of("1", CONV, "deit"), tmp_path, 819)
    for stem, there in (("3Conv+3BN+3ReLU+1Proj@2,1,1,8", True), ("conv_2222", False)):
        other = StoredRun(of_conv.folder, replace(of_conv.record, backbone=of_conv.record.backbone | {"stem": stem}))
        assert (line_of([other], "1", CONV)["verdict"] != "") is there, "a stem matches by what it is"


VOLO = "VOLO-d1, 3Conv+3BN+3ReLU+1Proj, 1.6e-3, AdamW, warm-up 20"
LABELS = {"token_labels": "/data/maps"}
OPEN: list[tuple[str, str, str, dict[str, Any], str]] = [
    # table, row and step; options, and what a run of them is told
    ("1", "ViT_p, 5e-4, SAM, warm-up 5", "deit", {"sam_rho": 0.1}, "sam_rho 0.1 (0.05 taken, not stated)"),
    ("2", VOLO, "volo", LABELS | {"sync_bn": True}, "sync_bn yes (no taken, not stated)"),
    ("2", VOLO, "volo", {}, "no token labels"),
    ("2", VOLO, "volo", LABELS, ""),
    ("7", "10 % of the labels", "finetune", {"epochs": 300}, ""),
    ("7", "10 % of the labels", "finetune", {"epochs": 100}, "epochs 100 (300 taken, not stated)"),
]


@pytest.mark.parametrize(("table", "label", "step", "changed", "told"), OPEN, ids=lambda one: str(one)[:40])
def test_values_of_open_options(tmp_path: Path, table: str, label: str, step: str, changed: Any, told: str) -> None:
    line = line_of([run_of(cell_of(table, label, step), tmp_path, 790, changed=changed)], table, label)
    assert (line["own"], line["not comparable because"]) == ("79.0", told)


@pytest.mark.parametrize("table", TABLES)
def test_open_and_needed_options_are_options_of_the_steps_and_each_volo_row_needs_labels(table: Any) -> None:
    about, steps = read_paper(table.paper), full(table.sweep).steps
    for step, names in {**about.open, **about.needs}.items():
        assert step not in steps or {*names} <= step_options(steps[step].kind, steps[step].recipe)
    assert not any("volo" in row.steps for row in table.rows) or "token_labels" in about.needs["volo"]
