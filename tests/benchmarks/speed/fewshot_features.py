"""Images per second of feature extraction from JPEG files, against timm: a plain fp32 loop, and the bf16 model alone.

    python -m tests.benchmarks fewshot_features [--images FOLDER] [--count 128] [--batch 64] [--rounds 3] [--device cpu]

Without --images it draws some of 500 x 375 pixels. `ours` reads files, takes the view and fills a fresh store; so does
the plain loop but for the store. The ratios are to the best of the peer's: number of loader processes, batch on a CPU.
"""

import argparse
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from backbones.backbone import create
from backbones.data.splits.packed_names import PackedNames
from backbones.data.splits.split import FileSplit
from backbones.engine.context import Context, auto_threads, auto_workers
from backbones.runtime.ranks import ALONE
from tasks.probing.features import Extractor, Features
from tests.benchmarks.speed.timing import measure


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder with JPEG files; those below it are used")
    parser.add_argument("--count", type=int, default=128, help="images, repeated if there are fewer files")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(argv)
    device = torch.device(given.device)
    workers = auto_workers(device, ALONE)
    torch.set_num_threads(auto_threads(device, ALONE, workers))
    with tempfile.TemporaryDirectory() as folder:
        split = file_split(given.images, given.count, Path(folder))
        context = Context(device=device, precision="bf16", eval_precision="bf16", workers=workers)
        contestants: dict[str, Callable[[], object]] = {"ours, bf16, from files": ours(split, context, given.batch)}
        for count in (0, 2) if device.type == "cpu" else (workers,):
            contestants[f"timm, fp32, from files, {count} loader processes"] = plain_loop(
                split, device, given.batch, count
            )
        for batch in {16, given.batch} if device.type == "cpu" else {given.batch}:
            contestants[f"timm, bf16, model alone, batch {batch}"] = model_alone(given.count, device, batch)
        rates = measure(contestants, given.rounds, 1, given.count, device)
    report(rates)
    return 0


def report(rates: dict[str, float]) -> None:
    """Prints the rates and the two ratios."""
    for name, rate in rates.items():
        print(f"{name:45} {rate:8.1f} images/s")
    mine = rates["ours, bf16, from files"]
    plain, alone = (max(rate for name, rate in rates.items() if part in name) for part in ("fp32", "model alone"))
    print(f"ours / timm fp32 from files {mine / plain:.2f}, ours / timm bf16 model alone {mine / alone:.2f}")
    print(f"share of the model's rate that reading and decoding cost, at most {max(0.0, 1 - mine / alone):.2f}")


def file_split(images: Path | None, count: int, folder: Path) -> FileSplit:
    """`count` JPEG files as a split."""
    if images is None:
        random, names = np.random.default_rng(0), []
        for number in range(count):
            small = Image.fromarray(random.integers(0, 256, (40, 53, 3), dtype=np.uint8))
            names.append(f"{number:05d}.jpg")
            small.resize((500, 375), Image.Resampling.BICUBIC).save(folder / names[-1], quality=90)
        images = folder
    else:
        found = sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))
        names = (found * -(-count // len(found)))[:count]
    sizes = np.array([(images / name).stat().st_size for name in names])
    return FileSplit(name="val", labels=np.zeros(count, np.int64), names=PackedNames(names), sizes=sizes, folder=images)


def ours(split: FileSplit, context: Context, batch: int) -> Callable[[], object]:
    """Extraction into a fresh store; files that occur twice count as different images."""
    backbone = create("deit_s16", weights="random").to(context.device).eval()
    contents = [number.to_bytes(32, "little") for number in range(len(split))]
    kind = Features(size=224, resize=256, view="squash", block=None)

    def run() -> object:
        with tempfile.TemporaryDirectory() as store:
            context.features = Path(store)
            extractor = Extractor(backbone, kind, context, batch)
            return extractor.features(split, np.arange(len(split)), contents, "benchmark")

    return run


class Files(Dataset[torch.Tensor]):
    """What the plain loop reads."""

    def __init__(self, split: FileSplit, transform: Callable[[Image.Image], torch.Tensor]) -> None:
        self.split, self.transform = split, transform

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(Image.open(io.BytesIO(Path(self.split.path(index)).read_bytes())).convert("RGB"))


def plain_loop(split: FileSplit, device: torch.device, batch: int, workers: int) -> Callable[[], object]:
    """timm's model and evaluation transform in the loop that everybody writes."""
    model = peer(device)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    loader = DataLoader(Files(split, transform), batch, num_workers=workers, pin_memory=device.type == "cuda")
    return lambda: forward(model, iter(loader), device, nullcontext)


def model_alone(count: int, device: torch.device, batch: int) -> Callable[[], object]:
    """timm's model under bf16 autocast on batches that are there."""
    model, images = peer(device), torch.rand(batch, 3, 224, 224, device=device)
    sizes = [min(batch, count - start) for start in range(0, count, batch)]
    return lambda: forward(
        model, (images[:size] for size in sizes), device, lambda: torch.autocast(device.type, torch.bfloat16)
    )


def peer(device: torch.device) -> nn.Module:
    """timm's ViT-S/16 without its classifier."""
    model: nn.Module = timm.create_model("vit_small_patch16_224", num_classes=0).to(device).eval()
    return model


@torch.inference_mode()
def forward(
    model: nn.Module,
    batches: Iterator[torch.Tensor],
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
) -> object:
    """Features of all batches."""
    found = []
    for images in batches:
        with autocast():
            found.append(model(images.to(device, non_blocking=True)).float().cpu())
    return torch.cat(found)
