"""timm's own generic tests of models, run on our architectures and on variants of their parts.

    pip download --no-binary :all: --no-deps timm==VERSION && tar xf timm-VERSION.tar.gz
    python -m tests.benchmarks timm_tests --checkout timm-VERSION

VERSION is that of the installed timm. The tests that timm runs on each of its models, `tests/test_models.py`, run on
ours, and some that it runs on a few models alone; three models of timm's own run beside them. Prints how many pass of
each test, then the failures by reason; exits with 1 where one of ours has no reason among `REASONS`. Takes three
minutes on a core. `vit_b` and `vit_l`, which differ from `vit_s` in nothing but numbers, take longer, and run where
`--models` names them.
"""

import contextlib
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import timm

from backbones.errors import UserError, did_you_mean
from tests.benchmarks.parity import timm_variants
from tests.benchmarks.parity.checks import checkout_parser
from tests.benchmarks.parity.timm_variants import CONTROLS, OURS

Case = tuple[str, str]
"(name of the test, name of the model)"
ALSO = (
    "test_forward_after_prune_intermediate_layers",
    "test_model_init_weights_after_to_empty",
    "test_prune_intermediate_layers_params_used",
    "test_pruned_features_torchscript",
)
"tests that timm runs on a few of its models, though they hold for any"

_NO_TORCHSCRIPT = (
    "torch.jit.script is not supported: parts are Python objects chosen by name, and functions ask for sizes, devices "
    "and autocast; torch itself deprecates it for torch.compile and torch.export"
)
_FIXED = "positions of `pos: sincos2d` are fixed, so that they have no gradient"
REASONS: dict[Case, str] = {
    ("test_model_forward_torchscript", "*"): _NO_TORCHSCRIPT,
    ("test_model_forward_fx_torchscript", "*"): _NO_TORCHSCRIPT,
    ("test_pruned_features_torchscript", "*"): _NO_TORCHSCRIPT,
    ("test_model_forward_intermediates", "vit_tiny"): "it has two blocks, and the test wants three",
    ("test_model_backward", "*_sincos2d"): _FIXED,
    ("test_model_backward_fx", "*_sincos2d"): _FIXED,
    ("test_prune_intermediate_layers_params_used", "*_sincos2d"): _FIXED,
}
"why a model of ours fails a test, by patterns of both names"


USUAL = [name for name in (*OURS, *CONTROLS) if name not in ("vit_b", "vit_l")]


@dataclass
class Result:
    """How a case ended: "passed", "failed" or "skipped", and the first line of the error."""

    outcome: str
    error: str = ""


@dataclass(eq=False)
class Collector:
    """A plugin of pytest: has the tests run on certain models, and keeps the results."""

    models: Sequence[str]
    results: dict[Case, Result] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Give the tests of `ALSO` our models in place of those that timm lists there."""
        if metafunc.function.__name__ not in ALSO:
            return
        marks = metafunc.definition.own_markers
        names = ["model_name", *(["kwargs"] if "kwargs" in metafunc.fixturenames else [])]
        values = [(model, {})[: len(names)] for model in (*OURS, *CONTROLS)]
        marks[:] = [mark for mark in marks if mark.name != "parametrize"]
        marks.append(pytest.mark.parametrize(names, values).mark)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out the cases of other models."""
        for item in items:
            model = item.callspec.params.get("model_name") if hasattr(item, "callspec") else None
            if model in self.models:
                self.cases[item.nodeid] = item.originalname, model
        items[:] = [item for item in items if item.nodeid in self.cases]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep what came of a case."""
        if report.when == "call" or not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            lines = (crash.message if crash else "").strip().splitlines()
            self.results[self.cases[report.nodeid]] = Result(report.outcome, lines[0] if lines else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests and print the table; return the exit status."""
    parser = checkout_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=USUAL, help=f"patterns of names: of {', '.join(OURS)}")
    parser.add_argument("--tests", default="", help="a part of the names of tests, as pytest's -k takes it")
    given = parser.parse_args(argv)
    results = run(source_file(given.checkout), named_models(given.models), given.tests)
    print("\n".join(table(results)))
    return int(not results or any(not reason(*case) for case in failures(results)))


def source_file(checkout: Path) -> Path:
    """Return timm's file of tests. Raises UserError if it is missing, or belongs to another version of timm."""
    file, version = checkout / "tests" / "test_models.py", checkout / "timm" / "version.py"
    fetch = f"pip download --no-binary :all: --no-deps timm=={timm.__version__}, and unpack it"
    if not file.is_file() or not version.is_file():
        raise UserError(f"{checkout} is no source package of timm; {fetch}")
    text = version.read_text(encoding="utf-8").partition("=")[2].strip().strip("'\"")
    if text != timm.__version__:
        raise UserError(f"{checkout} is timm {text}, but {timm.__version__} is installed; {fetch}")
    return file


def named_models(patterns: Sequence[str]) -> list[str]:
    """Return our models and timm's that patterns name. Raises UserError for a pattern without any."""
    names = [*OURS, *CONTROLS]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            raise UserError(f"no model is called {pattern}{did_you_mean(pattern, names)}")
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def run(file: Path, models: Sequence[str], tests: str = "") -> dict[Case, Result]:
    """Return the results of a file of tests on models."""
    collector, timms_own = Collector(models), timm.list_models
    timm.list_models = timm_variants.list_models
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):  # it shows its progress
            shutil.copy(file, folder)  # away from a package `tests` that is not ours
            options = ["-q", "-q", "--tb=no", "--no-summary", "--disable-warnings", "-p", "no:cacheprovider"]
            pytest.main([folder, "-c", "/dev/null", "--rootdir", folder, "-k", tests, *options], plugins=[collector])
    finally:
        timm.list_models = timms_own
        sys.modules.pop(file.stem, None)  # or another run would find this one's module
    generic = {test for test, model in collector.results if model in OURS}
    return {case: result for case, result in collector.results.items() if case[0] in generic}


def failures(results: Mapping[Case, Result]) -> list[Case]:
    """Return the cases of our models that failed."""
    return [case for case, result in results.items() if result.outcome == "failed" and case[1] in OURS]


def reason(test: str, model: str) -> str:
    """Return why a model of ours fails a test; empty where nobody knows."""
    return next((why for names, why in REASONS.items() if test == names[0] and fnmatch(model, names[1])), "")


def table(results: Mapping[Case, Result]) -> list[str]:
    """Return lines: how many pass of each test, ours and timm's, then the failures by reason."""
    lines = [f"{'test':50}{'ours':>12}{'timm':>10}"]
    for test in sorted({test for test, _ in results}):
        lines.append(_counts(test, {case: result for case, result in results.items() if case[0] == test}))
    lines += [_counts("all", results), ""]
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (test, model), result in results.items():
        if result.outcome == "failed":
            ours = model in OURS
            why = reason(test, model) if ours else f"timm's own: {result.error}"
            grouped[test, why or f"NOT EXPLAINED: {result.error}"].append(model)
    for (test, why), models in sorted(grouped.items()):
        named = ", ".join(models) if len(models) < 4 else f"{len(models)} models"
        lines.append(f"fails: {test} ({named}): {why}")
    return lines


def _counts(heading: str, results: Mapping[Case, Result]) -> str:
    """Return a line that says how many cases pass of those that ran, of our models and of timm's."""
    line = f"{heading:50}"
    for ours, width in ((True, 12), (False, 10)):
        ran = [r.outcome for (_, model), r in results.items() if (model in OURS) == ours and r.outcome != "skipped"]
        line += f"{ran.count('passed')} of {len(ran)}".rjust(width)
    return line
