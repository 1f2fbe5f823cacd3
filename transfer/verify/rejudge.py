"""What today's rule says of a finished run's training, from its history. Nothing is changed."""

import math
from collections.abc import Container
from pathlib import Path

from backbones.engine.outcome import RULE, Outcome, Signs, judge
from transfer.records.record import Record
from transfer.records.store import history


def rejudged(folder: Path, record: Record) -> Outcome:
    """Return the outcome of a run's training by today's rule; what does not depend on its history stays as recorded."""
    recorded, of_rule = record.outcome, record.outcome.get("rule") == RULE
    step = int(recorded["step"])
    scored = of_rule and not recorded["signs"]  # its failure was found where it was scored
    if not record.options.get("epochs") or recorded["status"] == "nonfinite" or scored:
        return Outcome(recorded["status"], recorded["reason"], step)
    lines = [line for line in history(folder, "lr") if "loss" in line]
    if len(lines) != step:
        return Outcome("not_judged", f"history.jsonl has {len(lines)} of {step} steps", step)
    made = [line for line in lines if not line.get("skipped") and None not in line.values()]
    columns = {name: [line[name] for line in made if name in line] for name in (made[0] if made else ())}
    signs = Signs(**recorded["signs"]) if of_rule else _signs(record, columns)
    if signs is None:
        return Outcome("not_judged", "its record does not say how many classes there were", step)
    scores = history(folder, signs.validation[0]) if signs.validation else []
    return judge(columns, signs, step, scores[-1][signs.validation[0]] if signs.validation and scores else None)


def _signs(record: Record, columns: Container[str]) -> Signs | None:
    """Return the signs of a training of the suite whose record has none; None without the number of its classes.

    Classes count as equally frequent.
    """
    options, counts = record.options, (record.dataset.get("counts") or {}).get("train", {})
    if "teacher_entropy" in columns:
        uniform = math.log(options["out_dim"])
        return Signs(moving_targets=True, bounds={"teacher_entropy": (0.01 * uniform, 0.99 * uniform)})
    classes = counts.get("identities") if record.task == "reid" else counts.get("classes")
    if record.task not in ("reid", "linear", "finetune", "pretrain-supervised") or options.get("loss") == "sigmoid":
        return Signs()
    if record.task == "reid" and not options.get("identity_weight", 1):
        margin = options.get("margin")
        return Signs(statistic="triplet_loss", chance=math.log(2) if margin is None else margin)
    name = next((name for name in ("identity_loss", "class_loss") if name in columns), "loss")
    return Signs(statistic=name, chance=math.log(classes)) if classes else None
