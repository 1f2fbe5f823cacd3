"""Each tracker with its real package, offline: what it was given is read back, also over an interruption."""

import importlib.util
import math
import sys
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.processes import wait_for
from tests.runs import history
from tests.transfer.engine.tracker_readers import read
from transfer.core.errors import MissingInput
from transfer.engine.trackers import TRACKERS, TrackedRun, Tracker, check_installed, tracking
from transfer.records.record import Record
from transfer.run import main
from transfer.verify.__main__ import main as verify

INSTALLED = [
    pytest.param(
        name,
        marks=[
            pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed"),
            *([pytest.mark.nightly] if name != "tensorboard" else []),
        ],
    )
    for name in TRACKERS
]


@pytest.fixture(autouse=True)
def _nothing_leaves_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(variable, raising=False)


def tracked(folder: Path) -> TrackedRun:
    """A run with more options than a tracker shows at once; W&B takes no comma in ids, and no longer tags than 64."""
    folder.mkdir(exist_ok=True)
    options = {"lr": 0.1, "data": None, "milestones": [1, 2], **{f"option_{number}": number for number in range(120)}}
    return TrackedRun(folder.name, folder, options, {"task": "reid", "dataset": "a,b", "backbone": "long_" * 30})


@pytest.mark.parametrize("name", INSTALLED)
def test_a_run_is_kept_with_its_record_over_an_interruption(name: str, tmp_path: Path) -> None:
    run, said = tracked(tmp_path / f"reid-a,b-{name}"), list[str]()
    with suppress(KeyboardInterrupt), tracking(name, run, said.append) as tracker:
        tracker.log(1, {"loss": 3.0, "lr": 0.1})
        tracker.log(2, {"loss": math.nan, "lr": math.inf})
        raise KeyboardInterrupt
    record = run.folder / "record.json"
    record.write_text('{\n "scores": {"mAP": 0.5},\n "backbone": "ViT, groß"\n}\n', encoding="utf-8")
    with tracking(name, run, said.append) as tracker:
        tracker.log(3, {"loss": 1.0, "lr": 0.05})
        tracker.log(3, {"validation/top1": 0.25})
        tracker.attach(record, {"mAP": 0.5}, "completed")
    wait_for(lambda: len(read(name, run.folder).series["loss"]) == 3)  # W&B writes its file after the run has ended
    kept = read(name, run.folder)
    assert said == []
    assert [step for step, _ in kept.series["loss"]] == [1, 2, 3]
    assert [value for _, value in kept.series["lr"]][::2] == pytest.approx([0.1, 0.05])
    assert kept.series["validation/top1"][-1][1] == 0.25
    assert kept.scores == {"mAP": 0.5}
    assert kept.outcome == "completed"
    assert kept.record == record.read_bytes()
    assert kept.ending == {"tensorboard": None, "wandb": "0"}[name]
    if name != "tensorboard":
        assert str(kept.options["option_119"]) == "119"


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_one_line_with_its_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingInput, match=f"^--tracker {name}: the package is not installed: pip install .*track.*$"):
        check_installed(name)


@pytest.mark.parametrize("failing", ["start", "log", "attach", "close"])
def test_a_run_outlives_its_tracker(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Mock(return_value=(tracker := Mock(spec=Tracker)))
    call = start if failing == "start" else getattr(tracker, failing)
    call.side_effect = OSError("no connection\nwith details")
    monkeypatch.setitem(TRACKERS, "tensorboard", start)
    said: list[str] = []
    with tracking("tensorboard", tracked(tmp_path / "run"), said.append) as opened:
        for step in range(1, 5):
            opened.log(step, {"loss": 1.0})
        opened.attach(tmp_path / "record.json", {}, "completed")
    assert call.call_count == 1
    assert said == ["--tracker tensorboard failed (OSError: no connection); the run continues without it"]


TINY = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]
RUN = ["reid", *TINY, "--lr", "3e-2", "--epochs", "2", "--warmup-epochs", "0", "--num-identities", "4"]


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.nightly
def test_steps_and_record_reach_the_tracker(name: str, tmp_path: Path) -> None:
    assert main([*RUN, "--tracker", name, "--out", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("reid-*/record.json")
    record, kept = Record.read(file), read(name, file.parent)
    assert kept.record == file.read_bytes()
    assert kept.scores == pytest.approx(record.scores, rel=1e-6)
    assert kept.outcome == record.outcome["status"]
    steps = [line for line in history(tmp_path) if "loss" in line]
    for key in ("loss", "grad_norm", "lr"):
        assert [step for step, _ in kept.series[key]] == [line["step"] for line in steps]
        assert [value for _, value in kept.series[key]] == pytest.approx([line[key] for line in steps], rel=1e-6)
    assert verify([str(tmp_path)]) == 0
