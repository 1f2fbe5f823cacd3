"""`python -m transfer.doctor backbone NAME|FILE:Class` runs the conformance test of a backbone or of a part in one."""

from dataclasses import dataclass

from backbones.engine.options import check_ranges
from backbones.errors import print_safe
from backbones.settings import Positional, parse
from transfer.testing import Result, check_backbone


@dataclass(kw_only=True)
class BackboneCheckOptions:
    """Check a backbone, or a stem, attention or FFN inside one, with random weights on the CPU."""

    name: Positional[str]
    """The backbone: a shipped name, a name of timm, a YAML file, or `file.py:Class`."""
    stem: str | None = None
    """Stem to put into the backbone, as `my_stem.py:Stem`."""
    attention: str | None = None
    """Attention to put into the backbone."""
    ffn: str | None = None
    """FFN to put into the backbone."""
    patch: int | None = None
    """Patch size in pixels."""
    depth: int | None = None
    """Number of blocks; 2 make the checks of a part quick."""
    size: int | None = None
    """Side of the square image in pixels; by default 4 patches, or 224 where the patch is not known."""
    divisor: int | None = None
    """Pixels that heights and widths must be multiples of, where the model does not say so."""
    only: tuple[str, ...] = ()
    """Names of the checks to run; by default all."""
    skip: tuple[str, ...] = ()
    """Names of checks to leave out."""
    seed: int = 0
    """Seed of weights and images."""

    def __post_init__(self) -> None:
        check_ranges(self, 1, None, "size", "divisor", "patch", "depth")


def main(argv: list[str]) -> int:
    """Print each result when its check ends; return 1 if one failed.

    Raises:
        UsageError: no backbone or several, or an unknown name.
    """
    options = parse(BackboneCheckOptions, argv, prog="python -m transfer.doctor backbone")
    parts = {name: getattr(options, name) for name in ("stem", "attention", "ffn", "patch", "depth")}
    report = check_backbone(
        options.name,
        size=options.size,
        divisor=options.divisor,
        only=options.only,
        skip=options.skip,
        seed=options.seed,
        on_result=_show,
        **{name: value for name, value in parts.items() if value is not None},
    )
    print_safe(report.summary)
    return int(not report.ok)


def _show(result: Result) -> None:
    print_safe(f"  {result}", flush=True)
