"""Diagnostics of the tokens of a frozen backbone, place by place: how alike they are, how large, of which rank.

Figure 1 of "Scaled ReLU Matters for Training Vision Transformers" (arXiv 2109.03810) has the similarity after the stem,
after positions and after each block; here also around every activation of the stem, with both sides of the paper's
inequality (6), the attention's row sums and entropy (arXiv 2309.08586), and what theorem 1 is about.

Letters: M images, P places, F fields of a place, A attentions, G fields of an attention.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from backbones.backbone import create
from backbones.data.classification import ClassificationData, SplitDataset
from backbones.engine.context import Context
from backbones.engine.extract import rows_of
from backbones.engine.finite import NotFinite, check_finite
from backbones.engine.options import check_ranges
from backbones.engine.seeding import seed_torch
from backbones.errors import WrongWords
from backbones.flops import flops
from backbones.pretrain.accuracy import image_outcomes
from backbones.pretrain.augment import eval_transform
from backbones.spec import BackboneSpec
from tasks.classification import Classification, FrozenOptions
from tasks.diagnostics import ATTENTION_FIELDS, TOKEN_FIELDS
from tasks.task import Metric, Outcomes, Scores
from tasks.tokens_places import find_places
from tasks.tokens_recorder import Recorder
from tasks.tokens_stem import stem_facts

SCORED = {"stem": "similarity_stem", "positions": "similarity_positions", "block": "similarity_last"}
"""Kind of place -> the score; of several places of a kind the last one counts."""
CPU_BATCH = 16


@dataclass(kw_only=True)
class TokensOptions(FrozenOptions):
    """Options of `transfer.run tokens`."""

    images: int | None
    """How many images of the validation split, evenly spaced in its list; None: all."""
    class_token: bool
    """Whether the class token and registers count as tokens, from the positions on. The paper does not say."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, 1, None, "images")


class Tokens(Classification):
    """Mean cosine similarity of an image's tokens at three places; everything else stands in the record's details."""

    name, version, options, primary, trains = "tokens", 2, TokensOptions, "similarity_stem", False
    metrics = {  # noqa: RUF012
        name: Metric(unit="cosine", direction="lower", bounds=(-1.0, 1.0)) for name in SCORED.values()
    }

    def check(self, spec: BackboneSpec, dataset: ClassificationData, options: TokensOptions, context: Context) -> None:
        """A backbone whose tokens can be found, for this size, and as many images as are wanted."""
        super().check(spec, dataset, options, context)
        find_places(create(spec, img_size=options.size, weights="random", load="strict"))
        assert dataset.val is not None
        if options.images is not None and options.images > len(dataset.val):
            raise WrongWords(f"--images {options.images}: {dataset.name} has {len(dataset.val)} for validation")

    def run(
        self, spec: BackboneSpec, dataset: ClassificationData, options: TokensOptions, context: Context
    ) -> tuple[Scores, Outcomes]:
        """Sends the images through the backbone and records what it shows of its tokens."""
        start = time.monotonic()
        assert dataset.val is not None
        seed_torch(context.seed)
        backbone = create(spec, img_size=options.size).to(context.device).eval().requires_grad_(False)
        context.note_backbone(backbone, flops(backbone, options.size), options.eval_batch)
        total = len(dataset.val)
        chosen = evenly(options.images or total, total)
        view = SplitDataset(dataset.val, eval_transform(options.size, options.resize), preload=False)
        recorder = Recorder(backbone, options.class_token)
        images = Subset(view, chosen.tolist())
        places, attentions = observe(recorder, images, context, batch_size=options.eval_batch)
        first = view[chosen[0]][0][None].to(context.device)
        stem = stem_facts(backbone, first)
        context.cost.eval_seconds += time.monotonic() - start
        context.details["layers"] = layer_facts(recorder, places)
        try:
            _check_finite(places, attentions, [dataset.val.names[index] for index in chosen.tolist()])
        except NotFinite as broken:
            context.not_finite(broken)
            return {}, {}
        context.details["attention"] = attention_facts(recorder, attentions)
        context.details["stem"] = {name: facts for name, facts in stem.items() if name != "missing"}
        context.details["missing"] = [*recorder.missing, *stem["missing"]]
        every = image_outcomes(dataset.val)
        outcomes = {name: column[chosen] for name, column in every.items()} | _scored(recorder, places)
        scores = self.rescore(outcomes)
        for what in context.details["missing"]:
            context.note(f"not to be had: {what}")
        for name in [name for name in outcomes if name in self.metrics and name not in scores]:
            context.note(f"{name} is not defined: no image has two tokens there that are not zero")
        return scores, outcomes

    def rescore(self, outcomes: Outcomes) -> Scores:
        """Means over the images whose similarity is defined at that place; no score where it is so for none."""
        means = {name: _mean(outcomes[name]) for name in SCORED.values() if name in outcomes}
        return {name: mean for name, mean in means.items() if mean is not None}


def evenly(images: int, total: int) -> np.ndarray:
    """Places of so many images, evenly spaced in a list of `total`."""
    return np.arange(images) * total // images


def observe(
    recorder: Recorder, images: Subset[tuple[Tensor, Tensor]], context: Context, *, batch_size: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """[M, F] of each place, [M, G] of each attention, the same on every rank."""

    def compute(pixels: Tensor, labels: Tensor) -> Tensor:
        size = CPU_BATCH if pixels.device.type == "cpu" else len(pixels)
        return torch.cat([recorder.rows(part) for part in pixels.split(size)])

    values = rows_of(compute, images, context, batch_size=batch_size, label="tokens").numpy()
    with torch.inference_mode(), context.scoring():  # so that a rank without an image knows the places, too
        recorder.rows(images[0][0][None].to(context.device))
    return recorder.columns(values)


def _check_finite(places: list[np.ndarray], attentions: list[np.ndarray], names: Sequence[str]) -> None:
    """Raises NotFinite, by fields that are defined for whatever is finite."""
    parts = [
        ("tokens", places, TOKEN_FIELDS.index("norm")),
        ("attention weights", attentions, ATTENTION_FIELDS.index("row_sum")),
    ]
    for what, several, field in parts:
        if several:
            rows = torch.from_numpy(np.stack([rows[:, field] for rows in several], axis=1))
            check_finite(rows, names, f"{what} of the val split")


def layer_facts(recorder: Recorder, places: list[np.ndarray]) -> list[dict[str, Any]]:
    """Of every place what it is, and the means over the images, as plain values."""
    return [about | _layer(rows) for about, rows in zip(recorder.layers, places, strict=True)]


def attention_facts(recorder: Recorder, attentions: list[np.ndarray]) -> list[dict[str, Any]]:
    """Of every attention what it is, and the means over the images, as plain values."""
    return [about | _attention(rows) for about, rows in zip(recorder.attentions, attentions, strict=True)]


def _scored(recorder: Recorder, places: list[np.ndarray]) -> Outcomes:
    last = {about["kind"]: rows for about, rows in zip(recorder.layers, places, strict=True)}
    similarity = TOKEN_FIELDS.index("similarity")
    return {name: last[kind][:, similarity] for kind, name in SCORED.items() if kind in last}


def _layer(rows: np.ndarray) -> dict[str, Any]:
    """Means over the images [M, F], None of what is defined for none, and the similarity's deviation between them."""
    facts: dict[str, Any] = {name: _mean(rows[:, place]) for place, name in enumerate(TOKEN_FIELDS)}
    similarity = rows[:, TOKEN_FIELDS.index("similarity")]
    defined = similarity[np.isfinite(similarity)]
    return facts | {"similarity_sd": float(defined.std(ddof=1)) if len(defined) > 1 else None}


def _attention(rows: np.ndarray) -> dict[str, Any]:
    """Means [M, G] over the images; of the smallest and largest row sum the extremes."""
    facts: dict[str, Any] = {name: _mean(rows[:, place]) for place, name in enumerate(ATTENTION_FIELDS)}
    smallest, largest = (ATTENTION_FIELDS.index(f"row_sum_{which}") for which in ("smallest", "largest"))
    return facts | {
        "row_sum_smallest": float(rows[:, smallest].min()),
        "row_sum_largest": float(rows[:, largest].max()),
    }


def _mean(values: np.ndarray) -> float | None:
    """Over the values that are defined; None where none is."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else None


TASK = Tokens()
