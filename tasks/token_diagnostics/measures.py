"""The measures of a backbone's tokens over many images, as plain values. Shapes: M images."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset

from backbones.engine.context import Context
from backbones.engine.extract import compute_rows
from tasks.token_diagnostics.recorder import Recorder
from tasks.token_diagnostics.statistics import ATTENTION_FIELDS, TOKEN_FIELDS

CPU_BATCH = 16


def evenly(images: int, total: int) -> NDArray[Any]:
    """Return the places of `images` images, evenly spaced in a list of `total`."""
    return np.arange(images) * total // images


def observe(
    recorder: Recorder, images: Subset[tuple[Tensor, Tensor]], context: Context, *, batch_size: int
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Return the fields [M, F] of each place and [M, G] of each attention, the same on every rank."""

    def compute(pixels: Tensor, labels: Tensor) -> Tensor:
        size = CPU_BATCH if pixels.device.type == "cpu" else len(pixels)
        return torch.cat([recorder.rows(chunk) for chunk in pixels.split(size)])

    values = compute_rows(compute, images, context, batch_size=batch_size, label="tokens").numpy()
    with torch.inference_mode(), context.scoring():  # tells a rank without an image the places, too
        recorder.rows(images[0][0][None].to(context.device))
    return recorder.columns(values)


def layer_facts(recorder: Recorder, places: list[NDArray[Any]]) -> list[dict[str, Any]]:
    """Describe every place, with the means over the images, as plain values."""
    return [about | _layer(rows) for about, rows in zip(recorder.layers, places, strict=True)]


def attention_facts(recorder: Recorder, attentions: list[NDArray[Any]]) -> list[dict[str, Any]]:
    """Describe every attention, with the means over the images, as plain values."""
    return [about | _attention(rows) for about, rows in zip(recorder.attentions, attentions, strict=True)]


def _layer(rows: NDArray[Any]) -> dict[str, Any]:
    """Return the means over the images of fields [M, F], None if undefined for all, and the similarity's deviation."""
    facts: dict[str, Any] = {name: _mean(rows[:, place]) for place, name in enumerate(TOKEN_FIELDS)}
    similarity = rows[:, TOKEN_FIELDS.index("similarity")]
    defined = similarity[np.isfinite(similarity)]
    return facts | {"similarity_sd": float(defined.std(ddof=1)) if len(defined) > 1 else None}


def _attention(rows: NDArray[Any]) -> dict[str, Any]:
    """Return the means over the images of fields [M, G], but the extremes of the smallest and largest row sum."""
    facts: dict[str, Any] = {name: _mean(rows[:, place]) for place, name in enumerate(ATTENTION_FIELDS)}
    smallest, largest = (ATTENTION_FIELDS.index(f"row_sum_{which}") for which in ("smallest", "largest"))
    return facts | {
        "row_sum_smallest": float(rows[:, smallest].min()),
        "row_sum_largest": float(rows[:, largest].max()),
    }


def _mean(values: NDArray[Any]) -> float | None:
    """Return the mean of the finite values; None when there are none."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else None
