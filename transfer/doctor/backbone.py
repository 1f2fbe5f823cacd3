"""`python -m transfer.doctor backbone NAME|FILE:Class` runs the conformance test of a backbone or of a part in one."""

from transfer.core.errors import print_safe
from transfer.doctor.options import BackboneCheckOptions
from transfer.testing import check_backbone


def main(options: BackboneCheckOptions) -> int:
    """Print each result when its check ends; return 1 if one failed.

    Raises:
        UsageError: no backbone or several, or an unknown name.
    """
    parts = {name: getattr(options, name) for name in ("stem", "attention", "ffn", "patch", "depth")}
    report = check_backbone(
        options.name,
        size=options.size,
        divisor=options.divisor,
        only=options.only,
        skip=options.skip,
        seed=options.seed,
        on_result=lambda result: print_safe(f"  {result}", flush=True),
        **{name: value for name, value in parts.items() if value is not None},
    )
    print_safe(report.summary)
    return int(not report.ok)
