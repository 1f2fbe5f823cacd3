"""Figures as SVG: text stays text, lines take the text color of the page, equal rows give equal bytes.

Each figure of a page is drawn twice, the second time for narrow screens. matplotlib is imported when a figure is drawn.
"""

import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import wraps
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from transfer.core.errors import UserError, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#1b2733"
"""Color that becomes the text color of the page that holds the SVG."""
SMALL = 8.5
"""Size of the text of legends and remarks, in points."""
EM = 0.6
"""Width of a character of DejaVu Sans, in font sizes: more than the mean."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
"""Okabe and Ito's palette, distinct to color-blind readers; without its yellow, which is faint on white."""
STYLES = ("-", "--", "-.", ":")
LINES = 24
"""Largest number of curves in a plot."""


PAPER_INCHES = {1: 3.35, 2: 6.9}
"""Width of a figure for a paper, over one column and over two."""
SHRUNK = {1: 0.75, 2: 0.85}
"""Size of the text in a figure for a paper, of that on the page."""
SMALLEST = 6.0
"""Smallest text of a figure for a paper, in points."""
_style: ContextVar[Path | None] = ContextVar("style", default=None)
_arms: ContextVar[Mapping[str, str]] = ContextVar("variants", default={})  # noqa: B039 - it is never changed
_columns: ContextVar[int] = ContextVar("columns", default=0)


@dataclass(frozen=True)
class Mark:
    """What a page says of a part of a figure when it is pointed at, and where a click leads.

    Attributes:
        gid: group id of the part, unique in the figure.
        text: run, seed, value and interval.
        run: id of the run whose record a click opens; empty for none.
        variant: name of the backbone, by which parts are hidden and shown; empty for none.
    """

    gid: str
    text: str
    run: str = ""
    variant: str = ""


@dataclass(frozen=True)
class Plot:
    """Figure as SVG for a page, the values that it shows as CSV, and the figure itself."""

    svg: str
    csv: str
    figure: "Figure" = field(compare=False, repr=False)
    narrow: str = ""
    """SVG in the width of a telephone; empty for a figure of a paper."""

    def paper_files(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Yield (file name, content): SVG and PDF with text as text, and CSV.

        Args:
            name: of the files, without suffix; those of a figure that was drawn `in_columns` end in "-1col" or "-2col".
        """
        import matplotlib

        columns = _columns.get()
        if columns:
            _shrink_texts(self.figure, SHRUNK[columns])
        with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "transfer"}):
            for kind in ("svg", "pdf"):
                yield f"{name}-{columns}col.{kind}" if columns else f"{name}.{kind}", _saved(self.figure, kind)
        yield f"{name}.csv", self.csv.encode()


def _shrink_texts(figure: "Figure", factor: float) -> None:
    """Make the text of a figure smaller, to no less than `SMALLEST`."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_fontsize(max(SMALLEST, factor * float(text.get_fontsize())))


def _saved(figure: "Figure", kind: str) -> bytes:
    """Return a figure as a file without date and program, so that equal figures are equal bytes."""
    nothing = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("CreationDate", "Creator", "Producer")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, transparent=True, metadata=dict.fromkeys(nothing))
    return buffer.getvalue()


@contextmanager
def _during(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Give a variable a value for some statements."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def styled(style: Path | None) -> AbstractContextManager[None]:
    """Draw figures with a file of matplotlib's settings over those of the suite.

    Raises:
        UserError: it cannot be read.
    """
    if style is not None:
        from matplotlib import rc_params_from_file

        try:
            rc_params_from_file(style, fail_on_error=True, use_default_template=False)
        except (OSError, ValueError) as error:
            raise UserError(f"--style {style}: cannot be read: {error}") from None
    return _during(_style, style)


def in_columns(columns: int) -> AbstractContextManager[None]:
    """Draw figures in the width of one or two columns of a paper (`PAPER_INCHES`): panels below each other in one."""
    return _during(_columns, columns)


def is_narrow() -> bool:
    """Return whether figures are drawn for one column of a paper."""
    return _columns.get() == 1


P = ParamSpec("P")
Drawn = TypeVar("Drawn", Plot, Plot | None)


def for_both_widths(draw: Callable[P, Drawn]) -> Callable[P, Drawn]:
    """Make a function that draws a figure draw it a second time for narrow screens."""

    @wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> Drawn:
        plot = draw(*args, **options)
        if plot is None or _columns.get():
            return plot
        with in_columns(1):
            narrow = draw(*args, **options)
        return replace(plot, narrow=narrow.svg if narrow else "")

    return drawn


def _sizes(width: float, height: float, panels: int, across: int) -> tuple[float, float, int]:
    """Return the width and height of a figure, and its panels across, for the page or for the columns of a paper."""
    if not (columns := _columns.get()):
        return width, height, across
    wide, high = width / across, height / -(-panels // across)
    across = 1 if columns == 1 else across
    inches = PAPER_INCHES[columns]
    return inches, high * max(min(inches / across / wide, 1.0), 0.7) * -(-panels // across), across


def plain(value: object, most: int = 60) -> str:
    """Return a text as a label: one line of at most `most` characters, control characters shown."""
    shown = visible(" ".join(str(value).split()))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def wrapped(text: str, inches: float, size: float = SMALL) -> str:
    """Return a text in lines of at most a width, for a font size in points."""
    return fill(text, max(int(inches * 72 / (EM * size)), 8))


def fits(text: str, inches: float, size: float = SMALL) -> bool:
    """Return whether every line of a text is shorter than a width, for a font size in points."""
    return EM * size / 72 * max(map(len, text.split("\n"))) <= inches


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
        if style := _style.get():
            matplotlib.rcParams.update(matplotlib.rc_params_from_file(style, use_default_template=False))
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has other fonts
        width, height, across = _sizes(width, height, panels, across)
        figure = Figure(figsize=(width, height), layout="constrained")
        down = -(-panels // across)
        axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
        for unused in axes[panels:]:
            unused.remove()
        yield figure, axes[:panels]


def plot_of(figure: "Figure", name: str, csv: str, marks: Iterable[Mark] = ()) -> Plot:
    """Return a figure that is drawn, as an <svg> element whose lines have the page's text color, and its values.

    Args:
        figure: on a `canvas`.
        name: prefix of the ids in the SVG, so that a page can hold several.
        csv: the values.
        marks: what the page says of parts of the figure.
    """
    drawn = _saved(figure, "svg").decode()
    drawn = drawn[drawn.index("<svg") :].replace(INK, "currentColor")
    # the style rule would apply to the whole page
    drawn = re.sub(r"<style[^>]*>.*?</style>", "", drawn, count=1, flags=re.DOTALL)
    by_gid = {mark.gid: mark for mark in marks}
    drawn = re.sub(r'<g id="([^"]+)">', lambda found: _marked(found.group(), by_gid.get(found[1])), drawn)
    drawn = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-{'narrow-' * is_narrow()}", drawn)
    return Plot(drawn, csv, figure)


def _marked(tag: str, mark: Mark | None) -> str:
    """Return the opening tag of a part of a figure with what is said of it."""
    if mark is None:
        return tag
    facts = {"data-run": mark.run, "data-variant": mark.variant}
    told = "".join(f' {name}="{escape(plain(value, 200))}"' for name, value in facts.items() if value)
    return f"{tag.removesuffix('>')}{told}><title>{escape(plain(mark.text, 200))}</title>"


def arms_colored(names: Mapping[str, str]) -> AbstractContextManager[None]:
    """Draw figures in which every variant has its own name and color, the same in all of them.

    Args:
        names: the variant of each run, by its id.
    """
    return _during(_arms, names)


def arm_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return the variant of each run in all figures, by its id; the given name where it has none."""
    return {run: _arms.get().get(run, name) for run, name in names.items()}


def arm_number(name: str, otherwise: int) -> int:
    """Return the number of a variant, which gives its color in all figures; `otherwise` where it has none."""
    known = sorted({*_arms.get().values()})
    return known.index(name) if name in known else otherwise


class Looks:
    """Colors and dashes of the curves of one figure: a color per variant, a dash pattern per run."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()
        self._labels: set[str] = set()

    def label(self, text: str, run: str) -> str:
        """Return a text, with the end of the run's id if another curve has that text."""
        label = f"{text}, run {run[-6:]}" if text in self._labels else text
        self._labels.add(label)
        return label

    def of(self, variant: str, number: int) -> dict[str, Any]:
        """Return the look of the next curve of a variant.

        Args:
            variant: name of its backbone, as tables have it.
            number: of the curve in the figure, which counts where variants have no colors.
        """
        self._uses[variant] += 1
        if (arm := arm_number(variant, -1)) < 0:
            return look(number)
        color = look(arm)["color"]
        return {"color": color, "linestyle": STYLES[(self._uses[variant] - 1) % len(STYLES)]}


def look(number: int) -> dict[str, Any]:
    """Return color and dashes of a curve, distinct for the first 32."""
    return {"color": COLORS[number % len(COLORS)], "linestyle": STYLES[number // len(COLORS) % len(STYLES)]}


def logarithmic(axis: Any, values: Sequence[float]) -> None:
    """Set a logarithmic scale whose ticks are plain numbers: matplotlib would write powers as formulas."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    span = max(values) / min(values)
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    ticks, subs = (3, (1,)) if _columns.get() else (6, (1, 2, 5) if span < 1000 else (1,))
    axis.set_major_locator(MaxNLocator(ticks) if span < 10 else LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def finish(figure: "Figure", all_axes: Sequence[Any]) -> None:
    """Draw a faint grid, and one legend for all axes below them."""
    shown: dict[str, Any] = {}
    for axes in all_axes:
        axes.grid(True, color=INK, alpha=0.14, linewidth=0.7)
        axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles))
    draw_legend(figure, shown)


def draw_legend(figure: "Figure", shown: Mapping[str, Any]) -> None:
    """Draw a legend below the axes, in as many columns as fit, and make the figure higher by it.

    Args:
        figure: on a `canvas`.
        shown: handles by their labels.
    """
    if not shown:
        return
    width, handle = figure.get_figwidth(), 0.65
    labels = [wrapped(label, width - handle) for label in shown]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(int(width / (handle + longest * EM * SMALL / 72)), 1)
    lines = sum(1 + label.count("\n") for label in labels) / min(columns, len(labels))
    figure.set_figheight(figure.get_figheight() + 0.2 * (lines + 1))
    figure.legend(shown.values(), labels, loc="outside lower left", ncols=columns, fontsize=SMALL, labelcolor=INK)


def note_omitted(figure: "Figure", shown: int, total: int, name: str) -> None:
    """Draw a line above the axes with the number of panels or curves shown, if some are not."""
    if shown < total:
        figure.suptitle(f"the first {shown} of {total} {name}", fontsize=9.5)
