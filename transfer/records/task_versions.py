"""The changes between the versions of a task, whose scores must not be compared. Imports no torch."""

from collections.abc import Iterable

_VIEW = "a resize of None is size / 0.875 rounded down where it was rounded up (32, 96, 160, 256, 320 and 384 px)"
_POSITIONS = "positions are resampled as the backbone's pos_resample says, where it was timm's antialiased way"
_SCORING = "scored in eval_precision, fp32 by default, where it was the precision of training"
_FROZEN = "computed in eval_precision, fp32 by default, where it was called precision"
_TRAINING = (
    "layer decay by one rule; statistics of frozen batch norms stay; trainings in half precision keep float32 in "
    "losses, averages, temperatures and learned factors, and a step that fp16's scaler leaves out moves nothing"
)

CHANGES: dict[tuple[str, int], str] = {
    ("reid", 2): f"{_SCORING}; distances by centred features, near-ties decided in float64; {_POSITIONS}; {_TRAINING}",
    ("detect", 2): (
        f"{_SCORING}; float32 from the heads on in training, too; whole images padded with the mean instead of grey; "
        "windows without padded keys; scores independent of eval_batch; no decay of norms and learned scalars of the "
        f"stem; objects below one pixel left out; {_POSITIONS}; {_TRAINING}"
    ),
    ("fewshot", 2): f"{_FROZEN}; k-NN probes vote in float64, at any temperature; {_POSITIONS}",
    ("knn", 2): (
        f"{_FROZEN}; top5 of fewer than 5 neighbours takes as many classes; similarities and votes in float64; "
        f"{_VIEW}; {_POSITIONS}"
    ),
    ("classify", 2): f"{_FROZEN}; {_VIEW}; {_POSITIONS}",
    ("tokens", 2): f"{_FROZEN}; {_VIEW}; {_POSITIONS}",
    ("linear", 2): f"{_SCORING}; {_VIEW}; {_POSITIONS}",
    ("finetune", 2): f"{_SCORING}; {_VIEW}; {_POSITIONS}; {_TRAINING}",
    ("pretrain-supervised", 2): f"{_SCORING}; {_VIEW}; {_POSITIONS}; {_TRAINING}",
    ("pretrain-dino", 2): (f"{_SCORING}; k-NN in float64; {_VIEW}; {_POSITIONS}; {_TRAINING}"),
}
"""The changes since the version before, for readers of tables, by (task, version)."""


def latest(task: str) -> int:
    """Return the newest version of a task."""
    return max((version for name, version in CHANGES if name == task), default=1)


def between(task: str, versions: Iterable[int]) -> list[str]:
    """Return the changes between versions of a task, a line for each version after the oldest of them."""
    seen = {*versions}
    known = sorted(version for name, version in CHANGES if name == task)
    later = [version for version in known if min(seen, default=version) < version <= max(seen, default=0)]
    return [f"{task}, version {version}: {CHANGES[task, version]}" for version in later]
