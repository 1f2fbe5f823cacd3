"""The options of each command of the doctor. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from transfer.core.options import Checked, Range
from transfer.core.settings import Positional


@dataclass(kw_only=True)
class DoctorOptions:
    """Check software, machine, datasets and weights."""

    data: Path | None = None
    """Folder with the datasets; by default $TRANSFER_DATA."""


@dataclass(kw_only=True)
class DataOptions(DoctorOptions):
    """Read and check datasets completely, or download them."""

    names: Positional[tuple[str, ...]] = ()
    """Datasets to check, named as for --dataset; by default all shipped ones."""
    look: Path | None = None
    """HTML file with twelve samples of a dataset: images with classes, persons and cameras, boxes or masks."""
    fetch: tuple[str, ...] = ()
    """Datasets to download from their publishers into the data folder, if their license permits it."""


@dataclass(kw_only=True)
class BackboneCheckOptions(Checked):
    """Check a backbone, or a stem, attention or FFN inside one, with random weights on the CPU."""

    name: Positional[str]
    """Backbone: a shipped name, a timm model, a YAML file, or file.py:Name."""
    stem: str | None = None
    """Stem of the backbone, such as my_stem.py:MyStem."""
    attention: str | None = None
    """Attention of the backbone."""
    ffn: str | None = None
    """FFN of the backbone."""
    patch: Annotated[int | None, Range(1)] = None
    """Patch size in pixels."""
    depth: Annotated[int | None, Range(1)] = None
    """Number of blocks; 2 make the checks fast."""
    size: Annotated[int | None, Range(1)] = None
    """Side of the square image in pixels; by default 4 patches (VOLO: 8), or 224 for a model of your own
    without --divisor."""
    divisor: Annotated[int | None, Range(1)] = None
    """Number of which image sides must be multiples, if the model does not state it."""
    only: tuple[str, ...] = ()
    """Names of the checks to run; by default all."""
    skip: tuple[str, ...] = ()
    """Names of checks to skip."""
    seed: int = 0
    """Seed of weights and images."""


@dataclass(kw_only=True)
class SpeedOptions(Checked):
    """Measure how fast this machine trains a backbone, and what limits it."""

    backbone: str
    """Backbone: a shipped name, a timm model, a YAML file, or file.py:Name."""
    recipe: str = "deit"
    """Pretraining recipe: a shipped name, such as deit or dino."""
    dataset: str | None = None
    """Dataset whose files are read; by default generated JPEG files of ImageNet's size."""
    data: Path | None = None
    """Folder with the datasets; by default $TRANSFER_DATA."""
    batch_size: Annotated[int | None, Range(1)] = None
    """Images per step; by default 128 on a GPU and 16 on a CPU, or the recipe's if that is less."""
    workers: Annotated[int | None, Range(0)] = None
    """Image-loading processes; by default as many as training uses."""
    image_ops: Literal["pil", "fast"] | None = None
    """Image operations of the whole step; by default the recipe's."""
    compile: bool = False
    """Compile the training step."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on; auto uses a GPU if there is one."""
    seconds: Annotated[float, Range(1e-3)] = 8.0
    """Seconds of each measurement."""


@dataclass(kw_only=True)
class GpuOptions(Checked):
    """Check a GPU: software, the rate of a matrix product, kernels against float64, NCCL."""
