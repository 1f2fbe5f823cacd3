"""`--epochs 0` scores the weights of a run as they are: to the bit as the run did."""

from pathlib import Path
from typing import Any

import pytest

import transfer

SMOKE: dict[str, Any] = {"smoke": True, "threads": 1, "progress": False, "backbone": "tiny", "attention": "relu"}
TRAINED: dict[str, dict[str, Any]] = {
    "reid": {"epochs": 2, "warmup_epochs": 0},
    "linear": {"epochs": 2},
    "detect": {"epochs": 1, "warmup_epochs": 0, "batch": 2},
}
SCORED: dict[str, dict[str, Any]] = {"reid": {}, "linear": {}, "detect": {"subset": 6, "size": (96, 128)}}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(out: Path) -> dict[str, transfer.Run]:
    return {
        task: transfer.evaluate(task, out=out, **SMOKE, **options, **SCORED[task])[0]
        for task, options in TRAINED.items()
    }


@pytest.mark.parametrize("task", TRAINED)
def test_scores_are_equal_to_the_bit(runs: dict[str, transfer.Run], out: Path, task: str) -> None:
    run = runs[task]
    again = transfer.evaluate(task, out=out, weights=run.run_id, epochs=0, **SMOKE, **SCORED[task])[0]
    assert again.scores == run.scores
    assert run.scores
    assert again.run_id != run.run_id
    assert again.record.cost["train_seconds"] == 0
    assert not (again.folder / "export").exists()


def test_a_linear_run_leaves_its_backbone_under_the_id_that_it_started_from(runs: dict[str, transfer.Run]) -> None:
    assert runs["linear"].record.export is None
    assert runs["reid"].record.export is not None


def test_training_options_without_effect_are_refused_and_count_for_nothing(
    runs: dict[str, transfer.Run], out: Path, tmp_path: Path
) -> None:
    options = {**SMOKE, "weights": runs["reid"].weights, "epochs": 0}
    with pytest.raises(transfer.UsageError, match="--lr has no effect with --epochs 0"):
        transfer.evaluate("reid", out=out, lr=0.1, **options)
    layer = tmp_path / "rate.yaml"
    layer.write_text("lr: 0.1\nnum_identities: 2\n")
    plain, layered = (transfer.evaluate("reid", out=out, config=files, **options)[0] for files in ([], [layer]))
    assert plain.run_id == layered.run_id


def test_another_neck_is_another_run(runs: dict[str, transfer.Run], out: Path, tmp_path: Path) -> None:
    """The weights of the backbone are the same; what stands beside them is not."""
    from safetensors.torch import load_file, save_file

    weights = runs["reid"].weights
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in weights.iterdir():
        if file.name != "export.json":  # which knows the head's sha256, and a changed one would be refused
            (copy / file.name).write_bytes(file.read_bytes())
    head = load_file(copy / "head.safetensors")
    head["neck.norm.weight"][0] *= 10
    save_file(head, copy / "head.safetensors")
    first, second = (transfer.evaluate("reid", out=out, weights=w, epochs=0, **SMOKE)[0] for w in (weights, copy))
    assert first.record.weights_id == second.record.weights_id
    assert first.run_id != second.run_id


@pytest.mark.parametrize("task", ["linear", "detect"])
def test_weights_without_a_head_are_refused(out: Path, task: str) -> None:
    with pytest.raises(transfer.MissingInput, match=f"give --weights a run of {task}"):
        transfer.evaluate(task, out=out, epochs=0, **SMOKE, **SCORED[task])


def test_a_head_of_another_task_is_refused(runs: dict[str, transfer.Run], out: Path) -> None:
    with pytest.raises(transfer.UserError, match="of another task or of other options"):
        transfer.evaluate("detect", out=out, weights=runs["reid"].run_id, epochs=0, **SMOKE, **SCORED["detect"])


def test_reid_without_a_neck_says_so(out: Path) -> None:
    run = transfer.evaluate("reid", out=out, epochs=0, **SMOKE)[0]
    assert "nothing is trained, and there is no head beside the weights random" in run.record.notes


@pytest.mark.parametrize("recipe", ["deit", "dino"])
def test_pretraining_has_nothing_to_score(recipe: str, tmp_path: Path) -> None:
    with pytest.raises(transfer.UsageError, match="nothing would be trained"):
        transfer.pretrain(recipe, backbone="tiny", smoke=True, epochs=0, out=tmp_path, progress=False)
