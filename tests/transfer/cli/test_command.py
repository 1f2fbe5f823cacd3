"""From argv to a command: layers, mistakes, `--dry-run`, and `--weights` with the id or the folder of a run."""

import json
import re
import signal
from pathlib import Path
from types import ModuleType

import pytest

from backbones.spec import resolve
from backbones.weights.locate import find_weights
from tasks.reid.task import ReidOptions
from tests.support import command
from transfer import pretrain, run
from transfer.__main__ import USAGE
from transfer.__main__ import main as whole
from transfer.cli.command import Command, weights_of_run
from transfer.cli.entry import LISTINGS, exit_on_user_error
from transfer.core.errors import MissingInput, UsageError, UserError
from transfer.core.options import Added, noted
from transfer.core.settings import CONFIGS, read_yaml
from transfer.run import each_weights, main


def read(*words: str) -> Command:
    return command("reid", "--backbone", "tiny", *words)


def test_the_recipe_is_complete_and_the_only_source_of_values() -> None:
    """But for an option that was added later, whose field has its value for the recipes that lack it."""
    from dataclasses import MISSING, fields

    given, later = read_yaml(CONFIGS / "tasks" / "reid.yaml"), noted(ReidOptions, Added)
    assert set(given) - {"dataset", "pos_embed_interp"} == {field.name for field in fields(ReidOptions)} - {*later}
    assert {field.name for field in fields(ReidOptions) if field.default is not MISSING} == {*later}


def test_the_recipe_says_how_positions_are_resampled_where_it_applies(tmp_path: Path) -> None:
    """A user's word, in flags or files, is refused where it would do nothing; a recipe's is passed over there."""
    assert read().resolved(False).pos_embed_interp == "bilinear"  # TransReID's
    assert read("--backbone", "resnet18").resolved(False).pos_embed_interp is None
    (tmp_path / "mine.yaml").write_text("pos_embed_interp: bilinear\n")
    for words in (["--pos_embed_interp=bilinear"], ["--config", str(tmp_path / "mine.yaml")]):
        with pytest.raises(UsageError, match="`pos_embed_interp` does not apply to resnet18"):
            read("--backbone", "resnet18", *words).resolved(False)


@pytest.mark.parametrize(
    ("words", "value"),
    [("", None), ("--qk-norm", True), ("--no-qk-norm", False), ("--qk-norm False", False), ("--qk-norm None", None)],
)
def test_a_switch_with_a_default_of_the_backbones_takes_a_value_too(words: str, value: bool | None) -> None:
    assert read(*words.split()).backbone.qk_norm is value


@pytest.mark.parametrize("words", ["--smoke", "--smoke True", "--smoke=True", "--smoke False", ""])
def test_a_smoke_test_has_its_sizes_and_its_mark(words: str) -> None:
    smoke = read(*words.split())
    assert (smoke.run.smoke, smoke.options.epochs) == ((False, 120) if words in ("--smoke False", "") else (True, 20))


def test_layers_stack_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("lr: 5e-2\nepochs: 7\nsize: [128, 64]\n")
    (tmp_path / "two.yaml").write_text("epochs: 8\nno_decay: ['1d', '*.bias']\n")
    configs = ["--config", str(tmp_path / "one.yaml"), str(tmp_path / "two.yaml")]
    options = read(*configs).options
    assert (options.lr, options.epochs, options.size) == (0.05, 8, (128, 64))
    assert options.no_decay == ("1d", "*.bias")
    assert options.warmup_epochs == 5
    assert read(*configs, "--epochs", "9").options.epochs == 9


def test_values_of_a_layer_that_a_later_one_or_a_flag_makes_fit(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("epochs: 3\nwarmup_prefix: true\n")
    two.write_text("warmup_epochs: 1\n")
    assert read("--config", str(one), str(two)).options == read("--config", str(two), str(one)).options
    assert read("--config", str(one), "--warmup-epochs", "1").options.warmup_epochs == 1
    assert read("--config", str(one), "--smoke").options.epochs == 3, "the user's file overrides the sizes of --smoke"
    three = tmp_path / "three.yaml"
    three.write_text("warmup_epochs: 5\n")
    with pytest.raises(UsageError, match=r"three\.yaml: --warmup-epochs 5"):
        read("--config", str(one), str(three))
    with pytest.raises(UsageError, match=r"^--warmup-epochs 3"):
        read("--config", str(one), str(two), "--warmup-epochs", "3")


@pytest.mark.parametrize(
    ("text", "named"),
    [("lrr: 0.1\n", "unknown option `lrr`; did you mean 'lr'"), ("epochs: -1\n", "epochs"), ("lr: [\n", "YAML"),
     ("num_instances: 1e20", "--num-instances must be INT, got '1e+20'"),
     ("weights: --help\n", "weights: the value '--help' begins like a flag")],
)  # fmt: skip
def test_a_wrong_layer_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read("--config", str(path))
    assert "mine.yaml" in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize("program", [run, pretrain])
def test_usage_is_printed_on_request_and_without_words(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for words, status in (([], 2), (["-h"], 0), (["--help"], 0)):
        assert program.main(words) == status
        assert capsys.readouterr().out == program.USAGE + "\n"


def test_the_home_folder_in_flags_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text("format: image_folder\nroot: set\n")
    (tmp_path / "arch.yaml").write_text("arch: vit_tiny\nweights: ~/w.pth\n")
    (tmp_path / "w.pth").touch()
    (tmp_path / "more.yaml").write_text("feature_cache: ~/store\nout: ~/elsewhere\n")
    paths = ["--backbone=~/arch.yaml", "--dataset", "~/mine.yaml", "--data=~", "--config=~/more.yaml", "--out=~/runs"]
    assert main(["knn", *paths, "--dry-run"]) == 1, "the weights are empty"
    printed = capfd.readouterr().out
    for line in (
        f"  out: {tmp_path}/runs (recipe: runs)",
        f"  feature_cache: {tmp_path}/store (recipe: features)",
        f"  data: {tmp_path} (recipe: none)",
        f"  dataset: {tmp_path}/mine.yaml (recipe: imagenet1k)",
    ):
        assert line in printed
    assert find_weights(resolve(str(tmp_path / "arch.yaml"))).path == tmp_path / "w.pth"


def test_the_dry_run_checks_as_a_run_and_prints_what_differs(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["knn", "--backbone", "tiny", "--smoke", "--threads", "1", "--temperature", "0.1"]
    assert main([*words, "--dry-run"]) == 0
    printed = capfd.readouterr()
    assert "  temperature: 0.1 (recipe: 0.07)\n" in printed.out
    assert "view" not in printed.out
    assert re.search(r"; threads: 1 \(--threads\); .*\n", printed.err)
    assert "weights: none given, the backbone starts from random weights; for trained ones use --w" in printed.err
    assert re.search(r"^knn-toy_digits-tiny-[0-9a-f]{12}: would start$", printed.err, re.MULTILINE)
    assert not Path("runs").exists()
    assert pretrain.main(["cifar_deit", *words[1:3], "--dataset", "toy_digits", "--subset", "12", "--dry-run"]) == 0
    printed = capfd.readouterr()
    assert printed.out == "  dataset: toy_digits (recipe: cifar10)\n  subset: 12 (recipe: none)\n"
    assert "  5 epochs of 7 steps, 35 in all, 16 images per step\n" in printed.err
    assert "  --batch-size 16, where the recipe has --batch-size 64: an epoch has 120 training images\n" in printed.err
    toy = "--dataset toy_digits --batch-size"  # 1442 images; 91 of those of toy_coco have objects
    for line, steps in ((f"finetune --repeats 3 {toy} 80", 16), (f"linear {toy} 50", 28), ("detect --smoke", 45)):
        assert main([*line.split(), *words[1:3], "--dry-run"]) == 0
        assert f"of {steps} steps" in capfd.readouterr().err
    assert main([*words, "--dry-run", "--weights", "nowhere/tiny", "--data", "nowhere", "--dataset", "cifar10"]) == 1
    printed = capfd.readouterr()
    assert "temperature: 0.1" in printed.out
    assert "there are no weights at nowhere/tiny" in printed.err
    assert "cifar10: the dataset was not found" in printed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--list", "ffns"], "mlp"), (["--version"], "torch 2."), (["-h"], "pretrain"),
        (["--list", "stem"], "did you mean 'stems'"),
    ],
)  # fmt: skip
def test_the_package_says_what_there_is(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert whole(words) == 2 * (words == ["--list", "stem"])
    assert said in "".join(capfd.readouterr())


def test_the_usage_names_every_kind_of_names() -> None:
    assert {*re.findall(r"\w+", USAGE.partition("lists names: ")[2].partition(".")[0])} == LISTINGS.keys()


def test_a_shipped_schedule_is_a_layer_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["detect", "--backbone", "tiny", "--config", "detect_1x"]
    options = command(*words).options
    assert (options.epochs, options.batch_size, options.resize_mode) == (12, 16, "resize")
    with pytest.raises(UsageError, match=r"detect_2x.*did you mean.*detect_1x"):
        command(*words, "detect_2x")


def test_an_unexpected_error_is_one_line_and_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(argv: list[str]) -> int:
        raise KeyError(f"{argv}\x1b\u202e")

    assert exit_on_user_error(fail, ["a"]) == 1
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: KeyError: .*\(tests/transfer/cli/test_command.py:\d+; --debug shows the .*\)\n", said)
    assert not {"\x1b", "\u202e"} & {*said}
    assert exit_on_user_error(fail, ["--debug", "a"]) == 1
    traced = capsys.readouterr().err
    assert traced.startswith("Traceback (most recent call last)")
    assert "['a']" in traced
    assert traced.splitlines()[-1].startswith("error: KeyError: ")


def test_ctrl_c_ends_a_command_by_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(argv: list[str]) -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    assert exit_on_user_error(interrupted, ["a"]) == 130
    assert capsys.readouterr().err == "stopped by Ctrl-C\n"


def ended(status: str, **options: str) -> str:
    return json.dumps({"outcome": {"status": status}, "options": options})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of a run, without its record."""
    folder = tmp_path / "reid-toy-tiny-0123456789ab"
    (folder / "export").mkdir(parents=True)
    return folder


def test_a_run_stands_for_its_export_and_other_weights_stay(folder: Path) -> None:
    (folder / "record.json").write_text(ended("completed"))
    (folder / "export" / "config.json").touch()
    (folder.parent / "config").mkdir()
    (folder.parent / "config" / "options.yaml").touch()
    for name in (folder.name, str(folder)):
        assert weights_of_run(name, folder.parent) == str(folder / "export")
    for weights in ("config", "timm:vit.tag", "hf-hub:a/b", "some/file.pth"):
        assert weights_of_run(weights, folder.parent) == weights


WITHOUT = [
    (ended("diverged", save_weights="none"), r"the run in \S+ has no weights: its training ended as diverged$"),
    (ended("completed", save_weights="last"), "it trained no backbone$"),
    (ended("completed", save_weights="none"), "it was made with --save-weights none$"),
    ("{", "is not a readable record"),
    (None, "is unfinished; rerun its command"),
]


@pytest.mark.parametrize(("content", "reason"), WITHOUT)
def test_a_run_without_weights_says_why(folder: Path, content: str | None, reason: str) -> None:
    (folder / ("record.json" if content else "options.yaml")).write_text(content or "")
    with pytest.raises(UserError, match=reason) as raised:
        weights_of_run(folder.name, folder.parent)
    assert isinstance(raised.value, MissingInput) == (content != "{")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--backbone tiny --weights a b --seeds 3 4", [("a", (3,)), ("b", (4,))]),
        ("--backbone tiny --weights a b --seeds 3", [("a", (3,)), ("b", (3,))]),
        ("--backbone tiny --weights a --seeds 3 4", [("a", (3, 4))]),
        ("--backbone vit_tiny --seeds 0 1 2", [(f"weights/vit_tiny/seed{n}", (s,)) for s, n in enumerate((0, 2, 10))]),
        ("--backbone weights/vit_tiny", [(f"weights/vit_tiny/seed{n}", (0,)) for n in (0, 2, 10)]),
    ],
)
def test_several_weights(words: str, expected: list[tuple[str, tuple[int, ...]]], here: Path) -> None:
    for seed in (0, 2, 10):
        (here / f"weights/vit_tiny/seed{seed}").mkdir(parents=True)
        (here / f"weights/vit_tiny/seed{seed}/config.json").write_text('{"architecture": "vit_tiny"}')
    commands = each_weights(command("knn", "--dataset", "toy_digits", *words.split()), from_scratch=False)
    assert [(*one.backbone.weights, one.run.seeds) for one in commands] == expected
