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
        if len(present) > 1:
            ends = {"rarest": present[counts[present].argmin()], "commonest": present[counts[present].argmax()]}
            labels[split] = {"of": unit} | {end: [str(names[at]), int(counts[at])] for end, at in ends.items()}
    return {"labels": labels, "pictures": getattr(opened, "pictures", {})}


def statement(opened: Any) -> list[str]:
    """Return counts and `understood` in lines, one for each split and one for the pictures and what is in no split."""
    facts, said, others = understood(opened), list[str](), list[str]()
    if pictures := facts["pictures"]:
        sizes = dict.fromkeys("{} x {}".format(*pictures[end]) for end in ("smallest", "largest"))
        modes = ", ".join(f"{count:,} {mode}" for mode, count in pictures.get("modes", {}).items())
        others.append(f"pictures of {' to '.join(sizes)} pixels{f' ({modes})' * bool(modes)}")
    for split, counts in opened.counts.items():
        if not isinstance(counts, dict):
            others += [f"{counts:,} {split}"] * bool(counts)
            continue
        text = ", ".join(f"{number:,} {unit}" for unit, number in counts.items())
        if labels := facts["labels"].get(split):
            (rarest, fewest), (commonest, most) = labels["rarest"], labels["commonest"]
            ends = f"{fewest:,} ({rarest}) to {most:,} ({commonest})" if fewest < most else f"{most:,} each"
            text += f"; {labels['of']}: {ends}"
        said.append(f"{split}: {text}")
    return [*said, *(["; ".join(others)] if others else [])]
