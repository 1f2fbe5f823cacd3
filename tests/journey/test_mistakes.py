"""Mistakes in commands, those on the way of docs/guide/afternoon.md first: one line says what is wrong and the fix."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.data import draw
from transfer import run
from transfer.pretrain import main as pretrain
from transfer.report import __main__ as report
from transfer.sweep import __main__ as sweep

COMPONENTS = """
from torch import nn

class LapStem(nn.Module):
    def __init__(self, dim, patch):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, images):
        return self.proj(images)

class NoPatch(nn.Module):
    def __init__(self, dim):
        super().__init__()

def two(q, k):
    return q
"""
MAIN: dict[str, Callable[[list[str]], int]] = {
    "run": run.main, "pretrain": pretrain, "report": report.main, "sweep": sweep.main,
}  # fmt: skip
Captured = pytest.CaptureFixture[str]
PROBE = "run knn --backbone tiny --weights random --dataset digits/new --size 32 --threads 1"
DETECT = "run detect --backbone tiny --weights random --dataset"
REID = "run reid --backbone tiny --smoke"
TESTED = f"{REID} --test-dataset toy_msmt17"
RECIPE = "pretrain cifar_deit --backbone tiny --dataset digits/new"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as in the middle of the journey: images, components, an export, a failed run."""
    root = tmp_path_factory.mktemp("journey")
    for split in ("new/train", "new/val", "noval/train"):
        for number in range(8):
            draw(root / "digits" / split / f"{number % 2}" / f"{number}.png", len(split) + 100 * number, (32, 32))
    (root / "components.py").write_text(COMPONENTS)
    (root / "few.yaml").write_text("")
    (root / "taken").write_text("a file where a folder should be")
    (root / "coco" / "train2017").mkdir(parents=True)
    (root / "coco" / "annotations").mkdir()
    (root / "coco" / "annotations" / "instances_train2017.json").write_text("{}")
    for name in ("patchify", "lap/seed1", "lap/seed2"):
        (root / "weights" / name).mkdir(parents=True)
        (root / "weights" / name / "config.json").write_text("{}")
    (root / "broken").mkdir()
    (root / "broken" / "options.yaml").write_text("")
    (root / "broken" / "record.json").write_text(json.dumps({"outcome": {"status": "diverged"}, "options": {}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert run.main(shlex.split(PROBE)[1:]) == 0
    return root


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (PROBE.replace("digits/new", "digits"), 2, "contains datasets; set --dataset to digits/new or digits/noval"),
        (PROBE.replace("digits/new", "digits/noval"), 1, "knn needs a validation split.*; add it .*a folder val/"),
        (f"{PROBE} --stem component.py:LapStem", 2, "component.py; did you mean 'components.py'"),
        (f"{PROBE} --stem components.py:NoPatch", 2, "must accept .dim, patch..*; got .dim."),
        (f"{PROBE} --attention components.py:two", 2, "must accept .q, k, v..*; got .q, k."),
        (
            f"{PROBE.replace('32', '33')} --k 0 --stem components.py --attention rleu --ffn gleu",
            2,
            "--k 0: must be at least 1\n.*components.py:NAME; it defines LapStem\n"
            "unknown attention 'rleu'; did you mean 'relu'\nunknown ffn 'gleu'\n--size 33 .*use multiples of 16",
        ),
        (
            f"{DETECT} toy_digits --detector mask_rcn --global-blocks 7 --test-dataset cooc2017",
            2,
            "unknown detector 'mask_rcn'; did you mean 'mask_rcnn'\ndetect does not take .*for classify, .*; set "
            "--dataset to coco2017\nunknown dataset 'cooc2017'\n--global-blocks: block 7 .*; use 0 to 1",
        ),
        (
            f"{DETECT.replace('tiny', 'tinny')} few.yml --detector fastr --size 128",
            2,
            "--size needs 2 values, height and width, as in --size 128 128\nunknown detector 'fastr'; did you mean "
            "'faster_rcnn'\nfew.yml: file not found; did you mean 'few.yaml'\nunknown backbone 'tinny'",
        ),
        (f"{DETECT.replace('detect', 'reid')} toy_coco", 2, "reid does not take .* coco, .*detect; .* to .*market1501"),
        (f"{DETECT} coco", 1, "missing.*instances_val2017.json, .*val2017/; add it, or use a YAML .*val_annotations"),
        (PROBE.replace("random", "weights/lpa/seed1"), 1, "no weights at .*; did you mean 'weights/lap/seed1'"),
        (PROBE.replace("tiny", "weights/pachify"), 2, "unknown backbone .*; did you mean 'weights/patchify'"),
        (PROBE.replace("random", "broken"), 1, "has no weights: its training ended as diverged"),
        (f"{PROBE} --out taken", 1, "--out taken: cannot be written .*; choose another folder"),
        (PROBE.replace("knn", "components.py"), 2, "name the task in this file, as in components.py:TASK"),
        (PROBE.replace("knn", "components.py:TASK"), 2, "'TASK' not found .*; it defines LapStem, NoPatch, two"),
        (f"{PROBE.replace('knn', 'fewshot')} --probe ridge --k 5", 2, "--k has no effect with --probe ridge"),
        (RECIPE.replace("deit", "deti"), 2, "unknown recipe 'cifar_deti'; did you mean 'cifar_deit'"),
        (
            f"{RECIPE} --epochs 2 --warmup-epochs 3",
            2,
            "--warmup-epochs 3: .* in --epochs 2; lower it or raise --epochs",
        ),
        (f"{RECIPE} --seeds 0 0", 2, "--seeds must be different numbers"),
        (f"{RECIPE} --weights weights/lap", 2, "use one of weights/lap/seed1, weights/lap/seed2, or 2 --seeds"),
        (
            "run linear --backbone tiny --dataset cifar11 --lrr 1 --device gpu --seeds a --subset 1 --smoke --epochs x "
            "--weights randm --metric mine.py:f --out /proc/x",
            2,
            "unknown option --lrr; did you mean '--lr'\n--device must be one of auto, cpu, cuda, got 'gpu'\n"
            "--seeds must be INT ..., got 'a'\n--epochs must be INT|FLOAT, got 'x'\n--subset 1: must be at least 2\n"
            "unknown dataset 'cifar11'; did you mean 'cifar10'\nmine.py.*: file not found\n"
            "--out /proc: cannot be written\nno weights at randm; did you mean 'random'",
        ),
        ("run reid", 2, "--backbone is missing"),
        (f"{REID} --stem 3Conv+1Prj", 2, "did you mean 'Proj'"),
        (f'{REID} --seeds "it\'s"', 2, '--seeds must be INT ..., got "it\'s"'),
        (f"{REID} --seeds 0 --seeds 1", 2, "--seeds is given 2 times; write all its values after one --seeds"),
        (f"{REID} --workers 100000", 2, "--workers 100000: must be between 0 and 1024"),
        (f"{REID} --attention relu --alpha nan", 2, "--alpha nan\n`alpha: nan` cannot be read"),
        (f"{REID} --backbone vgg11 --weights random", 2, "--drop-path 0"),
        (f"{REID} --dataset toy_market toy_market", 2, "a name is duplicated"),
        (f"{REID} --baselines nowhere", 1, "nowhere: directory not found"),
        (f"{REID} --num-identities 60", 1, "48 training identities, but a batch takes --num-identities 60"),
        (f"{TESTED} --epochs 0", 2, "with --epochs 0 nothing is trained; set the dataset with --dataset"),
        (f"{TESTED} --save-weights none", 2, "remove --save-weights none"),
        (f"{TESTED} --joint", 2, "--joint: set several names after --dataset, or use --no-joint"),
        ("run --backbone tiny", 2, "the task must come first"),
        ("pretrain --backbone tiny", 2, "recipe must come first"),
        ("pretrain deit --backbone tiny --smoke --weights a b", 2, "takes one value, got 2"),
        ("pretrain deit --backbone tiny --smoke --method dino", 2, "another recipe"),
        ("sweep demo --set a.b=1 --set a.c=2", 2, "--set is given 2 times"),
        ("report rnus", 1, "rnus: directory not found; name a folder of runs"),
        ("report runs --format xls", 2, "--format must be one of terminal, .*, got 'xls'"),
    ],
)
def test_each_mistake_is_one_line_with_the_fix(
    command: str, status: int, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    monkeypatch.chdir(folder)
    name, *argv = shlex.split(command)
    before_it = [*folder.glob("*s/*")]
    assert MAIN[name](argv) == status
    out, err = capfd.readouterr()
    before, _, errors = err.partition("\nusage: ")[0].partition("error: ")
    assert all(re.search(*pair) for pair in zip(text.split("\n"), errors.splitlines(), strict=True)), err
    assert (out, "error" in before.lower()) == ("", False)
    assert [*folder.glob("*s/*")] == before_it, "no run, no weights"
