"""Records that were made before options were renamed are read with today's names."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from transfer.cli.old_names import OPTIONS, RATES, current_options, renamed_flag
from transfer.records.protocol import configurations
from transfer.records.record import SCHEMA, Record, RunKey
from transfer.records.store import Run, Store, merged
from transfer.verify.checks import check_run_key

OLDER = Path(__file__).parent / "older"
NAMES = ("reid_schema1", "finetune_schema1")


def run_of(name: str, store: Path) -> Run:
    """A run's folder with a record of schema 1."""
    path = OLDER / f"{name}.json"
    folder = store / json.loads(path.read_text())["run_id"]
    folder.mkdir(parents=True)
    shutil.copy(path, folder / "record.json")
    return Run(folder, Record.read(folder / "record.json"))


def today(record: Record, seed: int) -> Record:
    """The record that a run of the same settings and another seed has today."""
    content = record.current_content | {"seed": seed}
    values = {name: value for name, value in vars(record).items() if not name.startswith("current_")}
    run_key = RunKey(content)
    values |= {"schema": SCHEMA, "seed": seed, "run_key_content": content, "run_key": run_key.digest}
    return Record(**(values | {"config_digest": run_key.without("seed").digest}))


@pytest.mark.parametrize("name", NAMES)
def test_an_old_record_has_todays_names_and_its_identity_still_holds(name: str, tmp_path: Path) -> None:
    run = run_of(name, tmp_path)
    assert not {*run.record.options} & {*OPTIONS, *RATES, "ends"}
    assert check_run_key(run.folder, run.record) == ([], [])


def test_rates_are_rates_and_multiples_are_multiples(tmp_path: Path) -> None:
    reid, finetune = (run_of(name, tmp_path).record.options for name in NAMES)
    assert (reid["min_lr"], reid["min_lr_factor"]) == (None, 0.002)
    assert (reid["warmup_lr"], reid["warmup_lr_factor"]) == (None, 0.01)
    assert (finetune["min_lr"], finetune["min_lr_factor"]) == (1e-5, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_old_and_new_records_are_seeds_of_one_configuration(name: str, tmp_path: Path) -> None:
    old = run_of(name, tmp_path)
    new = today(old.record, seed=old.record.seed + 1)
    assert len({*configurations([old.record, new], {})}) == 1
    assert old.record.config_digest == new.config_digest
    assert len(merged([old, Run(tmp_path / "new", new)])[0]) == 2
    assert len(merged([old, Run(tmp_path / "new", today(old.record, old.record.seed))])[0]) == 1


def test_an_old_run_is_found_again_by_the_identity_of_today(tmp_path: Path) -> None:
    record = run_of("reid_schema1", tmp_path).record
    run_key = RunKey(record.current_content)
    run_id = f"{record.run_id.rpartition('-')[0]}-{run_key.digest[:12]}"
    assert Store(tmp_path).find(run_id, run_key) is None
    assert Store(tmp_path).of_older_names(run_id, run_key) == record
    assert Store(tmp_path).of_older_names(run_id, RunKey(record.current_content | {"seed": 99})) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [({"warmup_from": 0.1, "cosine_to": 0, "ends": "factor"},
      {"warmup_lr": None, "warmup_lr_factor": 0.1, "min_lr": 0, "min_lr_factor": 0.0}),
     ({"track": True, "receipt": None}, {"tracker": "tensorboard", "result_file": None}),
     ({"draws": 3, "clip_grad": 1.0}, {"draws": 3, "clip_grad": 1.0})],
)  # fmt: skip
def test_options_are_renamed_once(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert current_options(old) == new == current_options(new)


@pytest.mark.parametrize(
    ("argv", "known", "text"),
    [(["--clip", "1"], ["clip_grad"], "--clip is called --clip-grad"),
     (["--no-clip-each"], ["clip_grad_per_param"], "--clip-each is called --clip-grad-per-param"),
     (["--draws=3"], ["bootstrap_samples"], "--draws is called --bootstrap-samples"),
     (["--draws=3"], ["draws"], "")],
)  # fmt: skip
def test_an_old_flag_is_told_its_new_name(argv: list[str], known: list[str], text: str) -> None:
    assert renamed_flag(argv, known) == text
