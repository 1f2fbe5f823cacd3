"""Values of every option: those that must change a result, and those that must leave one as it is."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Change:
    """A value of an option.

    Attributes:
        words: what is added to the command.
        base: what both commands have besides.
        shows: where the result differs: steps, outcomes or weights; identity: nowhere else for so small a run.
    """

    work: str
    option: str
    words: str
    base: str = ""
    shows: str = "steps"

    def __str__(self) -> str:
        return f"{self.work}: {self.words}"


def _read(work: str, table: str, shows: str = "steps") -> list[Change]:
    """Lines `[@SHOWS] [BASE |] WORDS`; the option is that of the first word."""
    found = []
    for line in table.strip().splitlines():
        text, here = line.strip(), shows
        if text.startswith("@"):
            mark, text = text.split(maxsplit=1)
            here = mark[1:]
        base, _, words = text.rpartition("|")
        option = (
            words.split()[0].removeprefix("--").removeprefix("no-" if "--no-d" not in words else "").replace("-", "_")
        )
        found.append(Change(work, option, words.strip(), base.strip(), here))
    return found


def _passed(work: str, table: str, shows: str = "identity steps outcomes weights") -> list[Change]:
    """The same of flags that change nothing, and so are refused unless they are to be passed over."""
    found = _read(work, table, shows)
    return [replace(change, base=f"--idle-flags pass {change.base}".strip()) for change in found]


CHANGES = [
    *_read(
        "finetune",
        """
        --seeds 1
        --epochs 3
        --optimizer sgd
        --lr 3e-3
        --optimizer sgd | --momentum 0.5
        --weight-decay 0.5
        --weight-decay-end 0.5
        --decay-scale schedule
        --bias-lr-factor 3
        --no-decay *weight
        --no-decay 1d | --decay-norm
        --layer-decay 0.5
        --warmup-epochs 1 | --schedule epoch
        --warmup-epochs 1 --schedule epoch | --schedule-offset 1
        --warmup-epochs 1
        --warmup-prefix
        --warmup-lr 5e-4
        --warmup-lr None | --warmup-lr-factor 0.5
        --warmup-inclusive
        --min-lr 5e-4
        --min-lr None | --min-lr-factor 0.5
        --cooldown-epochs 1
        --milestones 1
        --clip-grad 0.01
        --clip-grad 0.01 | --clip-grad-per-param
        --sam sam
        --sam sam | --sam-rho 0.5
        @identity --sam sam | --sam-sync
        --grad-accum-steps 2
        --precision bf16
        @identity --sync-bn
        --trainable *weight
        --batch 12
        --size 48 --resize 48
        --drop-path 0.3
        --label-fraction 0.5
        --label-fraction 0.5 | --fraction-seed 1
        --subset 4
        --stem patchify
        --attention relu
        --ffn relu
        --patch 8
        --depth 1
        --pool gap
        --pos sincos2d
        --qk-norm True
        --gate sigmoid
        --attention relu | --alpha 0.5
        --rep-size True
        --init bigvision
        --class-position False
        --mean 0.4 0.5 0.6
        --std 0.3 0.3 0.3
        """,
    ),
    *_read(
        "deit",
        """
        --repeats 3
        --loss sigmoid
        --head-bias -2
        @weights --export ema --ema 0.5 | --ema 0.9
        @weights --export ema
        @identity --resize 40
        --augment crop --auto-augment None --color-jitter 0 --erase 0
        --image-ops fast
        --crop-area 0.2 0.5
        --crop-ratio 1.5 2
        --interpolation bilinear
        --flip 0.5
        --auto-augment rand-m9-n2
        --auto-augment None | --color-jitter 0.4
        --erase 0.9
        --augment pad --interpolation bilinear | --pad 4
        --augment bigvision --auto-augment None --color-jitter 0 --erase 0 --interpolation bilinear | --randaug 2 10
        --cutmix 0 --mix-prob 1 | --mixing bigvision
        --mix-prob 1 | --mixup 0.8
        --mix-prob 1 | --cutmix 0
        --mix-prob 1
        --mix-prob 1 --mixup 1 | --switch-prob 1
        --smoothing 0.3
        """,
    ),
    *_read("volo", "--dense-weight 0.9"),
    *_read(
        "dino",
        """
        --global-area 0.8 1
        --local-size 16
        --local-area 0.05 0.1
        --local-crops 2
        --blur None
        --image-ops fast
        --out-dim 16
        --freeze-last-layer 0 --epochs 3 --clip-grad 0.1 | --no-norm-last-layer
        --freeze-last-layer 1
        --student-temp 0.2
        --warmup-teacher-temp-epochs 0 | --teacher-temp 0.06
        --warmup-teacher-temp-epochs 1 | --warmup-teacher-temp 0.02
        --teacher-temp 0.07 --warmup-teacher-temp-epochs 0 | --warmup-teacher-temp-epochs 1
        --teacher-momentum 0.5
        --center-momentum 0.5
        --teacher-bn eval
        @weights --teacher-bn ema | --no-local-bn
        @weights --export student
        @outcomes --knn-k 20
        @identity --knn-temperature 0.5
        """,
    ),
    *_read(
        "reid",
        """
        --num-identities 3
        --num-instances 3
        --flip 0
        --pad 0
        --erase 0
        --identity-weight 0.5
        --label-smoothing 0.1
        --triplet-weight 0.5
        --margin 0.3
        @identity --feature after
        @outcomes --flip-test
        @outcomes --ap trapezoid
        @outcomes --rerank
        @outcomes --rerank | --rerank-k1 5
        @outcomes --rerank --rerank-k1 5 | --rerank-k2 2
        @outcomes --rerank | --rerank-lambda 0.9
        @identity --eval-precision bf16
        --size 128 64 --weights EXPORT --load partial | --pos-resample antialias
        """,
    ),
    *_read(
        "knn",
        """
        --k 12
        --other-k 2
        @identity --k 20 | --temperature 5
        --size 28 --resize 30 --view fast
        --size 48 --resize 48
        """,
        "outcomes",
    ),
    *_read(
        "fewshot",
        """
        --shots 1 2
        --draws 3
        --size 48 --resize 48
        @identity --resize 48
        @identity --view bicubic
        @identity --block 0
        @identity --support bigvision
        @identity --probe knn
        @identity --l2 1
        @identity --probe logistic | --logistic-l2 100
        @identity --probe knn | --k 1
        @identity --probe knn | --temperature 1
        @identity --shots 1 5 --l2 1 10 | --select 2
        """,
        "outcomes",
    ),
    *_read(
        "tokens",
        """
        --images 7
        --attention relu | --length train
        --no-class-token
        --size 48 --resize 48
        --resize 48
        --eval-precision bf16
        """,
        "outcomes",
    ),
    *_read("classify", "--view area\n--view fast --resize 60\n--resize 60", "identity"),
    *_read(
        "linear",
        """
        --blocks 1
        --avgpool
        --crop-area 0.2 0.4
        @identity --validate-every 2
        """,
    ),
    *_read(
        "detect",
        """
        --detector faster_rcnn_light
        --depth 4 | --pyramid taps
        --depth 8 --pyramid taps | --taps 0 1 2 3
        --depth 8 | --window 2
        --depth 8 --window 4 --window-padding masked | --window-padding keys
        --depth 8 --window 2 | --global-blocks 0
        --relative
        --no-norm-eval --batch 4 | --norm-eval
        --view jitter
        --size 96 128
        --flip 0.5
        """,
    ),
]
IDLE = [
    *_read("finetune", "--clip-grad 1e6\n--sync-bn\n--sam sam | --sam-sync", "steps outcomes weights"),
    *_read("finetune", "--judge-after 500", "identity steps outcomes weights"),
    *_read("finetune", "--eval-batch 5", "identity steps weights"),
    *_read("finetune", "--resize 40", "steps weights"),
    *_passed("finetune", "--fraction-seed 3\n--sam-rho 3\n--momentum 0.1"),
    *_passed("finetune", "--warmup-epochs 0 | --warmup-lr 1e-5\n--milestones 1 | --min-lr 1e-5"),
    *_passed("deit", "--ema 0.9\n--mix-prob 0 | --mixup 0.9\n--mixup 0 --cutmix 0 | --switch-prob 0.1"),
    *_passed("deit", "--auto-augment rand-m9-n2 | --color-jitter 0.4\n--attention softmax | --length train"),
    *_passed("finetune", "--attention relu --alpha 0 | --length image"),
    *_passed("dino", "--local-crops 0 | --local-area 0.1 0.2\n--no-local-bn"),
    *_passed("linear", "--sync-bn\n--layer-decay 0.5\n--grad-accum-steps 2"),
    *_passed("reid", "--rerank-k1 5"),
    *_passed("reid", "--triplet-weight 0 | --margin 0.3\n--identity-weight 0 | --label-smoothing 0.1",
             "identity outcomes"),  # a loss of weight 0 still stands in the history
    *_passed("fewshot", "--k 3\n--select 2\n--length train"),
    *_passed("detect", "--window-padding keys\n--global-blocks 0"),
    *_read("deit", "--validate-at 1 2\n--validate-at -1", "identity steps outcomes weights"),
    *_read("deit", "--eval-precision bf16", "steps weights"),
    *_read("dino", "--validate-at 2", "identity steps outcomes weights"),
    *_read("dino", "--export student", "steps"),
    *_read("dino", "--knn-k 5 --knn-temperature 0.1 --eval-precision bf16", "steps weights"),
    *_read("reid", "--feature after --flip-test --ap trapezoid --eval-precision bf16", "steps"),
    *_read("reid", "--rerank | --rerank-lambda 1", "steps"),
    *_read("reid", "--rerank --rerank-lambda 1", "outcomes"),
    *_read("linear", "--validate-every 2", "steps"),
    *_read("linear", "--eval-batch 7", "identity steps"),
    *_read("detect", "--checkpoint\n--validate-at 1 | --eval-batch 1", "identity steps"),
    *_read("detect", "--validate-at 1", "identity steps outcomes"),
]  # fmt: skip
"""Changes that must leave what `shows` names: the identity, the steps, the outcomes, the weights."""
EXEMPT = {
    "compile": "translating takes minutes",
    "token_labels": "a folder of label maps, in the tests of their reader",
    "save_pictures": "pictures of a finished run, no part of its identity",
    "test_dataset": "records of their own, in the tests of the evaluation",
    "msmt17_val": "a layout of its own, in the tests of re-identification",
    "method": "set by the recipe",
    **dict.fromkeys(("arch", "weights", "load"), "a factor of the covering"),
}
