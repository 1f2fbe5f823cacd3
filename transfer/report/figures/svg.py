"""Figures as SVG: text stays text, lines take the text colour of the page, equal rows give equal bytes.

matplotlib is imported when a figure is drawn.
"""

import io
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#1b2733"
"""Colour that becomes the text colour of the page that holds the SVG."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
"""Okabe and Ito's palette, distinct to colour-blind readers; without its yellow, which is faint on white."""
STYLES = ("-", "--", "-.", ":")
LINES = 24
"""Largest number of curves in a plot."""


@dataclass(frozen=True)
class Plot:
    """Figure as SVG, and the values that it shows as CSV."""

    svg: str
    csv: str


def plain(value: object, most: int = 60) -> str:
    """Return a text as a label: one line of at most `most` characters, without control characters."""
    shown = "".join(
        character if unicodedata.category(character)[0] != "C" else " " for character in str(value)
    )  # also lone surrogates, which no file can hold
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else shown[: most - 1] + "…"


@contextmanager
def canvas(width: float, height: float, panels: int = 1, across: int = 1) -> Iterator[tuple["Figure", list[Any]]]:
    """Yield a figure of a size in inches and its axes, drawn without a screen; `$` and `\\` in labels are literal."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "transfer",
        "text.parse_math": False,
        "text.usetex": False,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": False,
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
        "font.size": 9.5,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "path.simplify": True,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
        **dict.fromkeys(("xtick.color", "ytick.color", "hatch.color"), INK),
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # the user's own style must not apply
        matplotlib.rcParams.update(settings)
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has other fonts
        figure = Figure(figsize=(width, height), layout="constrained")
        down = -(-panels // across)
        axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
        for unused in axes[panels:]:
            unused.remove()
        yield figure, axes[:panels]


def to_svg(figure: "Figure", name: str) -> str:
    """Return the figure as an <svg> element; `name` prefixes its ids, so that a page can hold several."""
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawn = buffer.getvalue().decode()
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor")
    # the style rule would apply to the whole page
    drawn = re.sub(r"<style[^>]*>.*?</style>", "", drawn, count=1, flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", drawn)


def look(number: int) -> dict[str, Any]:
    """Return colour and dashes of a curve, distinct for the first 32."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}


def logarithmic(axis: Any, values: Sequence[float]) -> None:
    """Set a logarithmic scale whose ticks are plain numbers: matplotlib would write powers as formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    span = max(values) / min(values)
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(MaxNLocator(6) if span < 10 else LogLocator(subs=(1, 2, 5) if span < 1000 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def finish(figure: "Figure", all_axes: Sequence[Any]) -> None:
    """Draw a faint grid, and one legend for all axes beside them."""
    shown: dict[str, Any] = {}
    for axes in all_axes:
        axes.grid(True, color=INK, alpha=0.14, linewidth=0.7)
        axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles))
    if shown:
        figure.legend(shown.values(), shown.keys(), loc="outside right upper", fontsize=8.5)


def note_omitted(figure: "Figure", shown: int, total: int, name: str) -> None:
    """Draw a line above the axes with the number of panels or curves shown, if some are not."""
    if shown < total:
        figure.suptitle(f"the first {shown} of {total} {name}", fontsize=9.5)
