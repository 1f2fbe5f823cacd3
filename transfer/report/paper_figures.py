"""The figures of a report as files for a paper."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from transfer.core.errors import UserError
from transfer.core.files import check_writable, write_atomic
from transfer.report.figures.svg import PAPER_INCHES, in_columns
from transfer.report.page.section_types import Section


def write_figures(draw: Callable[[], Sequence[Section]], folder: Path) -> list[Path]:
    """Write every figure as SVG and PDF in the widths of one and of two columns, and its data as CSV.

    Names come from the titles of the sections; of equal ones later files get a number.

    Args:
        draw: makes the sections, once for each width.
        folder: where to write.

    Raises:
        UserError: the runs give no figure, or the folder cannot be written.
    """
    contents: dict[str, bytes] = {}
    for columns in PAPER_INCHES:
        with in_columns(columns):
            contents |= _contents(draw())
    if not contents:
        raise UserError("--figures: these runs give no figure")
    check_writable(folder, "--figures")
    for name, content in contents.items():
        write_atomic(folder / name, content, flag="--figures")
    return [folder / name for name in contents]


def _contents(parts: Sequence[Section]) -> dict[str, bytes]:
    """Return the files of all figures by their names."""
    seen: Counter[str] = Counter()
    contents: dict[str, bytes] = {}
    for part in parts:
        if part.plot is not None:
            seen[part.file_name] += 1
            number = f"-{seen[part.file_name]}" if seen[part.file_name] > 1 else ""
            contents |= part.plot.paper_files(part.file_name + number)
    return contents
