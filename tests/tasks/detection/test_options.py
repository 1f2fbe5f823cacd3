from dataclasses import fields

import pytest

from backbones.engine.options import FitOptions
from backbones.errors import UsageError
from backbones.settings import CONFIGS, read_yaml
from tasks.detection.options import DetectOptions
from tests.support import PLAIN

GIVEN = {
    "detector": None, "pyramid": "simple", "taps": None, "window": 14, "window_padding": "masked",
    "global_blocks": None, "relative": True, "checkpoint": False, "norm_eval": True, "drop_path": 0.1,
    "view": "jitter", "size": (64, 96), "flip": 0.5, "batch": 8, "eval_batch": 1, "validate_at": (),
    "test_dataset": (), "save_pictures": 0,
}  # fmt: skip


def options(**given):
    return DetectOptions(**{**PLAIN, **GIVEN, **given})


def test_the_recipe_gives_every_option_a_value():
    recipe = read_yaml(CONFIGS / "tasks" / "detect.yaml")
    names = {field.name for field in fields(DetectOptions)}
    assert names <= recipe.keys()
    assert names - {field.name for field in fields(FitOptions)} == GIVEN.keys()


@pytest.mark.parametrize(
    "given",
    [
        {"size": (96, 96)},
        {"drop_path": 0.0, "flip": 0},
        {"flip": 1},
        {"window": 0, "save_pictures": 3, "eval_batch": 4},
        {"batch": 6, "grad_accum_steps": 3},
        {"pyramid": "taps", "taps": (2, 5, 8, -1)},
        {"epochs": 3, "validate_at": (1, 3)},
    ],
)
def test_what_is_allowed(given):
    assert vars(options(**given)).items() >= given.items()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"size": (0, 96)}, "--size .*: must be at least 1"),
        ({"size": (96, 64)}, "--size 96 64: the limit of the shorter side comes first"),
        ({"batch": 0}, "--batch 0: must be at least 1"),
        ({"eval_batch": 0}, "--eval-batch 0: must be at least 1"),
        ({"window": -1}, "--window -1: must be at least 0"),
        ({"save_pictures": -1}, "--save-pictures -1: must be at least 0"),
        ({"flip": -0.1}, "--flip -0.1: must be between 0 and 1"),
        ({"flip": 1.1}, "--flip 1.1: must be between 0 and 1"),
        ({"flip": float("nan")}, "--flip nan: must be between 0 and 1"),
        ({"drop_path": -0.1}, "--drop-path -0.1: must be between 0 and 1"),
        ({"drop_path": 1}, "--drop-path must be below 1"),
        ({"batch": 8, "grad_accum_steps": 3}, "--grad-accum-steps 3 must divide --batch 8"),
        ({"taps": (0, 1, 2, 3)}, "give four different blocks, with --pyramid taps"),
        ({"pyramid": "taps", "taps": (0, 1, 2)}, "give four different blocks"),
        ({"pyramid": "taps", "taps": (0, 1, 1, 2)}, "give four different blocks"),
        ({"epochs": 3, "validate_at": (0,)}, r"--validate-at \(0,\): epochs count from 1 to 3"),
        ({"epochs": 3, "validate_at": (1, 4)}, "epochs count from 1 to 3"),
        ({"epochs": -1}, "--epochs -1: must be at least 0"),
    ],
)
def test_what_is_out_of_range_is_named(given, said):
    with pytest.raises(UsageError, match=said):
        options(**given)
