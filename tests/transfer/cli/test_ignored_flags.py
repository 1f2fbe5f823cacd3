"""Flags that change nothing are refused in one line, or passed over; a layer's value is left out."""

from dataclasses import replace
from pathlib import Path

import pytest

from backbones.errors import UsageError
from backbones.pretrain.method import load_method
from backbones.settings import plain
from tasks.task import load_task
from tests.transfer.cli.test_ignored_options import PLAIN, made
from transfer.cli.command import pretraining_recipe, read_command, task_recipe
from transfer.cli.ignored_options import ignored_options, refusal, rule_inputs
from transfer.cli.options import PretrainRunOptions
from transfer.sweep.definition.grid import expand
from transfer.sweep.definition.sweep_file import read_sweep


def test_a_refusal_names_what_takes_the_effect() -> None:
    options = {
        "rerank": False,
        "warmup_epochs": 0.0,
        "clip_grad": None,
        "mixup": 0,
        "cutmix": 0.0,
        "milestones": [3, 7.5],
    }
    for name, said in {
        "rerank_k1": "--rerank-k1 has no effect without --rerank",
        "warmup_prefix": "--warmup-prefix has no effect with --warmup-epochs 0",
        "clip_grad_per_param": "--clip-grad-per-param has no effect without --clip-grad",
        "mix_prob": "--mix-prob has no effect with --mixup 0 --cutmix 0",
        "min_lr": "--min-lr has no effect with --milestones 3 7.5",
    }.items():
        assert refusal(rule_inputs("reid", options), [name]) == said
    assert refusal(rule_inputs("reid", options), ["lr"]) == ""


REFUSED = {
    "reid": ["--length train", "--alpha 1", "--rerank-k1 5", "--rerank-lambda 0.1", "--triplet-weight 0 --margin 1",
             "--identity-weight 0 --label-smoothing 0.1", "--warmup-epochs 0 --schedule step --warmup-prefix",
             "--sync-bn", "--stem conv --optimizer adamw --momentum 0.5", "--pool gap --class-position False"],
    "finetune": ["--fraction-seed 3", "--mix-prob 0.5", "--auto-augment rand-m9 --color-jitter 0.1", "--sam-rho 1"],
    "linear": ["--layer-decay 0.5", "--sync-bn"],
    "fewshot": ["--k 3", "--select 3"],
}  # fmt: skip


@pytest.mark.parametrize("task", REFUSED)
def test_idle_flags_are_refused_or_passed_over(task: str) -> None:
    def checked(*words: str) -> None:
        command = read_command(task_recipe(task), load_task(task).options, ["--backbone", "tiny", "--smoke", *words])
        command.check_flags(command.resolved(from_scratch=False))

    for line in REFUSED[task]:
        flag = next(word for word in reversed(line.split()) if word.startswith("--"))
        with pytest.raises(UsageError, match=f"^{flag} has no effect (with|without|in) "):
            checked(*line.split())
    checked(*REFUSED[task][0].split(), "--idle-flags", "pass")
    checked("--stem", "conv", "--attention", "relu")


def test_a_sweep_passes_over_what_is_idle_in_a_cell() -> None:
    """Without decay a grid over decays would be refused for the parameters that it says not to decay."""
    cells = [cell for cell in expand(read_sweep("theorem1", "smoke")) if cell.options.get("weight_decay") == 0]
    method = load_method("supervised")
    for cell in cells[:1]:
        _, recipe, *words = cell.argv(Path("out"))
        command = read_command(pretraining_recipe(recipe), method.options, words, PretrainRunOptions)
        assert "no_decay" in ignored_options(rule_inputs(command.recorded_task, plain(command.options)))
        command.run.idle_flags = "refuse"
        with pytest.raises(UsageError, match="--decay-norm has no effect with --weight-decay 0 and without"):
            command.check_flags()
    assert cells


def test_an_idle_value_of_a_layer_is_left_out(tmp_path: Path) -> None:
    layer = tmp_path / "mine.yaml"
    layer.write_text("sam_rho: 3.0\nlength: train\n")
    words = ["--backbone", "tiny", "--smoke", "--config", str(layer)]
    command = read_command(task_recipe("reid"), load_task("reid").options, words)
    spec = command.resolved(from_scratch=False)
    command.check_flags(spec)
    assert (command.options.sam_rho, spec.length) == (3.0, "train")
    assert made("reid", replace(PLAIN, length="train"), sam_rho=3.0).run_key == made("reid", PLAIN).run_key
