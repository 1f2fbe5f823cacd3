"""Each option is changed: it is part of the identity, and of the protocol where it acts. Generated from the fields."""

import copy
import json
import random
import typing
from collections.abc import Iterator
from dataclasses import fields, make_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest

from backbones.spec import resolve
from tests.interactions.generator import meeting, other_of_type
from tests.support import command
from tests.transfer.records.test_store import record
from transfer.cli.command import Command
from transfer.cli.options import LaunchOptions
from transfer.cli.recipe import task_recipe
from transfer.core.errors import UsageError
from transfer.core.options import Added, Execution, Needs, Other, noted
from transfer.core.settings import config_names
from transfer.engine.options import RESOLVED
from transfer.engine.outcome import RULE
from transfer.evaluation.planned_run import PlannedRun
from transfer.evaluation.preflight import ResolvedInputs
from transfer.records.protocol import configurations, per_process, protocol
from transfer.records.record import Record

RECIPES = {"pretrain-supervised": "deit", "pretrain-dino": "dino"}
WORKS = (*(name for name in config_names("tasks") if task_recipe(name).smoke.is_file()), *RECIPES)
CONV, PLAIN = (resolve("tiny", stem=stem, attention=name, weights="random")
               for stem, name in (("conv", "relu"), ("patchify", "softmax")))  # fmt: skip


@cache
def base(work: str, *more: str) -> Command:
    """The smoke command of a task or method."""
    return command(RECIPES.get(work, work), "--backbone", "tiny", "--smoke", *more)


def made(work: str, spec: Any = CONV, world: int = 1, options: Any = None, device: str = "cpu", **given: Any) -> Record:
    """The record that a command with other values, unchecked, would leave."""
    made = copy.deepcopy(base(work))
    made.options = copy.copy(made.options if options is None else options)
    for name, value in given.items():
        setattr(made.options, name, value)
    task: Any = SimpleNamespace(name=work, version=1, file="", content=lambda data, options: {})
    data = SimpleNamespace(name="toy", version="1", digest="d" * 64, skipped=0)
    planned = PlannedRun(made, task, ResolvedInputs(spec, "random"), ("toy",), data, 0, "fp32", "fp32", device)
    return record(
        planned.run_key,
        task=work,
        dataset=vars(data),
        backbone=spec.as_dict(),
        weights_id="random",
        options=planned.options,
        run_key_content=planned.run_key.content,
        environment={"precision": "fp32", "eval_precision": "fp32", "world_size": world, "device_type": device},
        smoke=True,
    )


def same(one: Record, other: Record) -> tuple[bool, bool]:
    """Whether two records are of one identity, and of one protocol."""
    return one.run_key == other.run_key, protocol(one) == protocol(other)


def other_value(name: str, options: Any) -> Any:
    """Another value of an option than it has now."""
    hint = typing.get_type_hints(type(options))[name]
    if Path in (hint, *typing.get_args(hint)):
        return Path(__file__).parent
    return other_of_type(hint, getattr(options, name), random.Random(0))


def acting(name: str, options: Any) -> Iterator[tuple[str, Any]]:
    """The values of the other options beside which one acts."""
    needs = noted(type(options), Needs)
    while name in needs:
        condition, name = needs[name], needs[name].option
        now = getattr(options, name)
        other = partial(other_value, name, options)
        yield name, now if condition.holds(now) else meeting(condition, other, random.Random(0))


def failing(condition: Needs, hint: Any) -> Any:
    """A value of the other option beside which one does not act."""
    choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    values = (*choices, None, (1.0,)) if not isinstance(condition.wanted, Other) else condition.wanted.values
    return next(value for value in values if not condition.holds(value))


@pytest.mark.parametrize("work", WORKS)
def test_every_option_counts_unless_it_belongs_to_the_execution(work: str) -> None:
    options = base(work).options
    execution = noted(type(options), Execution)
    hints, needs = typing.get_type_hints(type(options)), noted(type(options), Needs)
    for name in (field.name for field in fields(options) if field.name not in RESOLVED):
        beside = dict(acting(name, options))
        changed = {name: other_value(name, options)}
        found, aside = same(made(work, **beside), made(work, **beside, **changed)), name in execution
        assert found == (aside, aside or (work, name) == ("linear", "sync_bn")), f"{work}: {name}"
        beside, condition = {}, needs.get(name)
        while condition and condition.option != "epochs":
            beside[condition.option] = failing(condition, hints[condition.option])
            condition = condition.otherwise
        assert not beside or same(made(work, **beside), made(work, **beside, **changed))[1], f"{work}: {name}"


@pytest.mark.parametrize("given", [{}, {"epochs": 0}])
def test_on_another_kind_of_device_it_is_another_run_of_another_protocol(given: dict[str, Any]) -> None:
    one, other = (made("reid", device=device, **given) for device in ("cpu", "cuda"))
    assert same(one, other) == (False, False)
    assert len({*configurations([one, other], {})}) == 2
    early = replace(one, config_digest=other.config_digest)  # of a record from before the key knew the device
    assert len({*configurations([other, early], {})}) == 2
    assert "device_type" not in other.run_key_content, "early records of GPUs would be lost"


def test_without_training_its_options_are_no_part_of_the_identity() -> None:
    one = made("reid", epochs=0)
    assert made("reid").run_key_content["outcome_rule"] == RULE
    assert "outcome_rule" not in one.run_key_content
    assert same(one, made("reid", epochs=0, lr=9.0, momentum=0.1, margin=0.3, flip=0.1)) == (True, True)
    assert same(one, made("reid", epochs=0, ap="trapezoid")) == (False, False)


def test_an_option_that_is_added_later_leaves_old_runs_as_they_are() -> None:
    kind = base("knn").options
    later = make_dataclass("Later", [("new", Annotated[float, Added(0.5)])], bases=(type(kind),), kw_only=True)
    old = made("knn")
    kept, changed = (made("knn", options=later(**vars(kind), new=value)) for value in (0.5, 0.7))
    assert same(old, kept) == (True, True)
    assert same(old, changed) == (False, False)


def test_whole_epochs_are_whole_in_the_key_however_they_are_written() -> None:
    read = [base("reid", "--epochs", text) for text in ("9", "9.0", "9.5")]
    whole, same_number, fraction = (json.dumps(made("reid", options=one.options).run_key_content) for one in read)
    assert whole == same_number
    assert '"epochs": 9,' in whole
    assert '"epochs": 9.5,' in fraction


BACKBONE = {"alpha": 0.5, "length": "image", "train_size": (96, 96), "load": "partial"}


@pytest.mark.parametrize("name", BACKBONE)
def test_a_field_of_the_backbone_tells_configurations_apart_where_it_acts(name: str) -> None:
    def count(spec: Any) -> int:
        return len(
            {*configurations([made("reid", each) for each in (spec, replace(spec, **{name: BACKBONE[name]}))], {})}
        )

    assert count(replace(CONV, weights="timm", length="train" if name == "train_size" else "tokens")) == 2
    assert count(PLAIN) == 1


REFUSED = {
    "reid": ["--length train", "--alpha 0.5", "--rerank-k1 5", "--triplet-weight 0 --margin 1",
             "--warmup-epochs 0 --schedule step --warmup-prefix", "--optimizer adamw --momentum 0.5",
             "--epochs 0 --lr 0.1", "--nodes 2", "--weights random --load partial"],
    "finetune": ["--fraction-seed 3", "--sam-rho 1", "--milestones 1 --min-lr 0.1",
                 "--milestones 1 --cooldown-epochs 0.5", "--milestones 1 --warmup-epochs 1 --warmup-prefix"],
    "fewshot": ["--val-shots 3", "--probe knn --val-shots 3"],
    "detect": ["--window 0 --global-blocks 1"],
}  # fmt: skip


@pytest.mark.parametrize("task", REFUSED)
def test_flags_that_do_not_act_are_refused(task: str) -> None:
    def checked(*words: str) -> None:
        given = command(task, "--backbone", "tiny", "--smoke", *words)
        given.check_flags(given.resolved(from_scratch=False))

    for line in REFUSED[task]:
        flag = next(word for word in reversed(line.split()) if word.startswith("--"))
        with pytest.raises(UsageError, match=f"^{flag} has no effect (with|without) --"):
            checked(*line.split())
    checked("--stem", "conv", "--attention", "relu", "--alpha", "0.5")
    if task == "fewshot":
        checked("--probe", "knn", "--k", "5", "9", "--val-shots", "3")


def test_values_of_a_layer_are_not_refused(tmp_path: Path) -> None:
    layer = tmp_path / "mine.yaml"
    layer.write_text("sam_rho: 3.0\nlength: train\n")
    given = command("reid", "--backbone", "tiny", "--smoke", "--config", str(layer))
    given.check_flags(given.resolved(from_scratch=False))
    assert given.options.sam_rho == 3.0


def test_every_condition_names_an_option_beside_it() -> None:
    for kind in (*(type(base(work).options) for work in WORKS), LaunchOptions):
        assert {condition.option for condition in noted(kind, Needs).values()} <= {field.name for field in fields(kind)}


COUNTED = [
    ("pretrain-supervised", CONV, {"mix_prob": 0.0}),
    ("pretrain-supervised", PLAIN, {"mix_prob": 0, "dense_weight": 0.5}),
    ("finetune", PLAIN, {"sam": "sam"}),
    ("pretrain-dino", CONV, {"sync_bn": False}),
    ("reid", CONV, {}),
    ("reid", resolve("resnet18", weights="random"), {"sync_bn": True}),  # nobody knows what it draws
]
INDEPENDENT = [
    ("pretrain-supervised", CONV, {"mix_prob": 0.0, "sync_bn": True}),
    ("finetune", PLAIN, {"sam": "sam", "sam_sync": True}),
    ("pretrain-dino", PLAIN, {"sync_bn": False}),
    ("reid", PLAIN, {}),
    ("reid", CONV, {"epochs": 0}),
    ("linear", CONV, {}),
]


@pytest.mark.parametrize(("works", "counts"), [(COUNTED, True), (INDEPENDENT, False)], ids=["counts", "does not"])
def test_the_number_of_processes_counts_where_each_sees_to_its_part(works: list[Any], counts: bool) -> None:
    for work, spec, given in works:
        one, eight = (made(work, spec, world=world, **given) for world in (1, 8))
        assert same(one, eight) == (True, not counts), (work, given)
        assert len({*configurations([one, eight], {})}) == 1 + counts
        shared = replace(eight, environment=eight.environment | {"sequence_parallel": 8})
        assert same(one, shared) == (True, True)
    assert per_process(replace(made("reid", PLAIN, world=1), options={"epochs": 1}, backbone={})) == [
        "what the record does not say"
    ]
