"""The benchmarks by name: where each lives, what it needs besides this suite, and whether it can use a GPU."""

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CLONE = "--checkout FOLDER: git clone https://github.com/"


@dataclass(frozen=True)
class Benchmark:
    """One benchmark or parity check, which is a module with `main(argv)`."""

    name: str
    module: str
    """Dotted, below `tests.benchmarks`."""
    needs: str = "nothing else"
    """Checkouts, packages and data that the reader has to provide."""
    gpu: str = "used where there is one"

    @property
    def summary(self) -> str:
        """The first line of the module's docstring."""
        path = FOLDER.joinpath(*self.module.split(".")).with_suffix(".py")
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        return text.partition("\n")[0]


def speed(name: str, needs: str = "nothing else", gpu: str = "used where there is one") -> Benchmark:
    """An entry of `tests/benchmarks/speed`."""
    return Benchmark(name, f"speed.{name}", needs, gpu)


def parity(name: str, needs: str) -> Benchmark:
    """An entry of `tests/benchmarks/parity`, which runs on a CPU in one to twenty minutes."""
    return Benchmark(f"parity_{name}", f"parity.{name}", needs, "not used")


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        speed("attention"),
        speed("coco_scoring", "pycocotools", "not used"),
        speed("deit_step"),
        speed("detection_step", "--images FOLDER: images and annotations of COCO; mmdetection"),
        speed("dino_step"),
        speed("eval_precision", "--reid FOLDER: Market-1501's layout; --images FOLDER: CIFAR-10's Parquet files"),
        speed("feed", "--dino CHECKOUT for the peer of multi-crop: facebookresearch/dino", "not used"),
        speed("fewshot_probe", gpu="not used"),
        speed("ranking", "torchreid and 10 GiB of memory; not with --skip-torchreid", "not used"),
        speed("reid_training"),
        parity("views", "--weights FOLDER: an export; --images FILE: a dataset that its classifier knows"),
        Benchmark("evidence", "evidence", gpu="not used"),
        Benchmark("outcomes", "outcomes", gpu="not used"),
        parity("bigvision", f"{CLONE}google-research/big_vision; jax"),
        parity("deit", f"{CLONE}facebookresearch/deit"),
        parity("dino", f"{CLONE}facebookresearch/dino"),
        parity("transreid", f"{CLONE}damo-cv/TransReID; yacs"),
        Benchmark("timm_tests", "parity.timm_tests", "--checkout FOLDER: timm's source package", "not used"),
        parity("vitdet", f"{CLONE}facebookresearch/detectron2; mmdetection"),
    )
}
