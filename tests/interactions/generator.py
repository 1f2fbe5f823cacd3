"""Draws commands from the dataclasses of their options: other values by type, and rows that hold every pair of options.

What a field needs to act (`transfer.core.options`) is given beside it. Nothing here knows an option by its name, but
for those whose values are names of parts or of files.
"""

import random
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from backbones.attention import ATTENTIONS
from backbones.ffn import FFNS
from backbones.spec import BackboneSpec
from backbones.stems import STEMS
from tests.interactions.places import Places
from tests.support import command
from transfer.cli.options import BackboneOptions, PretrainRunOptions, RunOptions
from transfer.cli.recipe import pretraining_recipe
from transfer.core.options import Execution, Needs, Other, noted, several
from transfer.core.settings import config_names
from transfer.task import load_task

SIZES = "--epochs 3 --batch-size 8 --size 32 --resize 32 --warmup-epochs 0 --num-identities 4 --num-instances 2"
"""Of trainings that end in a second, for the options that a task or recipe has."""
ALSO = {"detect": "--size 64 96 --batch-size 2 --epochs 1", "reid": "--size 64 32", "knn": "--k 3 --other-k 1 5",
        "fewshot": "--shots 1 10 --draws 2", "tokens": "--images 5", "volo": "--backbone volo_tiny",
        "dino": "--size 64 --resize 64 --local-size 32 --local-crops 1 --out-dim 32 --knn-k 3",
        "classify": "--resize 36"}  # fmt: skip
IMAGES = {"reid": "people", "detect": "scenes", "segment": "shapes"}
LEFT_OUT = ("method", "config", "metric", "seeds", "dataset", "smoke", "arch", "dry_run", "weights", "load")
"""Options that are no choice of a value: they are given by the recipe, or name files of the user's."""
SLOW = ("fp16",)
"""A value that takes minutes on a CPU."""


def works() -> list[str]:
    """The names of all tasks and recipes."""
    return [*config_names("tasks"), *(name for name in config_names("pretrain") if not name.startswith("cifar"))]


def program(work: str) -> str:
    """The command that runs a task or recipe."""
    return "run" if work in config_names("tasks") else "pretrain"


@cache
def kinds(work: str) -> tuple[Any, ...]:
    """The dataclasses of the options of a command."""
    if program(work) == "run":
        return load_task(work).options, BackboneOptions, RunOptions
    return load_task(_method(work)).options, BackboneOptions, PretrainRunOptions


def _method(work: str) -> str:
    return f"pretrain-{pretraining_recipe(work).values()['method']}"


def base_words(work: str, places: Places) -> list[str]:
    """The words of the command of a task or recipe, at sizes that end in a second."""
    names = {field.name for field in fields(kinds(work)[0])}
    words, given = [work, "--smoke", "--backbone", "tiny"], f"{SIZES} {ALSO.get(work, '')}".split()
    for place, word in enumerate(given):
        if word.startswith("--") and (word[2:].replace("-", "_") in {*names, "backbone"}):
            values = given[place + 1 :]
            count = next((number for number, value in enumerate(values) if value.startswith("--")), len(values))
            words = with_words(words, [word, *values[:count]])
    words += ["--dataset", str(places.data(IMAGES.get(work, "labelled"))), "--threads", "1", "--workers", "0"]
    return words + (["--weights", str(places.export())] if work == "classify" else [])


def with_words(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """The words of a command with more flags and their values, in place of equal flags that it has."""
    given = {word.removeprefix("--no-").removeprefix("--") for word in more if word.startswith("--")}
    kept, replaced = list[str](), False
    for word in words:
        if word.startswith("--"):
            replaced = word.removeprefix("--no-").removeprefix("--") in given
        kept += [] if replaced else [word]
    return [*kept, *more]


def values_of(work: str, words: Sequence[str]) -> dict[str, Any]:
    """The value of every option of a command. Raises UsageError."""
    given = command(work, *words[1:])
    return vars(given.run) | vars(given.backbone) | given.recipe_backbone | vars(given.options)


def choices(work: str) -> dict[str, Any]:
    """The type of each option that can be another one, by name."""
    hints: dict[str, Any] = {}
    for kind in reversed(kinds(work)):
        hints |= typing.get_type_hints(kind)
    left = {*LEFT_OUT, *(name for kind in kinds(work) for name in noted(kind, Execution))}
    return {name: hint for name, hint in hints.items() if name not in left and Path not in typing.get_args(hint)}


def other_value(name: str, hint: Any, now: Any, rng: random.Random, places: Places) -> Any:
    """Another value of an option than it has now."""
    if name in (named := _named(places)):
        return rng.choice([value for value in named[name] if value != now])
    return other_of_type(hint, now, rng)


def other_of_type(hint: Any, now: Any, rng: random.Random) -> Any:
    """Another value of a type than a value."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return rng.choice([value for value in options if value != now and value not in SLOW])
    inner = [kind for kind in options if kind not in (type(None), Ellipsis) and typing.get_args(kind) != (now,)]
    if typing.get_origin(hint) is tuple:
        if not now:
            return ("*weight",) if str in inner else (1,)
        return tuple(other_of_type(inner[0], value, rng) for value in now)
    if inner:  # of a union
        if now is not None and type(None) in options and rng.random() < 0.5:
            return None
        return other_of_type(rng.choice(inner), now, rng)
    if hint is bool:
        return not now
    if hint is int:
        return rng.choice(sorted({(now or 0) + 1, 2 * (now or 1), max((now or 0) // 2, 1)} - {now}))
    if hint is float:
        number = now if isinstance(now, float | int) else 0
        return rng.choice((number / 2, 1.5 * number)) if number else rng.choice((0.1, 0.25))
    return "*weight"


def _named(places: Places) -> dict[str, tuple[str, ...]]:
    """The names of parts, those of the user's among them."""
    models = ("tiny", "volo_tiny", "test_vit", "test_convnext", "test_resnet", places.user("Net"))
    return {
        "backbone": models,
        "stem": (*STEMS, places.user("MyStem")),
        "attention": (*ATTENTIONS, places.user("linear")),
        "ffn": (*FFNS,),
        "pool": ("cls", "gap", "mean"),
        "pos": ("learned", "sincos2d"),
        "gate": ("off", "sigmoid", "silu", "linear"),
    }


def drawn(work: str, name: str, values: dict[str, Any], rng: random.Random, places: Places) -> dict[str, Any]:
    """Another value of an option, with what it needs to act."""
    hints = choices(work)
    changed = {name: other_value(name, hints[name], values.get(name), rng, places)}
    needs = {key: note for kind in (*kinds(work), BackboneSpec) for key, note in noted(kind, Needs).items()}
    while name in needs and not needs[name].holds((values | changed).get(needs[name].option)):
        condition = needs[name]
        name = condition.option
        if name not in hints:
            break
        changed[name] = meeting(condition, partial(other_value, name, hints[name], values.get(name), rng, places), rng)
    return changed


def meeting(condition: Needs, other: Callable[[], Any], rng: random.Random) -> Any:
    """A value of the other option beside which one acts; `other` gives one that it does not have now."""
    wanted = condition.wanted
    if wanted is True or isinstance(wanted, Other):
        return other()
    if wanted is several:
        return 1, 2
    return None if wanted is False else rng.choice(sorted(wanted)) if isinstance(wanted, tuple) else wanted


def rows(options: Sequence[str], width: int, rng: random.Random) -> Iterator[list[str]]:
    """So many options at a time, until every pair has stood together."""
    missing = {frozenset(pair) for pair in combinations(options, 2)}
    while missing:
        row = rng.sample(sorted(rng.choice(sorted(missing, key=sorted))), 2)
        while len(row) < min(width, len(options)):
            rest = [name for name in options if name not in row]
            rng.shuffle(rest)
            row.append(max(rest, key=lambda name: sum(frozenset((name, other)) in missing for other in row)))
        missing -= {frozenset(pair) for pair in combinations(row, 2)}
        yield row
