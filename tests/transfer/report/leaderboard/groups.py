"""Runs of several groups of researchers, packed into bundles: twelve of them, as a leaderboard meets them."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.ranking.metrics import rank
from tasks.reid import TASK
from tests.transfer.records.test_store import CONTENT, record
from transfer.records.checksums import size_and_sha256, with_checksum
from transfer.records.record import RunKey
from transfer.records.store import Run, Store
from transfer.share.bundle import bundle

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


def forged(source: Path, target: Path) -> None:
    """A copy of a bundle whose runs claim a better mAP, with checksums that fit."""
    with zipfile.ZipFile(source) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    scratch = target.with_suffix(".scrap")
    for name, content in files.items():
        if name.endswith("record.json"):
            claimed = json.loads(content)
            claimed["scores"]["mAP"] = 0.999
            claimed.pop("digest")
            content = files[name] = with_checksum(claimed)
        scratch.write_bytes(content)
        run, _, file = name.partition("/")
        manifest["runs"][run][file] = size_and_sha256(scratch)
    scratch.unlink()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, content in files.items():
            archive.writestr(name, content)


def twelve_bundles(folder: Path) -> Mapping[str, list[Run]]:
    """Write twelve bundles into a folder; return the runs of each by its name.

    Nine groups sent runs of one protocol, of which two are told apart from nobody and one broke down; of the others one
    is forged, one has another learning rate, and one is a duplicate of the first.
    """
    folder.mkdir()
    runs = folder.parent / "runs-of"

    def group(name: str, **given: Any) -> list[Run]:
        seeds = given.pop("seeds", range(5))
        return [reid_run(runs / name, seed=seed, **{"signal": 1.0, **given}) for seed in seeds]

    broken = {"scores": {}, "outcome": {"status": "diverged", "reason": "loss", "step": 9}}
    sent = {
        "best.zip": group("best", stem="conv", signal=2.5),
        "second.zip": group("second", stem="sconv", signal=1.6),
        "middle-a.zip": group("middle-a", stem="gelu", signal=1.0),
        "middle-b.zip": group("middle-b", stem="norm", signal=1.0),
        "middle-c.zip": group("middle-c", stem="pool", signal=1.0),
        "one-seed.zip": group("one-seed", stem="deep", signal=1.0, seeds=(0,)),
        "last.zip": group("last", stem="patchify", signal=0.3),
        "more-seeds.zip": group("more-seeds", stem="patchify", signal=0.3, seeds=(5, 6)),
        "broken.zip": group("broken", stem="thin", seeds=(0,), **broken),
        "other-rate.zip": group("other-rate", stem="conv", signal=2.5, lr=0.1),
    }
    for name, members in sent.items():
        bundle(members, folder / name)
    forged(folder / "last.zip", folder / "forged.zip")
    (folder / "twin.zip").write_bytes((folder / "best.zip").read_bytes())
    return sent
