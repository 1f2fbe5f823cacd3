"""The figure of a claim: the values of its variants, and their effects with intervals and the margin."""

from collections.abc import Sequence
from typing import Any

from transfer.core.files import csv_text
from transfer.experiments import claims as kinds
from transfer.report.claims.findings import Point, Result
from transfer.report.figures.svg import COLORS, INK, SMALL, Plot, canvas, finish, logarithmic, plain, plot_of, wrapped
from transfer.statistics.verdicts import CONTRADICTION, SUPPORT

LINE = 0.27
"""Height of a row in inches."""
LOOKS = {SUPPORT: COLORS[2], CONTRADICTION: COLORS[1]}
"""Color of an effect by its verdict; of any other it is gray."""


def claim_plot(result: Result) -> Plot | None:
    """Draw what is behind a claim; None where there is nothing to draw, as for a count.

    The CSV has the values, to six digits: `variant`, `setting`, `x`, `y` of `transfer.report.claims.findings.Point`.
    """
    points = list(dict.fromkeys(point for one in result.findings for point in one.points))
    if not points:
        return None
    rows = [[one.variant, one.setting, f"{one.x:.6g}", "" if one.y is None else f"{one.y:.6g}"] for one in points]
    draw = {kinds.CORRELATION: [_scatter], kinds.HALF_SCORE: [_scatter]}.get(result.claim.kind, [_values, _effects])
    lines = 10 if _scatter in draw else max(len({one.variant for one in points}), len(result.findings))
    with canvas(8.6, (LINE * lines + 0.75) * len(draw), len(draw)) as (figure, all_axes):
        for draw_on, axes in zip(draw, all_axes, strict=True):
            draw_on(axes, result, points)
        finish(figure, all_axes)
        return plot_of(figure, csv_text([[*Point._fields], *rows]) + "\n")


def _scatter(axes: Any, result: Result, points: Sequence[Point]) -> None:
    for place, variant in enumerate(dict.fromkeys(one.variant for one in points)):
        x, y = zip(*((one.x, one.y) for one in points if one.variant == variant), strict=True)
        axes.scatter(x, y, s=18, color=COLORS[place % len(COLORS)], label=plain(variant))
    claim = result.claim
    axes.set_xlabel(claim.over or claim.metric)
    axes.set_ylabel(claim.metric if claim.over else claim.against)
    if claim.kind == kinds.HALF_SCORE:
        rates = sorted({one.x for one in points})
        logarithmic(axes.xaxis, rates)
        axes.set_xticks(rates)
        axes.set_xticks([], minor=True)


def _values(axes: Any, result: Result, points: Sequence[Point]) -> None:
    """Draw the values of each variant in a row."""
    variants = list(dict.fromkeys(one.variant for one in points))
    settings = list(dict.fromkeys(one.setting for one in points))
    for one in points:
        y = variants.index(one.variant) + (settings.index(one.setting) + 0.5) / len(settings) / 2 - 0.25
        axes.plot(one.x, y, "o", markersize=4.5, color=COLORS[0])
    _name_rows(axes, variants, "failed runs in %" if result.claim.kind == kinds.FAILURES else result.claim.metric)


def _effects(axes: Any, result: Result, points: Sequence[Point]) -> None:
    """Draw each effect with its interval, the place of no effect, and the margin to both sides."""
    margin, drawn = result.claim.margin or 0.0, [(one, one.effect) for one in result.findings if one.effect]
    for end, style in ((-margin, ":"), (margin, ":"), (0, "-")):
        axes.axvline(end, color=INK, linewidth=1, linestyle=style)
    for row, (one, effect) in enumerate(drawn):
        color = LOOKS.get(one.verdict, COLORS[7])
        axes.plot([effect.low, effect.high], [row, row], color=color, linewidth=2)
        axes.plot(effect.mean, row, "s", color=color, markersize=5)
    _name_rows(
        axes, [one.name for one, _ in drawn], "interaction" if result.claim.kind == kinds.INTERACTION else "a less b"
    )


def _name_rows(axes: Any, names: Sequence[str], label: str) -> None:
    texts = [wrapped(plain(name, 120), 3.6) for name in names]
    axes.set_yticks(range(len(names)), texts, fontsize=SMALL)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)
