"""For kind `bytes`: the JSON of exports, and the YAML that people write, each read by the commands that it is for."""

import contextlib
import io
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from backbones.backbone import create
from backbones.checkpoints.exports import CONFIG, EXPORT, EXPORT_FACTS, HEAD, PRETRAIN, export, modified_files
from backbones.data.classification import open_classification
from backbones.data.spec import resolve_dataset
from backbones.engine.trained_weights import read_head
from backbones.errors import UserError, visible_lines
from backbones.runtime.machine_errors import in_one_line
from backbones.settings import CONFIGS
from tests.faults.damaged.data import image_folder
from transfer.pretrain import main as pretrain
from transfer.run import main as run
from transfer.sweep.__main__ import main as sweep

Place = tuple[str, Path, tuple[str, ...], Callable[[Path], Any]]
"""Name of a target, its folder, the files that are changed, and what reads them."""
WORDS = ("--backbone", "tiny", "--smoke", "--dry-run")
TASKS = ("reid", "fewshot", "detect", "classify", "linear", "knn", "finetune", "tokens")


def written_files(work: Path) -> list[Place]:
    """Return all places: of these files it is asked that they end in words."""
    return [*_exports(work / "exports"), *_settings(work / "settings"), _data_set(work / "set")]


def called(main: Callable[[list[str]], int], words: Sequence[str]) -> None:
    """Call a command within this process; raise what it says of its refusal."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*words])
    printed = out.getvalue() + err.getvalue()
    if status not in (0, 1, 2) or "Traceback" in printed:
        raise RuntimeError(f"exit status {status}: {printed[-500:]}")
    if status or "\x1b" in printed:
        raise UserError(err.getvalue() or printed[-1000:])


def _exports(work: Path) -> list[Place]:
    """Weights that a pretraining left, and those that a task left, with what was trained on top."""
    model = create("tiny")
    tensors = {name: tensor for name, tensor in model.model.state_dict().items() if name == "norm.weight"}
    facts = {"run": "a", "seed": 0, "classes": ["a", "b"], "origin": {"smoke": True, "subset": 3}}
    pretrained = export(model, work / "pretrained", {PRETRAIN: facts})
    facts |= {"dataset": {"name": "a"}}
    trained = export(model, work / "run" / EXPORT, {EXPORT_FACTS: facts}, head=tensors).parent
    return [
        ("an export's JSON", pretrained, (CONFIG, PRETRAIN), _taken),
        (
            "a trained export's files",
            trained,
            tuple(f"{EXPORT}/{name}" for name in (CONFIG, EXPORT_FACTS, HEAD)),
            _trained,
        ),
    ]


def _taken(copy: Path) -> None:
    """Take the weights by their folder's name, and as those of a backbone; also where that they changed is allowed."""
    modified_files(copy)
    for words in (
        ["knn", "--backbone", "tiny", "--weights", str(copy), "--smoke", "--dry-run"],
        ["linear", "--backbone", str(copy), "--smoke", "--dry-run", "--allow-modified"],
    ):
        with contextlib.suppress(UserError):
            called(run, [*words, "--out", str(copy / "runs")])
    with contextlib.suppress(UserError):
        create("tiny", weights=str(copy))
    read_head(str(copy))
    create(str(copy))


def _trained(run: Path) -> None:
    """Take what a run trained as weights."""
    _taken(run / EXPORT)


def _settings(work: Path) -> list[Place]:
    """A file for `--config` of each task, a recipe of pretraining, a backbone and a sweep."""
    for room in ("tasks", "pretrain", "backbones", "sweeps"):
        (work / room).mkdir(parents=True)
    for name in TASKS:
        shutil.copy(CONFIGS / "tasks" / f"{name}.yaml", work / "tasks")
    for name in ("deit", "dino"):
        shutil.copy(CONFIGS / "pretrain" / f"{name}.yaml", work / "pretrain")
    shutil.copy(CONFIGS / "backbones" / "tiny.yaml", work / "backbones" / "mine.yaml")
    for name, text in SWEEPS.items():
        (work / "sweeps" / name).write_text(text, encoding="utf-8")
    recipes = (work / "pretrain" / f"{name}.yaml" for name in ("deit", "dino"))
    return [
        ("--config", work / "tasks", tuple(f"{name}.yaml" for name in TASKS), _configured),
        *(("recipe", recipe.parent, (recipe.name,), partial(_recipe, recipe.name)) for recipe in recipes),
        ("a backbone's YAML", work / "backbones", ("mine.yaml",), _backbone),
        ("a sweep's YAML", work / "sweeps", tuple(SWEEPS), _sweep),
    ]


SWEEPS = {
    "mine.yaml": """about: two backbones
resources: {gpus: 1, minutes: 30, extra: [--qos=a]}
steps:
  pretrain:
    pretrain: cifar_deit
    backbone: tiny
    dataset: toy_digits
    seeds: [0, 1]
    options: {smoke: true, epochs: 2}
    grid: {stem: [patchify, conv], "attention, qk_norm": [[softmax, true], [relu, false]]}
    resources: {gpus: null, memory_gb: 4}
  reid:
    run: reid
    after: pretrain
    dataset: [toy_market]
    options: {lr: 5.0e-2, smoke: true}
tiers:
  smoke:
    pretrain: {seeds: 0, options: {epochs: 1}, grid: {stem: [patchify]}}
    reid: {options: {epochs: 1}}
report:
  compare:
    - [stem=conv, stem=patchify]
  map: [lr, epochs]
  by: [stem]
  interaction: [stem, attention]
  cost: true
""",
    "rows.yaml": """about: rows
readings: both
steps:
  knn: {run: knn, backbone: tiny, dataset: toy_digits, options: {smoke: true}}
rows:
  - {label: one, knn: {k: 5}}
  - {label: two, knn: {k: {printed: 5 or 7, used: [5, 7]}}}
""",
    "vary.yaml": """about: parts
vary: pretrain
steps:
  pretrain: {pretrain: cifar_deit, backbone: tiny, dataset: toy_digits, options: {smoke: true}}
""",
    "search.yaml": """about: search
steps:
  pretrain: {pretrain: cifar_deit, backbone: tiny, dataset: toy_digits, options: {smoke: true}}
search: {step: pretrain, option: lr, low: 1.0e-4, high: 1.0e-1, budget: 6, ratio: 2, seeds: [0]}
""",
}
"""Sweeps with every key that a sweep may have."""
PLANS = {
    "mine.yaml": (("--tier", "full"), ("--tier", "smoke")),
    "vary.yaml": (("--stem", "conv", "--against", "patchify"),),
}
"""The words, besides its file, of each command that plans a sweep; by default none."""


def _configured(copy: Path) -> None:
    """Each task with its file; all but the changed one are read quickly."""
    for name in TASKS:
        if (copy / f"{name}.yaml").read_bytes() != (CONFIGS / "tasks" / f"{name}.yaml").read_bytes():
            called(run, [name, *WORDS, "--config", str(copy / f"{name}.yaml")])


def _recipe(name: str, copy: Path) -> None:
    called(pretrain, [str(copy / name), "--backbone", "tiny", "--dry-run"])


def _backbone(copy: Path) -> None:
    called(run, ["knn", "--backbone", str(copy / "mine.yaml"), "--smoke", "--dry-run"])
    create(str(copy / "mine.yaml"))


def _sweep(copy: Path) -> None:
    """Plan each sweep that was changed."""
    for name, text in SWEEPS.items():
        if (copy / name).read_text(encoding="utf-8", errors="replace") != text:
            plan_sweep(copy / name)


def plan_sweep(path: Path) -> None:
    """Plan a sweep in each of its ways; raise what is said of a refusal."""
    for words in PLANS.get(path.name, ((),)):
        called(sweep, [str(path), "--dry-run", "--out", str(path.parent / "out"), *words])


def _data_set(work: Path) -> Place:
    """The YAML of a user's image folder, with all keys that one may have."""
    images, _, _ = image_folder(work / "made")
    shutil.move(images, work / "images")
    lines = "format: image_folder\nroot: images\nversion: '1'\nlicense: mine\ncitation: me\nhow: ask\n"
    counts = "counts: {train: {images: 12, classes: 2}, val: {images: 12, classes: 2}}\n"
    (work / "mine.yaml").write_text(lines + counts, encoding="utf-8")

    def read(copy: Path) -> None:
        called(run, ["knn", *WORDS, "--dataset", str(copy / "mine.yaml")])
        try:
            with in_one_line():  # as in commands
                open_classification(resolve_dataset(str(copy / "mine.yaml")), None)
        except UserError as error:
            raise UserError(visible_lines(str(error))) from error  # as commands print it

    return "a data set's YAML", work, ("mine.yaml",), read
