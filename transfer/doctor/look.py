"""`python -m transfer.doctor data NAME --look FILE.html`: drawn samples of a dataset with their labels, for the eye."""

import base64
import html
import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw
from torchvision.transforms.v2.functional import to_pil_image

from transfer.core.files import write_atomic
from transfer.core.pictures import BOX_COLORS, evenly_spaced
from transfer.data.classification import ClassificationData
from transfer.data.coco.dataset import CocoData
from transfer.data.coco.split import CocoSplit
from transfer.data.formats.masks import MaskSplit
from transfer.data.understood import statement

SAMPLES, SIDE = 12, 320
LOOK_PAGE = """<!doctype html><meta charset="utf-8"><title>{name}</title>
<style>body {{ font-family: sans-serif }}
figure {{ display: inline-block; margin: 8px; vertical-align: top; width: 330px }}
figcaption {{ overflow-wrap: anywhere }}</style>
<h1>{name}</h1><p>{lines}</p><p>{legend}</p>
{figures}
"""
Sample = tuple[Image.Image, str]


def write_look(opened: Any, file: Path) -> None:
    """Write a page of `SAMPLES` samples, spread over the splits: with class, person and camera, boxes, or mask.

    Raises:
        UserError: an image cannot be read, or the page cannot be written.
    """
    figures = "\n".join(_figure(*sample) for sample in _samples(opened))
    lines = "<br>".join(map(html.escape, [*statement(opened), *opened.notes]))
    drawn = isinstance(opened, CocoData) or isinstance(getattr(opened, "train", None), MaskSplit)
    classes = enumerate(map(html.escape, opened.classes if drawn else ()))
    legend = " ".join(f'<span style="color: {_color(label)}">{name}</span>' for label, name in classes)
    page = LOOK_PAGE.format(name=html.escape(opened.name), lines=lines, legend=legend, figures=figures)
    write_atomic(file, page.encode(), flag="--look")


def _figure(image: Image.Image, caption: str) -> str:
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "PNG")
    encoded = base64.b64encode(content.getvalue()).decode()
    text = html.escape(caption)
    return f'<figure><img src="data:image/png;base64,{encoded}" alt="{text}"><figcaption>{text}</figcaption></figure>'


def _samples(opened: Any) -> Iterator[Sample]:
    if not isinstance(opened, ClassificationData | CocoData):
        yield from _people(opened)
        return
    shown: Callable[..., Sample] = _boxed if isinstance(opened, CocoData) else _labelled
    splits: list[Any] = [split for split in (opened.train, opened.val) if split is not None]
    for split in splits:
        order = np.flatnonzero(split.with_objects()) if shown is _boxed else np.argsort(split.labels, kind="stable")
        for place in evenly_spaced(len(order), SAMPLES // len(splits)):
            yield shown(split, int(order[place]), opened.classes)


def _labelled(split: Any, index: int, classes: tuple[str, ...]) -> Sample:
    caption = f"{split.name}: {split.names[index]}"
    image = to_pil_image(split.read_pixels(index)) if split.gives_arrays else split.read(index)
    if isinstance(split, MaskSplit):
        return _with_mask(image, np.asarray(split.mask(index)), caption, classes)
    return image, f"{caption}: {classes[split.labels[index]]}" if classes else caption


def _with_mask(image: Image.Image, labels: Any, caption: str, classes: tuple[str, ...]) -> Sample:
    """Blend each class into the image in its color; ignored pixels stay black."""
    present = [int(label) for label in np.unique(labels) if label < len(classes)]
    painted = np.zeros((*labels.shape, 3), np.uint8)
    for label in present:
        painted[labels == label] = ImageColor.getrgb(_color(label))
    names = ", ".join(classes[label] for label in present)
    return Image.blend(image, Image.fromarray(painted), 0.5), f"{caption}: {names}"


def _color(label: int) -> str:
    return BOX_COLORS[label % len(BOX_COLORS)]


def _boxed(split: CocoSplit, index: int, classes: tuple[str, ...]) -> Sample:
    image, rows = split.read(index), split.rows(index)
    pen, names = ImageDraw.Draw(image), Counter[str]()
    width = max(1, max(image.size) // SIDE)
    for (x, y, w, h), label in zip(split.boxes[rows].tolist(), split.label[rows].tolist()):
        name = classes[label] if label >= 0 else "ignored region"
        names[name] += 1
        pen.rectangle((x, y, x + max(w, 0), y + max(h, 0)), outline=_color(label), width=2 * width)
    objects = ", ".join(f"{count} {name}" for name, count in names.items())
    return image, f"{split.name}: {split.images[index].file_name}: {objects}"


def _people(opened: Any) -> Iterator[Sample]:
    """Yield three images of each of four persons, of the training images or else of the gallery."""
    samples = opened.train or opened.gallery
    people = sorted({sample.identity for sample in samples})
    files = opened.files(samples)
    for place in evenly_spaced(len(people), SAMPLES // 3):
        mine = [index for index, sample in enumerate(samples) if sample.identity == people[place]]
        for index in (mine[at] for at in evenly_spaced(len(mine), 3)):
            camera = f", camera {samples[index].camera}" if opened.cameras else ""
            yield files.read(index), f"{files.names[index]}: person {people[place]}{camera}"
