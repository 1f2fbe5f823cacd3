"""Records of reid and of pretraining as the evaluator writes them, for tests that need many that differ in little."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tests.runs import ended
from tests.transfer.records.test_store import CONTENT, record
from transfer.records.record import Record, RunKey
from transfer.records.run_set import StoredRuns
from transfer.records.store import Store, StoredRun
from transfer.task import load_task

SPEC = {
    "name": "tiny", "arch": "vit_tiny", "stem": "patchify", "attention": "softmax", "ffn": "mlp", "patch": 16,
    "length": "tokens", "train_size": [224, 224], "drop_path": 0.1,
}  # fmt: skip
OPTIONS: dict[str, Any] = {"lr": 0.05, "epochs": 20, "warmup_epochs": 7.0, "optimizer": "sgd", "size": [64, 32]}
IDLE = {"sam_rho": 0.05}
ASIDE = {"backbone": "tiny", "out": "runs", "threads": 2, "precision": "auto", "stem": None, "weights": "config"}


def made(task: str = "reid", *, idle: tuple[str, ...] = tuple(IDLE), **given: Any) -> Record:
    """A record of the suite's own making: what is given goes to the options, the backbone or the record itself.

    Args:
        idle: options that have no effect, and so are no part of the identity.
    """
    options = OPTIONS | IDLE | ASIDE | {name: given.pop(name) for name in [*given] if name in OPTIONS | IDLE}
    if task in ("knn", "fewshot", "classify", "tokens"):  # which train nothing
        del options["epochs"], options["precision"]
    spec = {**SPEC, **{name: given.pop(name) for name in list(given) if name in SPEC}, **given.pop("backbone", {})}
    named = {"name": "toy_market", **given.pop("dataset", {})}
    digest = ("d" if named["name"] == "toy_market" else "e") * 64
    data = {"version": "1", "digest": digest, "skipped": 0, **named}
    values = {"seed": 0, "smoke": False, "subset": None, "weights_id": "random", "task_version": 1} | given
    content = {name: values[name] for name in ("seed", "smoke", "subset", "weights_id", "task_version")}
    by_content = {part: f"sha256:{digest}" for part, digest in spec.get("files", {}).items()}
    content |= {"task": task, "backbone": {name: value for name, value in spec.items() if name != "files"} | by_content}
    content |= {"dataset": data, "precision": "bf16", **values.pop("run_key_content", {})}
    content["options"] = {name: value for name, value in options.items() if name not in {*idle, *ASIDE}}
    run_key = RunKey(content)
    usual: dict[str, Any] = {
        "run_id": run_key.run_id(task, str(data["name"]), str(spec["name"])),
        "task": task,
        "dataset": data,
        "backbone": {**spec, "weights": "random", "files": spec.get("files", {})},
        "options": options | {"seeds": [values["seed"]]},
        "run_key_content": content,
        "environment": {"precision": "bf16", "dirty": False, "device": "cpu", "threads": 2, "workers": 1},
    }
    return record(run_key, **usual | values)


def trained(export: str, **given: Any) -> Record:
    """A record of pretraining that left weights."""
    return made("pretrain-dino", **{"export": export, "dataset": {"name": "toy_digits"}, **given})


def broken(status: str = "diverged", step: int = 12, **given: Any) -> Record:
    """A record of a training that broke down."""
    return made(scores={}, outcome=ended(status, step), **given)


def classifier(stem: str, lr: float, hits: int, status: str = "completed", **given: Any) -> Record:
    """A supervised training on ten classes with so many of 1,000 test images right; no score if it failed."""
    scores = {"top1": hits / 1000} if status in ("completed", "not_judged") else {}
    counts = {"train": {"images": 4000, "classes": 10}, "val": {"images": 1000, "classes": 10}}
    given |= {"dataset": {"name": "cifar10", "counts": counts}, "metrics": {"top1": {}}, "primary": "top1"}
    outcome = ended(status, reason="12 steps, and fewer than 20 are not judged" if status == "not_judged" else "")
    return made("pretrain-supervised", stem=stem, lr=lr, scores=scores, outcome=outcome, **given)


def scored(root: Path, task: str, outcomes: dict[str, np.ndarray], name: str, **given: Any) -> StoredRun:
    """A finished run as the store writes it; its scores are those of the outcomes unless others are given."""
    of_task = load_task(task)
    scores = given.pop("scores", None) or of_task.rescore(outcomes)
    about: dict[str, Any] = {"run_id": name, "primary": of_task.primary}
    about["metrics"] = {score: asdict(of_task.metric(score)) for score in scores}
    whole = record(RunKey({**CONTENT, "task": task, "name": name}), **about | given, task=task, scores=scores)
    (root / name).mkdir(parents=True, exist_ok=True)
    return StoredRun(root / name, Store(root).write(whole, "lr: 0.05\n", outcomes))


def run_set(records: Iterable[Record], known: Iterable[Record] | None = None) -> StoredRuns:
    """A set of the runs of records whose folders do not matter."""
    sets = [None if ones is None else [StoredRun(Path(one.run_id), one) for one in ones] for ones in (records, known)]
    return StoredRuns.of(sets[0] or [], sets[1])
