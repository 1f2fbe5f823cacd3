"""Which commands a sweep stands for."""

from pathlib import Path
from typing import Any

import pytest

from backbones.errors import UsageError
from tests.transfer.sweep.definition.test_sweep_file import SWEEP, changed, write
from transfer.sweep.definition.grid import SweepJob, expand
from transfer.sweep.definition.sweep_file import read_sweep


def cells_of(folder: Path, content: dict[str, Any], tier: str = "smoke") -> list[SweepJob]:
    return expand(read_sweep(write(folder, content), tier))


def value(cell: SweepJob, flag: str) -> str:
    words = cell.words(Path("out"))
    return words[words.index(flag) + 1]


def test_a_later_step_takes_weights_parts_and_seed_of_the_cell_before(tmp_path: Path) -> None:
    content = changed("steps.pretrain.seeds", [3, 4])
    first, second, third, fourth = cells_of(tmp_path, content)
    assert [cell.step.name for cell in (first, second, third, fourth)] == ["pretrain", "pretrain", "reid", "reid"]
    for before, after in ((first, third), (second, fourth)):
        assert after.parent == before
        assert value(after, "--weights") == f"out/weights/{before.name}"
        assert value(before, "--name") == before.name
        assert value(after, "--stem") == value(before, "--stem") == "conv"
        assert value(after, "--backbone") == "tiny"
        assert value(after, "--seeds") == value(before, "--seeds") == str(before.seed)
        assert "--smoke" in after.words(Path("out")), "what starts from a smoke run's weights is one"


def test_seeds_and_axes_multiply(tmp_path: Path) -> None:
    content = changed("steps.reid", SWEEP["steps"]["reid"] | {"seeds": [0, 1, 2], "grid": {"lr": [0.1, 0.2]}})
    content["steps"]["reid"]["dataset"] = ["toy_market", "toy_msmt17"]
    cells = cells_of(tmp_path, content, "full")
    assert len(cells) == 1 + 3 * 2 * 2
    assert len({cell.name for cell in cells}) == len(cells)
    assert {(value(c, "--lr"), value(c, "--seeds"), value(c, "--dataset")) for c in cells[1:]} == {
        (lr, seed, dataset)
        for lr in ("0.1", "0.2")
        for seed in ("0", "1", "2")
        for dataset in ("toy_market", "toy_msmt17")
    }


def test_rows_share_the_cells_they_have_in_common(tmp_path: Path) -> None:
    content = changed("steps.pretrain.grid", {})
    content["rows"] = [
        {"label": "a", "pretrain": {"stem": "conv"}, "reid": {"epochs": 3}},
        {"label": "b", "pretrain": {"stem": "conv"}, "reid": {"epochs": 4}},
        {"label": "c", "pretrain": {"stem": "patchify"}},
    ]
    cells = cells_of(tmp_path, content)
    assert [(cell.step.name, cell.label) for cell in cells] == [
        ("pretrain", "a"),
        ("reid", "a"),
        ("reid", "b"),
        ("pretrain", "c"),
    ]
    assert cells[1].parent == cells[2].parent == cells[0]


def test_a_printed_rate_becomes_one_cell_for_each_reading(tmp_path: Path) -> None:
    content = changed("steps.pretrain.grid", {})
    content["rows"] = [{"pretrain": {"lr": {"printed": 1e-3, "used": [2e-3, 1e-3]}}}]
    assert [value(cell, "--lr") for cell in cells_of(tmp_path, content)] == ["0.002", "0.001"]
    content["rows"] = [{"pretrain": {"lr": {"printed": 1e-3}}}]
    with pytest.raises(UsageError, match="used"):
        cells_of(tmp_path, content)


def test_a_number_that_yaml_reads_as_text_is_that_number(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, changed("steps.reid.grid", {"lr": [0.01, "1e-2", "1E-2"]}))
    assert [value(cell, "--lr") for cell in cells[1:]] == ["0.01"]


def test_what_the_command_sets_stands_above_the_rows(tmp_path: Path) -> None:
    content = changed("steps.pretrain.grid", {})
    content["rows"] = [{"pretrain": {"stem": "conv"}, "reid": {"lr": 0.1}}, {"pretrain": {"stem": "patchify"}}]
    settings = ("reid.lr=0.7", "pretrain.stem=xiao")
    cells = expand(read_sweep(write(tmp_path, content), "smoke", settings))
    assert [value(cell, "--stem") for cell in cells] == ["xiao", "xiao"]
    assert value(cells[1], "--lr") == "0.7"


def test_values_become_the_words_of_a_person(tmp_path: Path) -> None:
    options = {
        "decay_norm": True,
        "local_bn": False,
        "clip_grad": None,
        "global_area": [0.5, 1],
        "weights": "random",
        "gate": "silu",
    }
    cell, *_ = cells_of(tmp_path, changed("steps.pretrain.options", options))
    words = " ".join(cell.words(Path("out")))
    assert "--decay-norm --no-local-bn --clip-grad None --global-area 0.5 1 --weights random --gate silu" in words


def test_a_cell_has_the_same_name_in_another_sweep_and_another_one_for_other_options(tmp_path: Path) -> None:
    names = [cell.name for cell in cells_of(tmp_path, SWEEP)]
    assert names == [cell.name for cell in cells_of(tmp_path, changed("about", "another"))]
    other = [cell.name for cell in cells_of(tmp_path, changed("steps.pretrain.options", {"epochs": 2}))]
    assert not {*names} & {*other}, "a pretraining with other options leads to other cells after it too"


def test_an_axis_of_several_options_varies_them_together(tmp_path: Path) -> None:
    grid = {"attention, qk_norm": [["softmax", False], ["softmax", True], ["relu", True]], "stem": ["patchify", "conv"]}
    cells = [cell for cell in cells_of(tmp_path, changed("steps.pretrain.grid", grid)) if cell.step.name == "pretrain"]
    said = [(value(cell, "--attention"), value(cell, "--qk-norm"), value(cell, "--stem")) for cell in cells]
    arms = [("softmax", "False"), ("softmax", "True"), ("relu", "True")]
    assert said == [(*arm, stem) for arm in arms for stem in ("patchify", "conv")]
    assert len({cell.name for cell in cells}) == 6
    assert all("relu-True" in cell.name for cell in cells if cell.options["attention"] == "relu")


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"attention, qk_norm": ["softmax"]}, "`attention, qk_norm` takes lists of 2 values, not 'softmax'"),
        ({"attention, qk_norm": [["relu", True]], "attention": ["relu"]}, "`attention` stands in two axes"),
        ({"attention, qk_nrm": [["relu", True]]}, "unknown option 'qk_nrm'; did you mean 'qk_norm'"),
    ],
)
def test_a_wrong_axis_of_several_options_is_named(tmp_path: Path, grid: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cells_of(tmp_path, changed("steps.pretrain.grid", grid))


def test_nothing_to_run_is_an_error(tmp_path: Path) -> None:
    content = changed("tiers.smoke.reid", None)
    content["rows"] = [{"reid": {"lr": 0.1}}]
    with pytest.raises(UsageError, match="nothing to run"):
        cells_of(tmp_path, content)
