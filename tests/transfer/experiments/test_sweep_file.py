"""What a sweep's YAML may say, how its mistakes are named, and which commands it stands for."""

import copy
from pathlib import Path
from typing import Any

import pytest

from transfer.core.errors import UsageError
from transfer.core.settings import config_names, write_yaml
from transfer.experiments import sweep_file
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.step import read_variants
from transfer.experiments.sweep_file import read_sweep

SWEEP: dict[str, Any] = {
    "about": "a sweep",
    "steps": {
        "pretrain": {"pretrain": "dino", "backbone": "tiny", "dataset": "toy_digits", "grid": {"stem": ["conv"]}},
        "reid": {"run": "reid", "after": "pretrain", "dataset": ["toy_market"], "options": {"epochs": 3}},
    },
    "tiers": {"smoke": {"pretrain": {"options": {"smoke": True}}, "reid": {"options": {"lr": 0.1}}}},
}


def write(folder: Path, content: dict[str, Any]) -> str:
    path = folder / "mine.yaml"
    path.write_text(write_yaml(content))
    return str(path)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The sweep with one of its entries, `steps.reid.options`, replaced."""
    content = copy.deepcopy(SWEEP)
    *parents, last = path.split(".")
    inner = content
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return content


@pytest.mark.parametrize("name", config_names("sweeps"))
def test_every_shipped_sweep_expands_and_compares_attentions_with_the_same_norm(name: str) -> None:
    for tier in ("full", *read_sweep(name, "full").tiers):
        sweep = read_sweep(name, tier)
        if sweep.vary:
            sweep = sweep.comparing([{"stem": "conv"}, {"stem": "patchify"}])
        jobs = expand(sweep)
        assert len({job.name for job in jobs}) == len(jobs) > 0, tier
        places = {job.name: place for place, job in enumerate(jobs)}
        norms: dict[str, set[Any]] = {}
        for job in jobs:
            options = job.options
            assert bool(options.get("smoke")) == (tier == "smoke" or name == "demo"), "a smoke tier marks every run"
            if job.parent is not None:
                assert places[job.parent.name] < places[job.name], tier
                probed = name != "demo" and job.step.recipe == "fewshot"
                assert not probed or job.parent.dataset != job.dataset, "a probe of the data of the pretraining"
            elif "attention" in options:
                usual = job.step.source.values().get("qk_norm", options["attention"])
                norms.setdefault(options["attention"], set()).add(options.get("qk_norm", usual))
        softmax = norms.pop("softmax", {*()})
        assert not softmax or all(found & softmax for found in norms.values()), (tier, norms, softmax)


def test_bench_gives_all_attentions_the_same_norm() -> None:
    def norms(*values: str, settings: tuple[str, ...] = ()) -> set[Any]:
        sweep = read_sweep("bench", "smoke", settings).comparing([{"attention": value} for value in values])
        return {job.options.get("qk_norm", "its default") for job in expand(sweep)}

    assert norms("relu", "softmax") == norms("gelu", "relu") == {True}
    assert norms("mine.py:attend", "softmax", "relu") == {False}
    assert norms("relu", "softmax", settings=("pretrain.qk_norm=false",)) == {False}
    stems = read_sweep("bench", "smoke").comparing([{"stem": "conv"}, {}])
    assert not any("qk_norm" in job.options for job in expand(stems))


def test_a_stem_and_an_attention_are_one_variant() -> None:
    """The others have the parts that they name, and the backbone's own parts."""
    variants = read_variants({"stem": "conv", "attention": "relu"}, ["xiao", "softmax", "stem=conv,attention=relu2"])
    sweep = read_sweep("bench", "smoke").comparing(variants)
    pretrained = [(job.options["stem"], job.options["attention"]) for job in expand(sweep) if job.parent is None]
    assert pretrained == [("conv", "relu"), ("xiao", "softmax"), ("patchify", "softmax"), ("conv", "relu2")]
    assert sweep.report["compare"][0] == ["stem=conv,attention=relu", "stem=xiao,attention=softmax"]
    with pytest.raises(UsageError, match="name another variant"):
        read_sweep("bench", "smoke").comparing(read_variants({"stem": "conv"}, ["conv"]))


def test_tasks_and_seeds_of_the_command(tmp_path: Path) -> None:
    sweep = read_sweep("bench", "smoke", ("reid.dataset=toy_msmt17",), tasks=["reid"], seeds=[3, 4])
    jobs = expand(sweep.comparing([{"stem": "conv"}, {}]))
    steps = (("pretrain", "toy_digits"), ("reid", "toy_msmt17"))
    found = [(job.step.name, job.dataset, job.seed) for job in jobs[:4]]
    assert found == [(*step, seed) for step in steps for seed in (3, 4)]
    assert [*read_sweep("cross", "smoke", tasks=["reid_dino"]).steps] == ["dino", "reid_dino"]
    assert [*read_sweep("cross", "smoke", tasks=["fewshot"]).steps] == ["deit", "dino", "fewshot_deit", "fewshot_dino"]


def test_a_sweep_of_a_table_runs_one_reading_of_a_rate_or_both() -> None:
    counts = [len(expand(read_sweep("scaled_relu_table3", "full", readings=name))) for name in ("one", "both")]
    assert counts == [40, 80]


MISTAKES = [
    ("steps.reid.options", {"out": "x"}, "unknown option 'out'"),
    ("steps.pretrain.backbone", None, "`backbone` is missing"),
    ("steps.pretrain.grid", {"stem": []}, "the grid of `stem` is empty"),
    ("steps.pretrain.grid", {"stem, lr": ["conv"]}, "`stem,lr` varies lists of 2 values, not 'conv'"),
    ("steps.pretrain.seeds", [0, 1e23], "steps.pretrain: `seeds` is a list of different numbers"),
    ("steps.pretrain.resources", {"gpu": 1}, "unknown key 'gpu'; did you mean 'gpus'"),
    ("steps.pretrain.resources", {"gpus": "8"}, "resources: gpus must be a number, not the text '8'"),
    ("steps.pretrain.resources", {"memory_gb": "lots"}, "resources: --memory-gb must be FLOAT"),
    ("tiers", {"smoke": {"reids": {}}}, "unknown key 'reids'; did you mean 'reid'"),
    ("report", {"compare": "stem=conv"}, "`compare` takes two, as [stem=conv, stem=patchify]"),
    ("search", {"low": 1}, "`high` is missing"),
    ("paper", "scaled_relu", "`paper` and `table` belong together"),
]


@pytest.mark.parametrize(("path", "value", "says"), MISTAKES)
def test_mistakes_are_named_with_their_place(tmp_path: Path, path: str, value: Any, says: str) -> None:
    name = write(tmp_path, changed(path, value))
    with pytest.raises(UsageError) as error:
        read_sweep(name, "smoke")
    assert says in str(error.value)
    assert "mine.yaml" in str(error.value)


def test_all_misspelt_names_are_told_at_once(tmp_path: Path) -> None:
    wrong = copy.deepcopy(SWEEP) | {"abut": "x", "vary": "reidd", "search": {"lo": 1, "high": 2}, "report": {"map": 1}}
    wrong["steps"]["pretrain"] |= {"backbone": "tinyy", "seedz": [0], "grid": {"lrx": [1]}}
    wrong["steps"]["reid"] |= {"after": "pretrainn", "dataset": ["toy_markt"], "options": {"epochz": 1}}
    wrong["steps"]["knn"] = {"run": "knn", "backbone": "tiny", "dataset": ["toy_digits"]}
    wrong["steps"]["late"] = wrong["steps"]["knn"] | {"after": "knn"}
    wrong["rows"] = [{"reidx": {}, "pretrain": {"stm": "conv"}}]
    with pytest.raises(UsageError) as told:
        read_sweep(write(tmp_path, wrong), "full")
    for text in (
        "unknown key 'abut'; did you mean 'about'",
        "vary: unknown key 'reidd'",
        "search: unknown key 'lo'",
        "report: unknown key 'map'",
        "unknown backbone 'tinyy'",
        "steps.pretrain: unknown key 'seedz'",
        "steps.pretrain: unknown option 'lrx'",
        "`after: pretrainn` must name an earlier step; did you mean 'pretrain'",
        "`after: knn` must name a step that pretrains",
        "unknown dataset 'toy_markt'",
        "steps.reid: unknown option 'epochz'; did you mean 'epochs'",
        "row 1: unknown key 'reidx'",
        "row 1: pretrain: unknown option 'stm'",
    ):
        assert text in str(told.value)


def test_the_example_of_the_format_is_one(tmp_path: Path) -> None:
    example = (sweep_file.__doc__ or "").partition("\n\n")[2]
    (tmp_path / "example.yaml").write_text(example.replace("paper:", "# paper:").replace("table:", "# table:"))
    assert len(expand(read_sweep(str(tmp_path / "example.yaml"), "smoke"))) == 4


def test_a_sweep_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file not found"):
        read_sweep(str(tmp_path / "none.yaml"), "full")


def test_a_tier_is_laid_over_the_steps(tmp_path: Path) -> None:
    name = write(tmp_path, SWEEP)
    full, smoke = read_sweep(name, "full").steps["reid"], read_sweep(name, "smoke").steps["reid"]
    assert full.options == {"epochs": 3}
    assert smoke.options == {"epochs": 3, "lr": 0.1}
    assert (full.resources, smoke.resources) == ({"gpus": 1}, {}), "a step takes a GPU at full scale"
    assert list(read_sweep(write(tmp_path, changed("tiers.smoke.reid", None)), "smoke").steps) == ["pretrain"]


def test_settings_of_the_command_win(tmp_path: Path) -> None:
    name = write(tmp_path, SWEEP)
    settings = ("pretrain.stem=[conv, patchify]", "reid.epochs=5", "reid.dataset=toy_msmt17", "reid.lr=[0.1, 1.0]")
    sweep = read_sweep(name, "smoke", settings)
    assert sweep.steps["pretrain"].grid == {"stem": ["conv", "patchify"]}
    assert sweep.steps["reid"].options["epochs"] == 5
    assert sweep.steps["reid"].dataset == ("toy_msmt17",)
    assert len(expand(sweep)) == 2 + 4
    for wrong in ("reid=1", "reid.options={lr: 1}"):
        with pytest.raises(UsageError, match=r"STEP\.KEY=VALUE"):
            read_sweep(name, "smoke", (wrong,))


def test_what_a_tier_sets_stands_above_the_rows(tmp_path: Path) -> None:
    rows = [{"label": "a", "pretrain": {"lr": 1.0, "epochs": 9}}, {"label": "b", "pretrain": {"stem": "conv"}}]
    content = changed("rows", rows)
    content["tiers"]["smoke"]["pretrain"] = {"options": {"smoke": True, "lr": 0.5}, "grid": {"stem": ["conv_bn"]}}
    name = write(tmp_path, content)
    full, smoke = ([job.options for job in expand(read_sweep(name, tier))] for tier in ("full", "smoke"))
    assert full[0]["lr"] == 1.0
    told = [(options["lr"], options.get("epochs"), options["stem"]) for options in smoke]
    assert told == [(0.5, 9, "conv_bn"), (0.5, None, "conv_bn")]


def jobs_of(folder: Path, content: dict[str, Any], tier: str = "smoke") -> list[SweepJob]:
    return expand(read_sweep(write(folder, content), tier))


def value(job: SweepJob, flag: str) -> str:
    words = job.argv(Path("out"))
    return words[words.index(flag) + 1]


def test_a_later_step_takes_weights_parts_and_seed_of_the_job_before(tmp_path: Path) -> None:
    content = changed("steps.pretrain.seeds", [3, 4])
    content["steps"]["pretrain"]["options"] = {"weights_key": "teacher"}
    first, second, third, fourth = jobs_of(tmp_path, content)
    assert "--weights-key" in first.argv(Path("out"))
    assert "--weights-key" not in third.argv(Path("out")), "it is of the first weights alone"
    assert [job.step.name for job in (first, second, third, fourth)] == ["pretrain", "pretrain", "reid", "reid"]
    for before, after in ((first, third), (second, fourth)):
        assert after.parent == before
        assert value(after, "--weights") == f"out/weights/{before.name}"
        assert value(before, "--name") == before.name
        assert value(after, "--stem") == value(before, "--stem") == "conv"
        assert value(after, "--backbone") == "tiny"
        assert value(after, "--seeds") == value(before, "--seeds") == str(before.seed)
        assert "--smoke" in after.argv(Path("out")), "what starts from a smoke run's weights is one"
    content["steps"]["reid"]["grid"] = {"weights": ["timm"]}
    with pytest.raises(UsageError, match="reid: `weights` cannot be set: the step starts from those of 'pretrain'"):
        jobs_of(tmp_path, content)


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
