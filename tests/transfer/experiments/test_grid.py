"""Which commands a sweep stands for."""

from itertools import product
from pathlib import Path
from typing import Any

from tests.transfer.experiments.test_sweep_file import SWEEP, changed, write
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.sweep_file import read_sweep


def jobs_of(folder: Path, content: dict[str, Any], tier: str = "smoke") -> list[SweepJob]:
    return expand(read_sweep(write(folder, content), tier))


def value(job: SweepJob, flag: str) -> str:
    words = job.argv(Path("out"))
    return words[words.index(flag) + 1]


def test_a_later_step_takes_weights_parts_and_seed_of_the_job_before(tmp_path: Path) -> None:
    content = changed("steps.pretrain.seeds", [3, 4])
    first, second, third, fourth = jobs_of(tmp_path, content)
    assert [job.step.name for job in (first, second, third, fourth)] == ["pretrain", "pretrain", "reid", "reid"]
    for before, after in ((first, third), (second, fourth)):
        assert after.parent == before
        assert value(after, "--weights") == f"out/weights/{before.name}"
        assert value(before, "--name") == before.name
        assert value(after, "--stem") == value(before, "--stem") == "conv"
        assert value(after, "--backbone") == "tiny"
        assert value(after, "--seeds") == value(before, "--seeds") == str(before.seed)
        assert "--smoke" in after.argv(Path("out")), "what starts from a smoke run's weights is one"


def test_seeds_and_axes_multiply(tmp_path: Path) -> None:
    content = changed("steps.reid", SWEEP["steps"]["reid"] | {"seeds": [0, 1, 2], "grid": {"lr": [0.1, 0.2]}})
    content["steps"]["reid"]["dataset"] = ["toy_market", "toy_msmt17"]
    jobs = jobs_of(tmp_path, content, "full")
    assert len(jobs) == 1 + 3 * 2 * 2
    assert len({job.name for job in jobs}) == len(jobs)
    assert {(value(c, "--lr"), value(c, "--seeds"), value(c, "--dataset")) for c in jobs[1:]} == {
        *product(("0.1", "0.2"), ("0", "1", "2"), ("toy_market", "toy_msmt17"))
    }


def test_rows_share_the_jobs_they_have_in_common(tmp_path: Path) -> None:
    content = changed("steps.pretrain.grid", {})
    content["rows"] = [
        {"label": "a", "pretrain": {"stem": "conv"}, "reid": {"epochs": 3}},
        {"label": "b", "pretrain": {"stem": "conv"}, "reid": {"epochs": 4}},
        {"label": "c", "pretrain": {"stem": "patchify"}},
    ]
    jobs = jobs_of(tmp_path, content)
    assert [(job.step.name, job.label) for job in jobs] == list(zip(("pretrain", "reid", "reid", "pretrain"), "aabc"))
    assert jobs[1].parent == jobs[2].parent == jobs[0]


def test_values_become_the_words_of_a_person(tmp_path: Path) -> None:
    options = {"decay_norm": True, "local_bn": False, "clip_grad": None, "global_area": [0.5, 1], "gate": "silu"}
    job, *_ = jobs_of(tmp_path, changed("steps.pretrain.options", options))
    words = " ".join(job.argv(Path("out")))
    assert "--decay-norm --no-local-bn --clip-grad None --global-area 0.5 1 --gate silu" in words


def test_an_axis_of_several_options_varies_them_together(tmp_path: Path) -> None:
    grid = {"attention, qk_norm": [["softmax", False], ["softmax", True], ["relu", True]], "stem": ["patchify", "conv"]}
    jobs = [job for job in jobs_of(tmp_path, changed("steps.pretrain.grid", grid)) if job.step.name == "pretrain"]
    said = [(value(job, "--attention"), value(job, "--qk-norm"), value(job, "--stem")) for job in jobs]
    variants = [("softmax", "False"), ("softmax", "True"), ("relu", "True")]
    assert said == [(*variant, stem) for variant in variants for stem in ("patchify", "conv")]
    assert len({job.name for job in jobs}) == 6
    assert all("relu-True" in job.name for job in jobs if job.options["attention"] == "relu")
