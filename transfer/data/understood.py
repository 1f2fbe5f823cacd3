"""What was understood of an opened dataset: lines for `doctor data` and a run's start, and facts for its record."""

from typing import Any

import numpy as np


def understood(opened: Any) -> dict[str, Any]:
    """Return by split the rarest and the commonest label, each with the number `of` its images, objects or
    pixels; and `pictures`, see `OpenedData`.

    Args:
        opened: an `OpenedData`; of a user's task anything, of which less may be known.
    """
    labels: dict[str, Any] = {}
    for split, (unit, names, counts) in getattr(opened, "labelled", dict)().items():
        present = np.flatnonzero(counts)
        if len(present):
            ends = {"rarest": present[counts[present].argmin()], "commonest": present[counts[present].argmax()]}
            labels[split] = {"of": unit} | {end: [str(names[at]), int(counts[at])] for end, at in ends.items()}
    return {"labels": labels, "pictures": getattr(opened, "pictures", {})}


def statement(opened: Any) -> list[str]:
    """Return `understood` in up to three lines: the counts of each split, the labels, and the pictures."""
    facts, splits, others = understood(opened), list[str](), list[str]()
    if pictures := facts["pictures"]:
        sizes = dict.fromkeys("{} x {}".format(*pictures[end]) for end in ("smallest", "largest"))
        modes = ", ".join(f"{count:,} {mode}" for mode, count in pictures.get("modes", {}).items())
        others.append(f"pictures of {' to '.join(sizes)} pixels{f' ({modes})' if modes else ''}")
    for split, counts in opened.counts.items():
        if isinstance(counts, dict):
            splits.append(f"{split} " + ", ".join(f"{number:,} {unit}" for unit, number in counts.items()))
        elif counts:
            others.append(f"{counts:,} {split}")
    labels = list[str]()
    for split, ends in facts["labels"].items():
        (rare, fewest), (common, most) = ends["rarest"], ends["commonest"]
        unit = "" if labels else f"{ends['of']}: "
        span = f"{most:,} each" if fewest == most else f"{fewest:,} ({rare}) to {most:,} ({common})"
        labels.append(f"{unit}{split} {span}")
    return ["; ".join(part) for part in (splits, labels, others) if part]
