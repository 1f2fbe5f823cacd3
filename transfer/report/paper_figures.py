"""The figures of a report as files for a paper."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from backbones.errors import UserError
from backbones.runtime.files import check_writable, write_atomic
from transfer.report.page.section_types import Section


def write_figures(parts: Sequence[Section], folder: Path) -> list[Path]:
    """Write every figure as SVG and PDF, and its data as CSV; return the files.

    Names come from the titles of the sections; of equal ones later files get a number.

    Raises:
        UserError: there is no figure, or the folder cannot be written.
    """
    plotted = [part for part in parts if part.plot is not None]
    if not plotted:
        raise UserError("--figures: these runs give no figure")
    check_writable(folder, "--figures")
    seen: Counter[str] = Counter()
    files = []
    for part in plotted:
        assert part.plot is not None
        seen[part.slug] += 1
        number = f"-{seen[part.slug]}" if seen[part.slug] > 1 else ""
        for name, content in part.plot.paper_files(part.slug + number):
            write_atomic(folder / name, content, flag="--figures")
            files.append(folder / name)
    return files
