"""How a sweep continues when jobs have ended, fail or are killed. Jobs are real runs of the test backbone."""

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from backbones.backbone import create
from backbones.vit import export
from tests.processes import Command, in_a_terminal, wait_for
from tests.transfer.records.test_store import locked_elsewhere
from transfer.core.errors import UserError
from transfer.core.process import is_alive, usable_cores
from transfer.core.settings import write_yaml
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.sweep_file import read_sweep
from transfer.launch import ProcessSpec
from transfer.launch.local import LocalLauncher
from transfer.measure.ratios import CostRatios
from transfer.records.store import is_locked
from transfer.sweep.earlier_results import EarlierResults, data_paths, done_file, path_state
from transfer.sweep.report import SweepReport
from transfer.sweep.runner import LOCK, Sweeper, failure_reason, last_line

Captured = pytest.CaptureFixture[str]

QUICK = {"smoke": True, "threads": 1, "subset": 30}
PRETRAIN = {"pretrain": "cifar_deit", "backbone": "tiny", "dataset": "toy_digits", "options": {**QUICK, "epochs": 2}}
SMALL = {**QUICK, "size": 32, "resize": 32}
CLASSIFY = {"run": "classify", "after": "pretrain", "dataset": "toy_digits", "options": SMALL}


@dataclass
class InThisProcess:
    """Runs the commands of jobs one by one in this process: importing torch for each would take a minute.

    Jobs of the task `refused` are rejected, as by a cluster without such a partition.
    """

    slots: int | None = 1
    refused: str = ""
    words: list[tuple[str, ...]] = field(default_factory=list)

    def fits(self, work: ProcessSpec) -> bool:
        return True

    def start(self, works: Sequence[ProcessSpec]) -> list[Any]:
        if any(self.refused in work.arguments for work in works):
            raise UserError(f"no partition for {self.refused}")
        return [self._run(*work.arguments, log=work.log) for work in works]

    def _run(self, module: str, *words: str, log: Path) -> Any:
        self.words.append((module, *words))
        with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            status = import_module(module).main([*words])
        return SimpleNamespace(poll=lambda: status)

    def close(self) -> None:
        pass


def jobs_of(folder: Path, **steps: dict[str, Any]) -> list[SweepJob]:
    path = folder / "mine.yaml"
    path.write_text(write_yaml({"steps": steps}))
    return expand(read_sweep(str(path), "full"))


def swept(out: Path, jobs: list[SweepJob]) -> tuple[Sweeper, InThisProcess]:
    launcher = InThisProcess()
    sweeper = Sweeper(out, launcher)
    sweeper.add(jobs)
    sweeper.run()
    return sweeper, launcher


def test_a_failed_job_is_retried_once_and_stops_no_other(tmp_path: Path, capsys: Captured) -> None:
    lacking = {"run": "reid", "backbone": "tiny", "dataset": "market1501", "options": {"weights": "random"}}
    wrong = PRETRAIN | {"options": {**QUICK, "optimizer": "adamm"}}
    steps = {"reid": lacking, "wrong": wrong, "pretrain": PRETRAIN, "classify": CLASSIFY}
    sweeper, launcher = swept(tmp_path / "out", jobs_of(tmp_path, **steps))
    failed, words, *others = sweeper.jobs.values()
    assert (words.status, words.attempts) == ("failed", 1), "wrong arguments are not retried"
    assert "adamm" in words.reason
    assert failed.status == "failed"
    assert failed.attempts == 2
    assert "market1501" in failed.reason
    assert [progress.status for progress in others] == ["not_judged", "completed"]
    assert "retried" in capsys.readouterr().err
    assert len(launcher.words) == 5


class EndsWithAnError(InThisProcess):
    """Runs commands that leave a record and then fail, as where a test set cannot be scored."""

    def _run(self, module: str, *words: str, log: Path) -> Any:
        super()._run(module, *words, log=log)
        result = Path(words[words.index("--result-file") + 1])
        result.write_text(json.dumps(json.loads(result.read_text()) | {"status": 1}))
        return SimpleNamespace(poll=lambda: 1)


def test_a_command_that_ends_with_an_error_has_failed_although_it_left_a_record(tmp_path: Path) -> None:
    sweeper = Sweeper(tmp_path / "out", EndsWithAnError())
    sweeper.add(jobs_of(tmp_path, pretrain=PRETRAIN))
    sweeper.run()
    (progress,) = sweeper.jobs.values()
    assert (progress.status, progress.attempts) == ("failed", 2)
    assert not done_file(sweeper.out, progress.job).exists()


class SoonFree(InThisProcess):
    """Is full when the first of two jobs is looked at, and has room for the second: a process ended meanwhile."""

    answers: ClassVar = [True, True, False]  # the first two before any job starts

    def fits(self, work: ProcessSpec) -> bool:
        return self.answers.pop(0) if self.answers else True


def test_no_job_overtakes_one_before_it(tmp_path: Path) -> None:
    launcher = SoonFree()
    sweeper = Sweeper(tmp_path / "out", launcher)
    step = {"run": "knn", "backbone": "tiny", "dataset": "toy_digits", "seeds": [3, 1], "options": SMALL}
    sweeper.add(jobs_of(tmp_path, knn=step))
    sweeper.run()
    started = [words[words.index("--seeds") + 1] for words in launcher.words]
    assert started == [str(progress.job.seed) for progress in sweeper.jobs.values()]


def test_scores_of_test_sets_are_in_the_report(tmp_path: Path) -> None:
    options = {"smoke": True, "threads": 1, "epochs": 1, "warmup_epochs": 0, "test_dataset": ["toy_msmt17"]}
    step = {"run": "reid", "backbone": "tiny", "dataset": "toy_market", "options": options}
    sweeper, _ = swept(tmp_path / "out", jobs_of(tmp_path, reid=step))
    report = SweepReport(read_sweep(str(tmp_path / "mine.yaml"), "full"), sweeper, None, CostRatios())
    assert [run.record.dataset["name"] for run in report.runs] == ["toy_market", "toy_msmt17"]


def test_a_result_is_not_reused_where_the_weights_of_the_backbone_have_changed(tmp_path: Path) -> None:
    folder = export(create("tiny", weights="random"), tmp_path / "mine")
    (job,) = jobs_of(tmp_path, knn={"run": "knn", "backbone": str(folder), "dataset": "toy_digits", "options": SMALL})
    before = EarlierResults(tmp_path).key(job, None)
    assert EarlierResults(tmp_path).key(job, None) == before
    (folder / "model.safetensors").write_bytes(b"other")
    assert EarlierResults(tmp_path).key(job, None) != before


@pytest.mark.parametrize("slots", [1, None])
@pytest.mark.nightly
def test_a_rejected_job_fails_alone(tmp_path: Path, slots: int | None) -> None:
    refused = CLASSIFY | {"resources": {"partition": "nosuch"}}
    steps = {"pretrain": PRETRAIN, "classify": refused, "knn": CLASSIFY | {"run": "knn"}}
    sweeper = Sweeper(tmp_path / "out", InThisProcess(slots, refused="classify"))
    sweeper.add(jobs_of(tmp_path, **steps))
    sweeper.run()
    statuses = {progress.job.step.name: progress for progress in sweeper.jobs.values()}
    assert statuses["classify"].status == "failed"
    assert statuses["classify"].reason == "no partition for classify"
    assert (statuses["pretrain"].status, statuses["knn"].status) == ("not_judged", "completed")


STEM = """
from torch import nn

class Stem(nn.Sequential):
    def __init__(self, dim, patch):
        super().__init__(nn.Conv2d(3, dim, patch, patch, bias=BIAS))
"""


def test_a_file_edited_after_the_sweep_began_stops_its_jobs(tmp_path: Path) -> None:
    """A job's name has the file's hash, so results of changed code would get the wrong name."""
    stem = tmp_path / "my_stem.py"
    stem.write_text(STEM.replace("BIAS", "True"))
    step = PRETRAIN | {"options": {**PRETRAIN["options"], "stem": f"{stem}:Stem"}}  # type: ignore[dict-item]
    jobs = jobs_of(tmp_path, pretrain=step)
    stem.write_text(STEM.replace("BIAS", "False"))
    sweeper, launcher = swept(tmp_path / "out", jobs)
    (stopped,) = sweeper.jobs.values()
    assert (stopped.status, launcher.words) == ("failed", [])
    assert stopped.reason == f"{stem}:Stem changed since the sweep began; rerun the command"
    again, _ = swept(tmp_path / "out", jobs_of(tmp_path, pretrain=step))
    assert [progress.status for progress in again.jobs.values()] == ["not_judged"]


def test_a_second_driver_of_the_same_sweep_is_turned_away(tmp_path: Path) -> None:
    with locked_elsewhere(tmp_path / LOCK), pytest.raises(UserError, match="another process"):
        Sweeper(tmp_path, InThisProcess()).run()


@dataclass
class Processes:
    """In the place of torchrun's and of the server's jobs: processes that run until `ended` names them."""

    started: list[dict[str, str]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def start(self, words: Sequence[str], log: Any, environment: dict[str, str]) -> Any:
        assert "--threads" not in words
        self.started.append(environment)
        number = len(self.started) - 1
        return SimpleNamespace(poll=lambda: 0 if number in self.ended else None)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    processes = Processes()
    server = SimpleNamespace(start=processes.start, ended=False)
    monkeypatch.setattr("transfer.launch.local.ForkServer", lambda *_: server)
    monkeypatch.setattr("transfer.launch.local.in_own_session", processes.start)
    return processes


def test_jobs_get_their_share_of_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: Processes) -> None:
    """One that takes all GPUs runs alone."""
    cores = str(usable_cores())
    cases = (("", None, 1, cores), ("", 3, 1, cores), ("0,1,2,3", None, 2, "2"), ("0,1", 1, 1, "2"), ("0,1", 5, 1, "2"))
    for gpus, workers, wanted, expected in cases:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        LocalLauncher(workers).start([ProcessSpec(("transfer.run",), tmp_path / "log", {"gpus": wanted})])
        assert processes.started[-1]["TRANSFER_SIDE_BY_SIDE"] == expected


def test_jobs_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: Processes) -> None:
    """The emptier GPU first; a job of two GPUs finds none where one is full."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    launcher = LocalLauncher(per_gpu=2)
    one, two, three = (ProcessSpec(("transfer.run",), tmp_path / "log", {"gpus": count}) for count in (1, 2, 3))
    for _ in range(3):
        assert launcher.fits(one)
        launcher.start([one])
    assert [env["CUDA_VISIBLE_DEVICES"] for env in processes.started] == ["3", "5", "3"]
    assert {env["TRANSFER_SIDE_BY_SIDE"] for env in processes.started} == {"4"}
    assert (launcher.fits(one), launcher.fits(two)) == (True, False)
    launcher.start([one])
    assert not launcher.fits(one)
    processes.ended.append(0)
    assert launcher.fits(one)
    with pytest.raises(UserError, match="requests 3 GPUs, this machine has 2"):
        launcher.fits(three)


@pytest.mark.nightly
def test_a_killed_sweep_leaves_no_worker_and_the_next_one_says_what_it_takes_up(tmp_path: Path) -> None:
    """kill -9 of the sweep: both of its workers save checkpoints and end, as the server does; a rerun resumes."""
    long = {**QUICK, "epochs": 2000, "checkpoint_seconds": 1}
    steps = {"pretrain": PRETRAIN | {"options": long, "seeds": [0, 1]}}
    (tmp_path / "mine.yaml").write_text(write_yaml({"steps": steps}))
    words, out = [str(tmp_path / "mine.yaml"), "--workers", "2", "--out", str(tmp_path / "out")], tmp_path / "out"
    sweep = Command("transfer.sweep.__main__", words, tmp_path / "first")
    wait_for(lambda: len(list(out.glob("runs/*/state.pt"))) == 2)
    folders = list(out.glob("runs/*"))
    assert all(is_locked(folder / "lock") for folder in folders)
    servers = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split()
    assert servers
    sweep.kill(signal.SIGKILL)
    wait_for(lambda: not any(is_locked(folder / "lock") for folder in folders))
    wait_for(lambda: not any(is_alive(int(server)) for server in servers))
    assert all((folder / "state.pt").exists() for folder in folders)
    steps_of = [max(json.loads(line)["step"] for line in (folder / "history.jsonl").open()) for folder in folders]
    again = Command("transfer.sweep.__main__", words, tmp_path / "second", prepare=in_a_terminal)
    wait_for(lambda: len(resumptions(out)) == 2)
    again.kill(signal.SIGHUP)  # as a closed terminal does
    assert again.poll() == 143
    resumed = "\n".join(resumptions(out))
    assert all(f"resuming after step {step} " in resumed for step in steps_of)


def resumptions(out: Path) -> list[str]:
    """The lines on resumption in the logs of a sweep's jobs."""
    lines = [line for log in out.glob("jobs/*.log") for line in log.read_text().splitlines()]
    return [line for line in lines if "resuming after step" in line]


ENDS = [
    (-9, "", "killed by signal 9; the system's memory limit does that"),
    (143, "", "its state saved"),
    (1, "", "its log is empty"),
    (1, 'Traceback (most recent call last):\n  File "a.py"\nValueError: no such width\n', "ValueError: no such"),
    (1, "error: x: incomplete:\n  train images: expected 5, found 3\n", "x: incomplete: train images: expected 5"),
    (1, "a bar 10%\ra bar 20%\rerror: full\n", "exit status 1: full; see"),
    (1, "error: KeyError (a.py:3; --debug shows the traceback)\n", "shows the traceback); see"),
    (
        1,
        "error: /dev/shm is full: set --workers 0\n",
        "set --workers 0; --set STEP.OPTION=VALUE sets an option of jobs;",
    ),
]


@pytest.mark.parametrize(("status", "text", "told"), ENDS)
def test_how_a_job_ended_is_told(tmp_path: Path, status: int, text: str, told: str) -> None:
    log, earlier = tmp_path / "job.log", "error: the disk is full\n"
    log.write_text(earlier + text)
    assert told in failure_reason(status, log, len(earlier))
    assert "the disk is full" not in failure_reason(status, log, len(earlier))


def test_the_last_line_is_the_latest_state_of_the_progress_bar(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    assert last_line(log) == ""
    bar = "\r\x1b[Atrain:  {}|\u2588\u258f    | 1/4 [00:10<00:30, epoch 1/4, loss 0.5]"
    log.write_text("training: 4 steps\n" + bar.format("20%") + bar.format("25%") + "\r        \r", encoding="utf-8")
    assert last_line(log) == "train: 25% 1/4 [00:10<00:30, epoch 1/4, loss 0.5]"


@pytest.mark.parametrize("named", ["{folder}/labels/val.json", "{folder}/labels/*.json"])
def test_files_outside_the_folder_that_a_yaml_names_count(named: str, tmp_path: Path) -> None:
    """By the state of these files a sweep knows whether the command of a finished job must run again."""
    labels = tmp_path / "labels" / "val.json"
    for folder in (tmp_path / "images", labels.parent):
        folder.mkdir()
    labels.write_text("{}")
    (tmp_path / "images" / "1.jpg").write_bytes(b"x")
    own = tmp_path / "mine.yaml"
    own.write_text(f"format: coco\nroot: {tmp_path / 'images'}\nval_annotations: {named.format(folder=tmp_path)}\n")
    before, times = [path_state(path) for path in data_paths(str(own), None)], labels.stat()
    assert [path_state(path) for path in data_paths(str(own), None)] == before
    labels.write_text("[]")
    os.utime(labels, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [path_state(path) for path in data_paths(str(own), None)] != before
