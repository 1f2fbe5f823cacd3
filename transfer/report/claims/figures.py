"""The figure of a claim: the values of its variants, and their effects with intervals and the margin."""

import math
from typing import Any

from transfer.core.files import csv_text
from transfer.experiments import claims as kinds
from transfer.report.claims.findings import Finding, Point, Result
from transfer.report.figures.svg import COLORS, INK, SMALL, Plot, canvas, finish, logarithmic, plain, plot_of, wrapped
from transfer.statistics.effects import CONTRADICTION, SUPPORT

LINE = 0.27
"""Height of a row in inches."""
LOOKS = {SUPPORT: COLORS[2], CONTRADICTION: COLORS[1]}
"""Color of an effect by its verdict; of any other it is gray."""
GRAY = COLORS[7]


def claim_plot(result: Result) -> Plot | None:
    """Draw what is behind a claim; None where there is nothing to draw, as for a count.

    The CSV has the values, to six digits: `variant`, `setting`, `x`, `y` of `transfer.report.claims.findings.Point`.
    """
    points = list(dict.fromkeys(point for one in result.findings for point in one.points))
    if not points:
        return None
    rows = [[one.variant, one.setting, f"{one.x:.6g}", "" if one.y is None else f"{one.y:.6g}"] for one in points]
    text = csv_text([[*Point._fields], *rows]) + "\n"
    if result.claim.kind == kinds.CORRELATION:
        with canvas(6, 3.4) as (figure, (axes,)):
            for place, variant in enumerate(dict.fromkeys(one.variant for one in points)):
                x, y = zip(*((one.x, one.y) for one in points if one.variant == variant), strict=True)
                axes.scatter(x, y, s=18, color=COLORS[place % len(COLORS)], label=plain(variant))
            axes.set_xlabel(result.claim.metric)
            axes.set_ylabel(result.claim.against)
            finish(figure, [axes])
            return plot_of(figure, text)
    drawn = [one for one in result.findings if one.effect is not None]
    variants = list(dict.fromkeys(one.variant for one in points))
    sizes = [len(variants), len(drawn)] if drawn else [len(variants)]
    with canvas(8.6, (LINE * max(sizes) + 0.75) * len(sizes), len(sizes)) as (figure, all_axes):
        _values(all_axes[0], result, points, variants)
        if drawn:
            _effects(all_axes[1], result, drawn)
        finish(figure, all_axes)
        return plot_of(figure, text)


def _values(axes: Any, result: Result, points: list[Point], variants: list[str]) -> None:
    """Draw the values of each variant in a row, full where a rate trains, or a rule decides."""
    claim = result.claim
    of_rates = claim.kind == kinds.STABLE
    for row, variant in enumerate(variants):
        own = [one for one in points if one.variant == variant]
        settings = sorted({one.setting for one in own})
        for one in own:
            y = row + 0.5 * (settings.index(one.setting) + 0.5) / len(settings) - 0.25
            full = one.y if of_rates else claim.kind != kinds.FAILURES or one.setting == own[-1].setting
            axes.plot(one.x, y, "o", markersize=4.5, color=COLORS[0] if full else "none", markeredgecolor=COLORS[0])
    if of_rates:
        logarithmic(axes.xaxis, [one.x for one in points])
        axes.set_xticks(sorted({one.x for one in points}))
        axes.set_xticks([], minor=True)
    elif claim.kind == kinds.FAILURES:
        axes.set_xlim(-5, 105)
    names = {kinds.STABLE: f"{claim.over}; filled where the run trains", kinds.FAILURES: "failed runs in %"}
    _rows(axes, variants, names.get(claim.kind, claim.metric))


def _effects(axes: Any, result: Result, drawn: list[Finding]) -> None:
    """Draw each effect with its interval, the place of no effect, and the margin to both sides."""
    margin, of_rates = result.claim.margin, result.claim.kind == kinds.STABLE
    axes.axvline(1 if of_rates else 0, color=INK, linewidth=1)
    for end in () if not margin else (1 / margin, margin) if of_rates else (-margin, margin):
        axes.axvline(end, color=GRAY, linewidth=1, linestyle=":")
    values = [end for one in drawn for end in (one.effect, one.low, one.high) if end and math.isfinite(end)]
    lowest, highest = min([*values, 0.5]) / 2, max([*values, 2.0]) * 2  # of rates, where an end is not known
    for row, one in enumerate(drawn):
        effect, low, high = (float(end if end is not None else 0.0) for end in (one.effect, one.low, one.high))
        if of_rates:
            effect, low, high = (min(max(end, lowest), highest) for end in (effect, low, high))
        color = LOOKS.get(one.verdict, GRAY)
        axes.plot([low, high], [row, row], color=color, linewidth=2)
        axes.plot(effect, row, "s", color=color, markersize=5)
    if of_rates:
        logarithmic(axes.xaxis, [lowest, highest])
    label = "ratio of a to b" if of_rates else "interaction" if result.claim.kind == kinds.INTERACTION else "a less b"
    _rows(axes, [f"{one.a} vs. {one.b}" for one in drawn], label)


def _rows(axes: Any, labels: list[str], name: str) -> None:
    texts = [wrapped(plain(label, 120), 3.6) for label in labels]
    axes.set_yticks(range(len(labels)), texts, fontsize=SMALL)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel(name)
