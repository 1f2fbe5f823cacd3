"""`check_backbone` runs the checks of the catalogue; `backbone_checks` gives them to a test suite."""

import inspect
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from transfer.core.errors import UsageError, UserError, first_line, unknown
from transfer.testing import CheckFailed, CheckSkipped, Report, Result
from transfer.testing.catalogue import CATALOGUE
from transfer.testing.subject import Factory, Subject, find_source


def check_backbone(factory: Factory, *, on_result: Callable[[Result], None] | None = None, **options: Any) -> Report:
    """Run the conformance test of a backbone, or of a part inside one, on the CPU.

    Args:
        factory: a name, a YAML file or `file.py:Class`, as `--backbone` takes them; a live `nn.Module`; or a class or
            function without required parameters that returns one. Names get random weights; a module is copied.
        on_result: called with each result when its check ends.
        options: those of `backbone_checks`.

    Returns:
        The report; `report.ok`, `report.raise_if_failed()`, `print(report)`.

    Raises:
        UsageError: an unknown name of a backbone, a field or a check.
    """
    checks = backbone_checks(factory, **options)
    results: list[Result] = []
    for check in checks:
        broken = bool(results) and results[0].name == "builds" and results[0].state == "failed"
        result = Result(check.name, "skipped", "the model does not build") if broken else check.result()
        results.append(result)
        if on_result is not None:
            on_result(result)
    return Report(checks[0].subject.name, tuple(results))


def backbone_checks(
    factory: Factory,
    *,
    size: int | None = None,
    divisor: int | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    seed: int = 0,
    **parts: Any,
) -> "list[BackboneCheck]":
    """Return the checks of a backbone as values for `pytest.mark.parametrize`; nothing is built before the first call.

    Example:
        @pytest.mark.parametrize("check", backbone_checks(MyModel))
        def test_my_model(check):
            check()

    Args:
        factory: see `check_backbone`.
        size: side of the square image in pixels. By default 4 patches; 224 where the patch is not known.
        divisor: what heights and widths must be multiples of, where the model does not say so.
        only: names of the checks to run, by default all.
        skip: names of checks to leave out.
        seed: of weights and images.
        parts: the backbone's fields, as `stem="my_stem.py:Stem"`, `attention=`, `ffn=`, `depth=2`. A class or function
            at the top of a file will do for these three parts.

    Raises:
        UsageError: see `check_backbone`.
    """
    names = _chosen(only, skip)
    subject = Subject(*find_source(factory, parts), size, divisor, seed)
    return [BackboneCheck(name, subject) for name in names]


@dataclass(frozen=True)
class BackboneCheck:
    """One check of one backbone, to be called in a test.

    Attributes:
        name: of the check, which pytest shows.
    """

    name: str
    subject: Subject

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Run the check.

        Raises:
            CheckFailed: the reason and the hint.
            CheckSkipped: it has nothing to look at.
        """
        result = self.result()
        if result.state == "failed":
            raise CheckFailed(f"{result.name}: {result.reason}\nhint: {result.hint}")
        if result.state == "skipped":
            raise CheckSkipped(result.reason)

    def result(self) -> Result:
        """Run the check and return its result. The random numbers and the mode of the caller stay as they are."""
        run = CATALOGUE[self.name]
        hint = " ".join((inspect.getdoc(run) or "").partition("Hint: ")[2].split())
        start = time.perf_counter()

        def result(state: Any, reason: str) -> Result:
            return Result(self.name, state, reason, hint, time.perf_counter() - start)

        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            try:
                return result("passed", run(self.subject) or "")
            except CheckSkipped as skipped:
                return result("skipped", str(skipped))
            except (CheckFailed, UserError) as failed:
                return result("failed", str(failed))
            except Exception as error:
                return result("failed", first_line(error))


def _chosen(only: Collection[str], skip: Collection[str]) -> list[str]:
    for name in (*only, *skip):
        if name not in CATALOGUE:
            raise unknown("check", name, CATALOGUE)
    chosen = [name for name in CATALOGUE if (not only or name in only) and name not in skip]
    if not chosen:
        raise UsageError("only and skip leave no check to run")
    return chosen
