"""Finished ReID runs whose scores are those of their outcomes."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tasks.ranking.metrics import rank
from tasks.reid.task import TASK
from tests.transfer.records.test_store import CONTENT, record
from transfer.records.record import RunKey
from transfer.records.store import Run, Store

IDENTITIES = 60


def reid_run(root: Path, *, stem: str, signal: float, seed: int = 0, lr: float = 0.05, **given: Any) -> Run:
    """A finished ReID run whose scores are those of its outcomes.

    Args:
        signal: how far the two images of an identity are alike; 0 leaves chance.
    """
    random = np.random.default_rng([seed, sum(map(ord, stem))])
    ids = np.arange(IDENTITIES)
    people = np.random.default_rng(0).normal(size=(IDENTITIES, 16))  # the same for all, so that hard queries are shared
    query, gallery = (signal * people + random.normal(size=people.shape) for _ in range(2))
    ranking = rank(query, gallery, ids, ids, np.zeros(IDENTITIES, int), np.ones(IDENTITIES, int))
    outcomes = ranking.outcomes() | {
        "sample": np.array([f"{place:04d}_c1s1_000151_00.jpg" for place in ids]),
        "cluster": ids,
    }
    options = CONTENT["options"] | {"lr": lr}
    backbone = {"name": f"tiny_{stem}", "stem": stem, "attention": "softmax"}
    content = CONTENT | {"seed": seed, "options": options, "smoke": False}
    run_key = RunKey(content | {"backbone": backbone | {"files": {}}})
    values: dict[str, Any] = {
        "run_id": run_key.run_id("reid", "toy_market", backbone["name"]),
        "run_key_content": run_key.content,
        "seed": seed,
        "scores": TASK.rescore(outcomes),
        "metrics": {name: json.loads(json.dumps(TASK.metric(name).as_dict())) for name in TASK.rescore(outcomes)},
        "options": options | {"backbone": backbone["name"], "data": "/home/me/data"},
        "backbone": backbone | {"files": {}},
        "cost": {"train_seconds": 1.0, "gflops": 1.25 if stem == "conv" else 1.0, "params": 5_000_000},
        "environment": {"precision": "bf16", "started": f"2026-01-{seed + 1:02d}", "device": "a machine"},
    }
    mine = record(run_key, **(values | given))
    store = Store(root)
    store.folder(mine.run_id).mkdir(parents=True, exist_ok=True)
    scored = {} if mine.training_failed else outcomes
    return Run(store.folder(mine.run_id), store.write(mine, f"# rm -rf ~\n{json.dumps(values['options'])}\n", scored))
