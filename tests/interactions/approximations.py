"""What must come to nearly the same: sums in another order, on another number of ranks, in half the digits."""

import copy
import random
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from backbones.backbone import Backbone, create
from backbones.runtime.precision import DTYPES
from tests.interactions.bench import Bench, outcomes_of
from tests.interactions.commands import Command, Ran, backbone_of, parts_of
from tests.interactions.covering import Row
from tests.interactions.equalities import Equality, Problems
from tests.interactions.invariants import lines_of
from tests.interactions.options import WORKS
from tests.interactions.places import Places

FIRST, LAST = 2e-4, 2e-2
"""Relative difference of a loss in the first step, and in any: rounding grows with the steps."""
FLIPPED = 0.2
"""Share of the samples whose place may differ where features differ by rounding: ties of so few images."""
FLOAT32, BFLOAT16 = 4e-6, 0.015
"""Relative error of an image's pooled features against float64, |f - f64| / |f64|, over the parts of this suite as they
are initialised, at up to 32 tokens. bf16 has 8 bits: 2^-9 a rounding, some dozens of them on the way, at random."""
STILL = {"deit": "--mixup 0 --cutmix 0 --drop-path 0", "dino": "--drop-path 0", "volo": "--drop-path 0",
         "finetune": "--drop-path 0", "bigvision_i21k": "--mixup 0", "reid": "--drop-path 0", "linear": ""}  # fmt: skip
"""What draws numbers for a whole batch, off."""


def _near(one: Ran, two: Ran, what: str) -> Problems:
    if two.status not in (0, 3) or one.status != two.status:
        return [f"{what}: exit status {one.status} and {two.status} ({two.stderr.strip()[-300:]}): {two.line}"]
    return [f"{what}: {text}: {two.line}" for text in [*_steps(one, two), *_outcomes(one, two)]]


def _steps(one: Ran, two: Ran) -> Iterable[str]:
    pairs = [[line for line in lines_of(ran.runs[0]) if "loss" in line] for ran in (one, two)]
    if [line["step"] for line in pairs[0]] != [line["step"] for line in pairs[1]]:
        yield "another number of steps"
        return
    for a, b in zip(*pairs, strict=True):
        bound = FIRST if a["step"] == 1 else LAST
        for name in ("loss", "grad_norm"):
            if abs(a[name] - b[name]) > bound * abs(a[name]) + 1e-6:
                yield f"{name} {a[name]:.7g} and {b[name]:.7g} in step {a['step']}"
                return


def _outcomes(one: Ran, two: Ran) -> Iterable[str]:
    a, b = outcomes_of(one.runs[0]), outcomes_of(two.runs[0])
    if a.keys() != b.keys():
        yield f"outcomes {sorted(a)} and {sorted(b)}"
        return
    for name in a:
        if a[name].shape != b[name].shape:
            yield f"{name} of shape {a[name].shape} and {b[name].shape}"
        elif a[name].dtype.kind == "f":
            apart = ~np.isclose(a[name], b[name], rtol=1e-3, atol=1e-4, equal_nan=True)
            if apart.mean() > FLIPPED:
                yield f"{name}: {apart.mean():.0%} apart"
        elif name in ("sample", "cluster") and not np.array_equal(a[name], b[name]):
            yield f"another {name}"
        elif (a[name] != b[name]).mean() > FLIPPED:
            yield f"{name}: {(a[name] != b[name]).mean():.0%} differ"


def _stilled(bench: Bench, ran: Ran, row: Row) -> tuple[Command, Ran]:
    """The command with nothing drawn for a batch, and run so."""
    words = STILL.get(row["work"], "").split()
    if not words:
        return ran.command, ran
    command = ran.command.with_words(*words)
    return command, bench.run(command)


def accumulated(bench: Bench, ran: Ran, row: Row) -> Problems:
    """The batch in two parts."""
    command, one = _stilled(bench, ran, row)
    two = bench.run(command.with_words("--grad-accum-steps", "2"))
    return _near(one, two, "--grad-accum-steps 2")


def by_two_ranks(bench: Bench, ran: Ran, row: Row) -> Problems:
    """Two ranks, batch norm synchronised."""
    command, one = _stilled(bench, ran, row)
    if WORKS[row["work"]].trains:
        command = command.with_words("--sync-bn")
        one = bench.run(command)
    return _near(one, bench.run(Command(command.program, command.words, 2)), "two ranks")


def by_shared_tokens(bench: Bench, ran: Ran, row: Row) -> Problems:
    """Two ranks that share the tokens of each image."""
    command, one = _stilled(bench, ran, row)
    two = Command(command.program, (*command.words, "--sequence-parallel", "2"), 2)
    return _near(one, bench.run(two), "--sequence-parallel 2")


def in_other_batches(bench: Bench, ran: Ran, row: Row) -> Problems:
    """Features of so many images at a time."""
    number = random.Random(str(sorted(row.items()))).choice(("1", "3", "5"))
    return _near(ran, bench.run(ran.command.with_words("--eval-batch", number)), f"--eval-batch {number}")


def _exact(row: Row) -> bool:
    return row["precision"] == row["eval_precision"] == "fp32" and row["ranks"] == "1" and row["part"] != "drop_path"


def _without_statistics(row: Row) -> bool:
    """Whether no batch norm is in the backbone."""
    return (
        row["family"] in ("vit", "volo", "timm_vit", "convnext")
        and row["stem"] in ("patchify", "conv_srelu", "user")
        and row["ffn"] != "conv1d_bn"
    )


def _sums(row: Row) -> bool:
    """Whether the loss of a batch is the mean of those of its parts."""
    return _exact(row) and row["work"] in ("linear", "finetune", "deit", "volo", "bigvision_i21k", "dino")


APPROXIMATIONS = (
    Equality(
        "accumulated",
        lambda row: _sums(row) and _without_statistics(row) and row["accumulate"] == "1",
        accumulated,
    ),
    Equality("in other batches", _exact, in_other_batches),
    Equality("by two ranks", lambda row: _exact(row) and row["work"] != "detect", by_two_ranks),
    Equality(
        "by shared tokens",
        lambda row: _sums(row) and row["work"] in ("deit", "dino") and row["family"] in ("vit", "timm_vit")
        and _without_statistics(row) and row["optimiser"] in ("adamw", "sgd"),
        by_shared_tokens,
    ),
)  # fmt: skip
BY_TWO = ("by two ranks", "by shared tokens")


@torch.no_grad()
def error_of(backbone: Backbone, images: Tensor, precision: str) -> float:
    """The largest |f - f64| / |f64| of the images' pooled features in a precision."""
    exact = in_float64(backbone).pooled(images.double())
    with torch.autocast("cpu", DTYPES[precision], enabled=precision != "fp32"):
        found = backbone.eval().pooled(images)
    return float(((found.double() - exact).norm(dim=1) / exact.norm(dim=1)).max())


def in_float64(backbone: Backbone) -> Backbone:
    """The same weights in float64."""
    return copy.deepcopy(backbone).double().eval()


def created(row: Row, places: Places) -> Backbone:
    """The backbone of a row, with random weights that do not depend on what ran before."""
    torch.manual_seed(11)
    return create(backbone_of(row, places), img_size=64, weights="random", **parts_of(row, places))
