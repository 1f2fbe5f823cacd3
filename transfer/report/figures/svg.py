"""Figures as SVG: text stays text, lines take the text color of the page, equal rows give equal bytes.

matplotlib is imported when a figure is drawn.
"""

import io
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from transfer.core.errors import UserError, visible
from transfer.core.files import check_writable, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#1b2733"
"""Color that becomes the text color of the page that holds the SVG."""
SMALL_TEXT = 8.5
"""Size of the text of legends and remarks, in points."""
EM = 0.6
"""Width of a character of DejaVu Sans, in font sizes: more than the mean."""
OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
"""Okabe and Ito's palette, distinct to color-blind readers; without its yellow, which is faint on white."""
STYLES = ("-", "--", "-.", ":")
SETTINGS: Any = {
    **{"svg.fonttype": "none", "svg.hashsalt": "transfer", "pdf.fonttype": 42},
    **{"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False},
    **{"axes.unicode_minus": False, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False},
    **{"font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"]},
    **{"font.size": 9.5, "axes.titlesize": 10},
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "hatch.color"), INK),
}
"""matplotlib's settings; `$` and `\\` in labels are literal."""
PAPER_INCHES = {1: 3.35, 2: 6.9}
"""Width of a figure for a paper, over one column and over two."""
SHRUNK = {1: 0.75, 2: 0.85}
"""Size of the text in a figure for a paper, of that on the page."""
SMALLEST = 6.0
"""Smallest text of a figure for a paper, in points."""
_columns: ContextVar[int] = ContextVar("columns", default=0)


@dataclass(frozen=True)
class Plot:
    """Figure as SVG for a page, the values that it shows as CSV, and the figure itself."""

    svg: str
    csv: str
    figure: "Figure" = field(compare=False, repr=False)


def write_figures(draw: Callable[[], Iterable[tuple[str, Plot]]], folder: Path) -> list[Path]:
    """Write every figure as SVG and PDF in the widths of one and of two columns, and its data as CSV.

    Args:
        draw: makes the figures with their names, once for each width; of equal names later ones get a number.
        folder: where to write.

    Raises:
        UserError: there is no figure, or the folder cannot be written.
    """
    contents: dict[str, bytes] = {}
    for columns, factor in SHRUNK.items():
        seen: Counter[str] = Counter()
        with in_columns(columns):
            for name, plot in draw():
                seen[name] += 1
                file = f"{name}-{seen[name]}" if seen[name] > 1 else name
                _shrink_texts(plot.figure, factor)
                contents |= {f"{file}-{columns}col.{kind}": _saved(plot.figure, kind) for kind in ("svg", "pdf")}
                contents[f"{file}.csv"] = plot.csv.encode()
    if not contents:
        raise UserError("report figures: these runs give no figure")
    check_writable(folder, "--output")
    for name, content in contents.items():
        write_atomic(folder / name, content, flag="--output")
    return [folder / name for name in contents]


def _shrink_texts(figure: "Figure", factor: float) -> None:
    """Make the text of a figure smaller, to no less than `SMALLEST`, and drop its marks, which are for pages."""
    from matplotlib.text import Text

    for part in figure.findobj():
        part.set_gid(None)
        if isinstance(part, Text):
            part.set_fontsize(max(SMALLEST, factor * float(part.get_fontsize())))


def on_white(plot: Plot) -> bytes:
    """Return a figure as an SVG file with a white background, for documents whose own may be dark."""
    return _saved(plot.figure, "svg", transparent=False)


def _saved(figure: "Figure", kind: str, *, transparent: bool = True) -> bytes:
    """Return a figure as a file without date and program, so that equal figures are equal bytes."""
    import matplotlib

    nothing = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("CreationDate", "Creator", "Producer")
    buffer = io.BytesIO()
    with matplotlib.rc_context({name: SETTINGS[name] for name in ("svg.fonttype", "svg.hashsalt", "pdf.fonttype")}):
        figure.savefig(buffer, format=kind, transparent=transparent, metadata=dict.fromkeys(nothing))
    return buffer.getvalue()


@contextmanager
def in_columns(columns: int) -> Iterator[None]:
    """Draw figures in the width of one or two columns of a paper (`PAPER_INCHES`): panels below each other in one."""
    token = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(token)


def is_narrow() -> bool:
    """Return whether figures are drawn for one column of a paper."""
    return _columns.get() == 1


def label_text(value: object, most: int = 60) -> str:
    """Return a text as a label: one line of at most `most` characters, control characters shown."""
    shown = visible(" ".join(str(value).split()))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def wrapped(text: str, inches: float, size: float = SMALL_TEXT) -> str:
    """Return a text in lines of at most a width, for a font size in points."""
    return fill(text, max(int(inches * 72 / (EM * size)), 8))


def fits(text: str, inches: float, size: float = SMALL_TEXT) -> bool:
    """Return whether every line of a text is shorter than a width, for a font size in points."""
    return EM * size / 72 * max(map(len, text.split("\n"))) <= inches


@contextmanager
def canvas(width: float, height: float, panels: int = 1, across: int = 1) -> Iterator[tuple["Figure", list[Any]]]:
    """Yield a figure of a size in inches and its axes, drawn without a screen, for the page or columns of a paper."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # the user's own style must not apply
        matplotlib.rcParams.update(SETTINGS)
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has other fonts
        wide, high = width / across, height / -(-panels // across)
        if columns := _columns.get():
            width, across = PAPER_INCHES[columns], 1 if columns == 1 else across
            high *= max(min(width / across / wide, 1.0), 0.7)
        down = -(-panels // across)
        figure = Figure(figsize=(width, high * down), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
        for unused in axes[panels:]:
            unused.remove()
        yield figure, axes[:panels]


def mark(text: str, run: str = "", variant: str = "") -> str:
    """Return the group id of a part of a figure, which `plot_of` turns into what a page does with the part.

    Args:
        text: what is said when it is pointed at: run, seed, value and interval.
        run: id of the run whose record a click opens; empty for none.
        variant: name of the backbone, by which parts are hidden and shown; empty for none.
    """
    return f"mark:{quote(json.dumps([label_text(value, 200) for value in (text, run, variant)]))}"


def plot_of(figure: "Figure", csv: str) -> Plot:
    """Return a figure on a `canvas`, as an <svg> element whose lines have the page's text color, and its values."""
    drawn = _saved(figure, "svg").decode()
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor")
    # the style rule would apply to the whole page
    drawn = re.sub(r"<style[^>]*>.*?</style>", "", drawn, count=1, flags=re.DOTALL)
    return Plot(re.sub('<g id="mark:([^"]+)">', _marked, drawn), csv, figure)


def _marked(group: re.Match[str]) -> str:
    """Return the opening tag of a part of a figure with what its `mark` says."""
    text, run, variant = map(escape, json.loads(unquote(group[1])))
    run = f' data-run="{run}"' if run else ""
    variant = f' data-variant="{variant}"' if variant else ""
    return f"<g{run}{variant}><title>{text}</title>"


def color_of(name: str, names: Mapping[str, str]) -> str:
    """Return the color of a variant, the same in all figures.

    Args:
        name: of the variant.
        names: the variant of each run of the report, by its id.
    """
    return OKABE_ITO[number_of(name, names) % len(OKABE_ITO)]


def number_of(name: str, names: Mapping[str, str]) -> int:
    """Return the place of a variant among all of a report, see `color_of`."""
    return sorted({*names.values()}).index(name)


def looks(remarks: Mapping[str, str], names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return label, color and dashes of the curves of runs, as matplotlib takes them, by the ids of the runs.

    Args:
        remarks: what follows the name of the variant in each label, by the run's id.
        names: the variant of each run of the report, by its id.
    """
    by_run: dict[str, dict[str, Any]] = {}
    curves: Counter[str] = Counter()
    for run, remark in remarks.items():
        name = names[run]
        label = f"{label_text(name, 120)}{remark}"
        label += f", run {run[-6:]}" if any(label == look["label"] for look in by_run.values()) else ""
        by_run[run] = {"label": label, "color": color_of(name, names), "linestyle": STYLES[curves[name] % len(STYLES)]}
        curves[name] += 1
    return by_run


def logarithmic(axis: Any, values: Sequence[float]) -> None:
    """Set a logarithmic scale whose ticks are plain numbers: matplotlib would write powers as formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    span = max(values) / min(values)
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    ticks, subs = (3, (1,)) if _columns.get() else (6, (1, 2, 5) if span < 1000 else (1,))
    axis.set_major_locator(MaxNLocator(ticks) if span < 10 else LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def finished_plot(figure: "Figure", all_axes: Sequence[Any], csv: str) -> Plot:
    """Return a figure as `plot_of` does, with a faint grid, and one legend for all axes below them."""
    shown: dict[str, Any] = {}
    for axes in all_axes:
        axes.grid(True, color=INK, alpha=0.14, linewidth=0.7)
        axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles))
    draw_legend(figure, shown)
    return plot_of(figure, csv)


def draw_legend(figure: "Figure", shown: Mapping[str, Any]) -> None:
    """Draw handles by their labels below the axes, in as many columns as fit, and make the figure higher by them."""
    if not shown:
        return
    width, handle = figure.get_figwidth(), 0.65
    labels = [wrapped(label, width - handle) for label in shown]
    longest = max(map(len, "\n".join(labels).split("\n")))
    columns = max(int(width / (handle + longest * EM * SMALL_TEXT / 72)), 1)
    lines = sum(1 + label.count("\n") for label in labels) / min(columns, len(labels))
    figure.set_figheight(figure.get_figheight() + 0.2 * (lines + 1))
    figure.legend(shown.values(), labels, loc="outside lower left", ncols=columns, fontsize=SMALL_TEXT, labelcolor=INK)
