"""The benchmark that runs timm's tests on ours: which cases it runs, and what it says of them."""

from pathlib import Path

import pytest
import timm

from tests.benchmarks.parity import timm_tests

TESTS = """
import pytest
from timm import create_model, list_models

@pytest.mark.parametrize("model_name", list_models(exclude_filters=["volo_*"]))
def test_one(model_name):
    assert create_model(model_name, depth=1).num_classes != 1000, "the reason"

@pytest.mark.parametrize("model_name", list_models(pretrained=True))
def test_released(model_name):
    raise AssertionError

@pytest.mark.parametrize("model_name, kwargs", [("resnet18", dict(depth=1))])
def test_model_init_weights_after_to_empty(model_name, kwargs):
    assert kwargs == {}

def test_of_no_model():
    raise AssertionError
"""


def source_package(folder: Path, version: str) -> Path:
    for name, text in (("tests/test_models.py", TESTS), ("timm/version.py", f"__version__ = '{version}'\n")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.nightly
def test_timms_tests_run_on_ours_and_what_fails_without_a_reason_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, listing = source_package(tmp_path, timm.__version__), timm.list_models
    assert timm_tests.main(["--checkout", str(folder), "--models", "v*_tiny", "test_vit"]) == 1
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert "test_one 0 of 1 0 of 1" in lines  # not volo_tiny, which the test excludes
    assert "test_model_init_weights_after_to_empty 2 of 2 1 of 1" in lines
    assert "all 2 of 3 1 of 2" in lines
    assert any(
        line.startswith("fails: test_one (vit_tiny): NOT EXPLAINED: AssertionError: the reason") for line in lines
    )
    assert any(line.startswith("fails: test_one (test_vit): timm's own: AssertionError: the reason") for line in lines)
    assert timm.list_models is listing
    assert timm_tests.main(["--checkout", str(folder), "--models", "volo_tiny", "--tests", "to_empty"]) == 0
