"""Every option is changed, and what changes with it is held against what the table of options says."""

import copy
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backbones.pretrain.method import load_method
from backbones.settings import plain
from backbones.spec import BackboneSpec, resolve
from tasks.task import load_task
from tests.transfer.cli import option_values
from tests.transfer.cli.option_values import ACTIVE, BACKBONE, HELD, NEVER, OF_TASK, VALUES
from tests.transfer.records.test_store import record
from transfer.cli.command import Command, pretraining_recipe, read_command, task_names, task_recipe
from transfer.cli.ignored_options import PER_PROCESS, RULES, ignored_options, per_process, rule_inputs
from transfer.cli.option_rules import Condition, Rule
from transfer.cli.option_table import METHODS, page
from transfer.cli.options import EXECUTION, BackboneOptions, LaunchOptions, PretrainRunOptions
from transfer.evaluation.inputs import ResolvedInputs
from transfer.evaluation.planned_run import PlannedRun
from transfer.records.protocol import configurations, digest
from transfer.records.record import Record

RECIPES = {"pretrain-supervised": "deit", "pretrain-dino": "dino"}
WORKS = (*task_names(), *RECIPES)
CONV, PLAIN = (resolve("tiny", stem=stem, attention=name, weights="random")
               for stem, name in (("conv", "relu"), ("patchify", "softmax")))  # fmt: skip


@cache
def base(work: str) -> Command:
    """The smoke command of a task or method."""
    words = ["--backbone", "tiny", "--smoke"]
    if work in RECIPES:
        method = load_method(work.removeprefix("pretrain-"))
        return read_command(pretraining_recipe(RECIPES[work]), method.options, words, PretrainRunOptions)
    return read_command(task_recipe(work), load_task(work).options, words)


def changed(work: str, **given: Any) -> Command:
    """The same with other values, unchecked."""
    command = copy.deepcopy(base(work))
    kind = type(command.options)
    for name, value in (option_values.BASE.get(work, {}) | given).items():
        if name in {item.name for item in fields(kind)}:
            setattr(command.options, name, Path(value) if name == "token_labels" and value else value)
    return command


def made(work: str, spec: BackboneSpec = CONV, weights: str = "random", world: int = 1, **given: Any) -> Record:
    """The record that a command would leave."""
    command = changed(work, **given)
    run = {name: given[name] for name in ("smoke", "subset", "seed") if name in given}
    command.run.smoke, command.run.subset = run.get("smoke", True), run.get("subset")
    task: Any = SimpleNamespace(name=work, version=2, file="", content=lambda data, options: {})
    data = SimpleNamespace(
        name=given.get("dataset", "toy"), version="1", digest="d" * 64, skipped=given.get("skipped", 0)
    )
    precision = {"precision": given.get("precision", "fp32"), "eval_precision": given.get("eval_precision", "fp32")}
    cell = PlannedRun(
        command, task, ResolvedInputs(spec, weights), "toy", data, run.get("seed", 0), *precision.values()
    )
    if not cell.trains:
        precision["precision"] = None
    return record(
        cell.run_key,
        task=work,
        task_version=2,
        dataset={name: getattr(data, name) for name in ("name", "version", "digest", "skipped")},
        backbone=spec.as_dict() | {"weights": weights},
        weights_id=weights,
        options=cell.options,
        run_key_content=cell.run_key.content,
        environment={**precision, "world_size": world},
        smoke=command.run.smoke,
        subset=command.run.subset,
    )


def same(one: Record, other: Record) -> tuple[bool, bool]:
    """Whether two records are of one identity, and of one protocol."""
    return one.run_key == other.run_key, digest(one) == digest(other)


def value_of(work: str, name: str, now: Any) -> Any:
    """Another value of an option than it has now."""
    value = OF_TASK.get((work, name), VALUES[name])
    return next(one for one in value if one != now) if isinstance(value, tuple) else value


CASES = [(work, item.name) for work in WORKS for item in fields(type(base(work).options))]


@pytest.mark.parametrize("work", WORKS)
def test_every_option_counts_for_what_is_stated(work: str) -> None:
    for _, name in (case for case in CASES if case[0] == work):
        given = ACTIVE.get(name, {})
        before = made(work, **given)
        if name in option_values.RESOLVED:
            after = made(work, **given, **{name: "bf16"})
        else:
            now = getattr(changed(work, **given).options, name)
            after = made(work, **{**given, name: value_of(work, name, now)})
        counts = name not in option_values.EXECUTION and (work, name) not in NEVER
        assert same(before, after) == (not counts, not counts), f"{work}: {name}"


def test_no_option_is_missing_or_stated_in_vain() -> None:
    names = {name for _, name in CASES}
    assert names == {*VALUES}
    assert {*BACKBONE} == {item.name for item in fields(BackboneOptions)}
    assert names & {*EXECUTION} == option_values.EXECUTION
    assert {name for _, name in OF_TASK} == {name for name, value in VALUES.items() if value is None} - {
        *option_values.RESOLVED
    } | {"size"}


def test_every_field_of_a_backbone_tells_configurations_apart_not_protocols() -> None:
    for name, value in BACKBONE.items():
        given = {"weights": "timm"} if name == "load" else {}
        if name == "weights":
            one, other = made("knn"), made("knn", weights="timm:x")
        else:
            spec = replace(CONV, **given)
            one, other = (made("knn", each, "timm:x") for each in (spec, replace(spec, **{name: value})))
        assert same(one, other) == (False, True), name
        assert len({*configurations([one, other], {})}) == 2, name


def test_options_of_every_command_count_only_where_they_say_what_runs() -> None:
    one = made("reid")
    for given in ({"seed": 1}, {"subset": 8}, {"smoke": False}, {"dataset": "other"}, {"skipped": 3}):
        other = made("reid", **given)  # type: ignore[arg-type]
        assert same(one, other) == ("skipped" in given, "seed" in given), given
    told = {"backbone", "dataset", "seeds", "subset", "smoke", "config", "dry_run", "method", "metric"}
    assert {item.name for item in fields(PretrainRunOptions)} - told <= {*EXECUTION}
    assert {item.name for item in fields(LaunchOptions)} - {"launcher"} == {*RULES[0].options}


def held(rule: Rule) -> Iterator[tuple[str, BackboneSpec, dict[str, Any]]]:
    """For each task in which a rule can hold: the task, a backbone, and options for which it holds."""
    for work in WORKS:
        options = {item.name for item in fields(type(base(work).options))}
        parts = {item.name for item in fields(BackboneSpec)}
        asked = {name: _holding(name, value) for name, value in rule.when.items() if name not in ("task", "dataset")}
        given = {name: value for name, value in asked.items() if name in options}
        task = rule.when.get("task", work)
        if not (task.holds(work) if isinstance(task, Condition) else task == work) or not {*rule.options} & {
            *options,
            *parts,
        }:
            continue
        if {*asked} - options - parts - {"batch_norm", "ours", "plain"} or "launcher" in rule.when:
            continue
        spec = resolve("volo_tiny", weights="random") if asked.get("plain") is False else CONV
        spec = PLAIN if asked.get("batch_norm") is False else spec
        spec = replace(spec, **{name: value for name, value in asked.items() if name in parts and name not in options})
        yield work, spec, given | ({"dataset": "market1501"} if "dataset" in rule.when else {})


def _holding(name: str, wanted: Any) -> Any:
    return next(filter(wanted.holds, HELD[name])) if isinstance(wanted, Condition) else wanted


@pytest.mark.parametrize("rule", RULES[1:], ids=lambda rule: f"{' '.join(rule.options)} {rule.condition()}")
def test_an_idle_option_changes_neither_identity_nor_protocol(rule: Rule) -> None:
    tried = 0
    for work, spec, given in held(rule):
        one = made(work, spec, **given)
        for name in rule.options:
            if hasattr(changed(work).options, name) and name not in given:
                now = getattr(changed(work, **given).options, name)
                other = made(work, spec, **{**given, name: value_of(work, name, now)})
            elif name in one.backbone and one.backbone[name] is not None:
                value = {**BACKBONE, "train_size": (96, 96), "drop_path": 0.3}[name]
                other = made(work, replace(spec, **{name: value}), **given)
                assert configurations([one], {}) == configurations([other], {}), f"{work}: {name}"
            else:
                continue
            assert same(one, other) == (True, True), f"{work}: {name}"
            older = replace(other, run_key_content=copy.deepcopy(other.run_key_content))
            older.run_key_content["options"] |= {name: other.options.get(name), "judge_after": 3}
            assert digest(older) == digest(one), f"{work}: {name} of an older record"
            tried += 1
    assert tried or {*rule.options} <= {*rule.when}  # idle by its own value, as an empty list


def test_of_what_a_record_does_not_say_nothing_is_concluded() -> None:
    assert ignored_options(rule_inputs("reid", {})) == {}
    assert "momentum" in ignored_options(rule_inputs("reid", {"optimizer": "adamw"}))
    assert "sync_bn" not in ignored_options(rule_inputs("reid", {"sync_bn": False}, {"arch": "resnet50"}))
    assert "sync_bn" in ignored_options(rule_inputs("reid", {"sync_bn": False}, {"arch": "vit_small_patch16_224.dino"}))
    assert ignored_options(rule_inputs("fewshot", {"probe": "ridge", "l2": 1.0})).keys() == {
        *("logistic_l2", "k", "temperature", "drop_path")
    }


DEPENDS = [
    ("pretrain-supervised", CONV, {}),
    ("pretrain-supervised", PLAIN, {"mix_prob": 0.5, "mixup": 0.2}),
    ("pretrain-supervised", PLAIN, {"mix_prob": 0, "dense_weight": 0.5}),
    ("finetune", PLAIN, {"sam": "sam"}),
    ("pretrain-dino", CONV, {"sync_bn": False}),
    ("reid", CONV, {}),
    ("detect", PLAIN, {}),
    ("reid", resolve("resnet18", weights="random"), {}),
]
INDEPENDENT = [
    ("pretrain-supervised", PLAIN, {"mix_prob": 0.0}),
    ("pretrain-supervised", CONV, {"mix_prob": 0.0, "sync_bn": True}),
    ("finetune", PLAIN, {"sam": "sam", "sam_sync": True}),
    ("pretrain-dino", PLAIN, {"sync_bn": False}),
    ("reid", PLAIN, {}),
    ("linear", CONV, {}),
    ("knn", CONV, {}),
]


@pytest.mark.parametrize(("works", "counts"), [(DEPENDS, True), (INDEPENDENT, False)], ids=["counts", "does not"])
def test_the_number_of_processes_counts_where_each_sees_to_its_part(works: list[Any], counts: bool) -> None:
    for work, spec, given in works:
        one, eight = (made(work, spec, world=world, **given) for world in (1, 8))
        assert same(one, eight) == (True, not counts), (work, given)
        assert len({*configurations([one, eight], {})}) == 1 + counts
        shared = replace(eight, environment=eight.environment | {"sequence_parallel": 8})
        assert same(one, shared) == (True, True)


def test_every_reason_for_counting_processes_is_tried() -> None:
    found = {reason for work, spec, given in DEPENDS for reason in per_process(_values(work, spec, given))}
    assert found == {rule.because for rule in PER_PROCESS}


def _values(work: str, spec: BackboneSpec, given: dict[str, Any]) -> dict[str, Any]:
    return rule_inputs(work, plain(changed(work, **given).options), spec.as_dict())


def test_a_record_that_does_not_say_how_processes_trained_counts_them() -> None:
    one, eight = (made("reid", PLAIN, world=world) for world in (1, 8))
    for each in (one, eight):
        del each.options["sync_bn"]
    assert same(one, eight) == (True, False)


def test_the_page_of_options_is_up_to_date() -> None:
    path = Path(__file__).parents[3] / "docs" / "options.md"
    assert path.read_text(encoding="utf-8") == page(), "python -m transfer.cli.option_table > docs/options.md"
    assert {f"pretrain-{name}" for name in METHODS} == {*RECIPES}
