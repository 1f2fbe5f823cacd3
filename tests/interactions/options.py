"""What is put together: the factors of a command, their values, and what cannot stand together and why."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from tests.interactions.covering import Choice


@dataclass(frozen=True)
class Work:
    """A task or a recipe of pretraining, at sizes that end in a second."""

    program: str
    images: str
    """Kind of data: labelled, people, scenes."""
    words: str
    trains: bool = True
    divided: bool = False
    """Whether it takes a share of the labels."""


TRAINED = "--batch 8 --epochs 2 --warmup-epochs 0.5"
PRETRAINED = f"{TRAINED} --size 32 --resize 32 --validate-at 1"
WORKS = {
    "reid": Work("run", "people", "--size 64 32 --num-identities 4 --num-instances 2 --epochs 2 --warmup-epochs 1"),
    "knn": Work("run", "labelled", "--k 3 --other-k 1 5", trains=False),
    "fewshot": Work("run", "labelled", "--shots 1 10 --draws 2", trains=False),
    "classify": Work("run", "labelled", "--size 32 --resize 36", trains=False),
    "tokens": Work("run", "labelled", "--size 32 --resize 32 --images 5", trains=False),
    "linear": Work("run", "labelled", "--batch 8 --epochs 2"),
    "finetune": Work("run", "labelled", TRAINED, divided=True),
    "detect": Work("run", "scenes", "--size 64 96 --batch 4 --epochs 1"),
    "deit": Work("pretrain", "labelled", PRETRAINED, divided=True),
    "volo": Work("pretrain", "labelled", PRETRAINED, divided=True),
    "bigvision_i21k": Work("pretrain", "labelled", PRETRAINED, divided=True),
    "dino": Work(
        "pretrain",
        "labelled",
        f"{TRAINED} --size 64 --resize 64 --local-size 32 --local-crops 1 --out-dim 32 --knn-k 3",
        divided=True,
    ),
}
OURS = ("vit", "volo")
FACTORS: dict[str, tuple[str, ...]] = {
    "work": tuple(WORKS),
    "family": ("vit", "volo", "timm_vit", "convnext", "resnet", "user"),
    "stem": ("patchify", "conv", "conv_ibn", "conv_srelu", "proj_bn_relu", "user"),
    "attention": ("softmax", "relu", "relu2", "gelu", "softplus", "identity", "relu_sum", "sigmoid", "user"),
    "ffn": ("mlp", "relu", "conv1d_bn", "no_norm", "user"),
    "part": ("plain", "gate", "learned_alpha", "gap", "sincos2d", "layer_decay", "frozen", "clipped", "drop_path"),
    "optimiser": ("adamw", "sgd", "sam", "asam"),
    "precision": ("fp32", "bf16", "fp16"),
    "eval_precision": ("fp32", "run", "bf16", "fp16"),
    "ranks": ("1", "2"),
    "accumulate": ("1", "2"),
    "data": ("folders", "packed", "subset", "fraction"),
    "weights": ("random", "export", "partial"),
}
FEWER = FACTORS | {
    "stem": ("patchify", "conv", "user"),
    "attention": ("softmax", "relu", "relu_sum", "user"),
    "ffn": ("mlp", "conv1d_bn", "user"),
    "part": ("plain", "learned_alpha", "layer_decay", "frozen", "drop_path"),
}
"""For the suite: of values that run through the same code one; `python -m tests.interactions` has them all."""
DEAR = (
    *(("ranks", "2"), ("work", "detect"), ("work", "dino")),
    *((name, half) for name in ("precision", "eval_precision") for half in ("bf16", "fp16")),
)
"""Choices that cost more than others; half precision does on most processors."""
PARTS = {
    "plain": "",
    "gate": "--gate sigmoid",
    "learned_alpha": "--alpha learned",
    "gap": "--pool gap",
    "sincos2d": "--pos sincos2d",
    "layer_decay": "--layer-decay 0.7",
    "frozen": "--trainable *weight",
    "clipped": "--clip-grad 1.0",
    "drop_path": "--drop-path 0.2",
}
OF_BACKBONE = ("gate", "learned_alpha", "sincos2d", "gap")
OF_TRAINING = ("layer_decay", "frozen", "clipped", "drop_path")
WITH_DROP_PATH = ("reid", "finetune", "detect", "deit", "volo", "bigvision_i21k", "dino")
USUAL = {name: values[0] for name, values in FACTORS.items()}


@dataclass(frozen=True)
class Conflict:
    """Two sets of choices of two factors of which no row holds one of each.

    Attributes:
        says: what the command says when they are put together all the same; None: it would work and is not tried.
    """

    one: tuple[str, tuple[str, ...]]
    two: tuple[str, tuple[str, ...]]
    says: str | None

    def holds(self, a: Choice, b: Choice) -> bool:
        """Whether these two choices are of this conflict."""
        return any(
            x[0] == self.one[0] and x[1] in self.one[1] and y[0] == self.two[0] and y[1] in self.two[1]
            for x, y in ((a, b), (b, a))
        )


def _but(name: str, *values: str) -> tuple[str, tuple[str, ...]]:
    return name, tuple(value for value in FACTORS[name] if value not in values)


def _works(names: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    return "work", tuple(names)


_FROZEN = _works(name for name, work in WORKS.items() if not work.trains)
_WHOLE = _works(name for name, work in WORKS.items() if not work.divided)
CONFLICTS = (
    Conflict(_FROZEN, _but("optimiser", "adamw"), "--optimizer"),
    Conflict(_FROZEN, _but("accumulate", "1"), "--grad-accum-steps"),
    Conflict(_FROZEN, ("part", OF_TRAINING), "unknown option"),
    Conflict(_FROZEN, _but("precision", "fp32"), "--precision is called --eval-precision now"),
    Conflict(_FROZEN, ("eval_precision", ("run",)), "--eval-precision"),
    Conflict(_works(set(WORKS) - set(WITH_DROP_PATH) - {*_FROZEN[1]}), ("part", ("drop_path",)), "--drop-path"),
    Conflict(_works(["linear"]), ("part", ("layer_decay",)), "--layer-decay has no effect"),
    Conflict(("family", ("user",)), ("part", ("drop_path",)), "--drop-path has no effect"),
    Conflict(("family", ("user",)), ("part", ("layer_decay",)), "--layer-decay 0.7 has no effect"),
    Conflict(_WHOLE, ("data", ("fraction",)), "--label-fraction"),
    Conflict(_but("family", *OURS), _but("stem", "patchify"), "`stem` does not apply"),
    Conflict(_but("family", "vit"), _but("attention", "softmax"), "`attention` does not apply"),
    Conflict(_but("family", *OURS), _but("ffn", "mlp"), "`ffn` does not apply"),
    Conflict(_but("family", "vit"), ("part", ("gate", "learned_alpha", "sincos2d")), "does not apply"),
    Conflict(("family", ("volo", "user")), ("part", ("gap",)), "`pool` does not apply"),
    Conflict(("part", ("learned_alpha",)), ("attention", ("softmax", "relu_sum", "user")), "--alpha has no effect"),
    Conflict(_works(["classify"]), ("weights", ("random",)), "no trained classifier"),
    Conflict(_works(["classify"]), ("weights", ("partial",)), None),
    Conflict(_works(["volo"]), _but("family", "volo", "user"), "--dense-weight"),
    Conflict(_works(["volo"]), ("family", ("user",)), "no classifier of patch tokens"),
    Conflict(_works(["detect"]), ("family", ("user",)), "no maps"),
    Conflict(_works(["tokens"]), ("family", ("user", "convnext", "resnet")), "tokens"),
    Conflict(_works(["bigvision_i21k"]), ("optimiser", ("sgd", "asam")), "--decay-scale schedule"),
    Conflict(_works(["bigvision_i21k"]), ("weights", ("export",)), "--load partial"),
    Conflict(_works(["bigvision_i21k"]), _but("family", "vit"), "does not apply"),
    # half precision is 800 times slower on a CPU: the small ViT alone, in short trainings
    Conflict(("precision", ("fp16",)), _but("family", "vit"), None),
    Conflict(("precision", ("fp16",)), _works(["detect", "dino"]), None),
    Conflict(("eval_precision", ("fp16",)), _but("family", "vit"), None),
    Conflict(("eval_precision", ("fp16",)), _works(["detect", "dino"]), None),
)


@cache
def conflict(a: Choice, b: Choice) -> Conflict | None:
    """The first conflict between two choices."""
    return next((found for found in CONFLICTS if found.holds(a, b)), None)


def apart(a: Choice, b: Choice) -> bool:
    """Whether two choices cannot stand in one row."""
    return conflict(a, b) is not None
