"""Exports are published whole, never over another run's."""

import json
from pathlib import Path

import pytest

from tests.transfer.core.test_files import files_of_at_most
from transfer.cli.options import PretrainRunOptions
from transfer.core.errors import UserError
from transfer.evaluation.weights_export import check_target, publish, target_of


def exported(folder: Path, run_key: str, weights: bytes = b"weights", **about: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    content = {"run": "pretrain-x", "identity": run_key, "options": {"lr": 0.1, "epochs": 2}, **about}
    (folder / "pretrain.json").write_text(json.dumps(content))
    return folder


def test_several_seeds_go_to_folders_of_their_own(tmp_path: Path) -> None:
    run = PretrainRunOptions(seeds=(0, 1), name="mine", export_dir=tmp_path)
    assert [target_of(run, "tiny", seed) for seed in run.seeds] == [
        tmp_path / "mine" / f"seed{seed}" for seed in (0, 1)
    ]
    assert target_of(PretrainRunOptions(seeds=(1,), export_dir=tmp_path), "tiny", 1) == tmp_path / "tiny"
    exported(tmp_path / "mine", "one seed")
    with pytest.raises(UserError, match="holds the weights of one seed; use another --name"):
        target_of(run, "tiny", 0)
    (exported(tmp_path / "all" / "seed0", "zero") / "config.json").touch()
    with pytest.raises(UserError, match="holds the weights of several seeds; use another --name"):
        target_of(PretrainRunOptions(name="all", export_dir=tmp_path), "tiny", 0)


def test_what_was_there_survives_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    source = exported(tmp_path / "export", "new", b"new" * 100_000)
    target = exported(tmp_path / "weights" / "mine", "old", b"old")
    with files_of_at_most(1000), pytest.raises(UserError, match="cannot be written"):
        publish(source, target)
    assert (target / "model.safetensors").read_bytes() == b"old"
    publish(source, target)
    assert (target / "model.safetensors").read_bytes() == b"new" * 100_000
    assert [path.name for path in target.parent.iterdir()] == ["mine"]


def test_another_runs_export_is_in_the_way_and_the_difference_is_named(tmp_path: Path) -> None:
    target = exported(tmp_path / "weights" / "mine", "one")
    check_target(target, "one", {"lr": 0.1})
    exported(tmp_path / "two", "one", options={"lr": 0.1, "stem": "mine.py:Stem"})
    for given, options in ((target, {"epochs": 2}), (tmp_path / "two", {"stem": "/a/mine.py:Stem"})):
        with pytest.raises(UserError, match=r"pretrain-x: lr 0\.1 there, 0\.2 here\).*--name.*--replace"):
            check_target(given, "two", {"lr": 0.2, **options})
