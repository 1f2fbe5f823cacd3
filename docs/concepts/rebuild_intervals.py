"""Computes the intervals of a comparison again from the runs' outcomes.npz, with numpy and scipy alone.

python -m transfer.report RUNS --compare stem=conv stem=patchify --format csv --output rows.csv
python docs/concepts/rebuild_intervals.py RUNS rows.csv stem conv
It prints the interval of each row beside its own, and exits with 1 where they differ by more than 1 % of the width.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
from scipy import stats


def values_of(folder, score):
    data = dict(np.load(folder / "outcomes.npz"))
    if f"resampled_{score}" in data:  # [B], with the number of images
        return data[f"resampled_{score}"], len(data["sample"])
    if score.startswith("rank"):  # without equal distances
        values = np.where(data["hits"] > 0, data["before"] < int(score[4:]), np.nan)
    elif score.startswith("accuracy"):
        values = data[score.replace("accuracy", "correct")].mean(axis=1)
    elif score.startswith("top"):
        values = np.clip((int(score[3:]) - data["rank"]) / (data.get("ties", 0) + 1), 0, 1)
    else:
        values = data[{"mAP": "ap", "mINP": "inp"}.get(score, score)]
    order = np.argsort(data["sample"])
    return values[order], data["cluster"][order]


def exact(more, fewer, n):
    (low_a, high_a), (low_b, high_b) = (stats.binomtest(k, n).proportion_ci() for k in (more, fewer))
    a, b = more / n, fewer / n
    r = -np.sqrt(a * b / ((1 - a) * (1 - b)))
    length = lambda x, y: np.sqrt(x * x + y * y - 2 * r * x * y)  # noqa: E731
    low, high = a - b - length(a - low_a, high_b - b), a - b + length(high_a - a, b - low_b)
    shown = stats.binomtest(more, more + fewer).pvalue < 0.05
    return (low, high) if shown else (min(low, 0), max(high, 0))


def interval(runs, score):  # runs: [(a, b), ...], the folders of either arm by seed
    pairs = [[values_of(folder, score) for folder in pair] for pair in runs]
    d, where, seeds = np.stack([a[0] - b[0] for a, b in pairs]), pairs[0][0][1], len(runs)
    if np.ndim(where) == 0:
        records = [[json.loads((folder / "record.json").read_text())["scores"][score] for folder in pair] for pair in runs]
        m, freedom = np.array([a - b for a, b in records]), where - 1
        v = (d - d.mean(1, keepdims=True)) * np.sqrt(where / (where - 1) / (d.shape[1] - 1))
    else:
        kept = ~np.isnan(d[0])
        d, (_, where, n) = d[:, kept], np.unique(where[kept], return_inverse=True, return_counts=True)
        if seeds == 1 and n.max() == 1 and np.isin(d, (-1, 0, 1)).all() and d.any():
            return exact(int((d > 0).sum()), int((d < 0).sum()), d.size)
        h, m = n / n.sum(), d.mean(axis=1)
        if not np.ptp(d):
            reach = 1 - 0.05 ** (h**2).sum()
            return m.mean() - reach, m.mean() + reach
        v = np.stack([np.bincount(where, row) for row in d - m[:, None]]) / n.sum() / np.sqrt(1 - h)
        basis = (np.diag(h) - np.outer(h, h)) / np.sqrt(1 - h)[:, None]
        freedom = np.trace(basis @ basis.T) ** 2 / ((basis @ basis.T) ** 2).sum()
    over_clusters, over_seeds = (v.mean(0) ** 2).sum(), 0.0
    if seeds > 1:
        over_seeds = max(m.var(ddof=1) / seeds - ((v - v.mean(0)) ** 2).sum() / (seeds - 1) / seeds, 0)
    total = over_clusters + over_seeds
    freedom = total**2 / (over_clusters**2 / freedom + over_seeds**2 / max(seeds - 1, 1))
    half = stats.t.ppf(0.975, freedom) * np.sqrt(total)
    return max(m.mean() - half, -1), min(m.mean() + half, 1)


folder, rows, field, first = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
worst = 0.0
for row in csv.DictReader(open(rows)):
    if row.get("low"):
        arms = ([], [])
        for run in row["run"].split():
            record = json.loads((folder / run / "record.json").read_text())
            arms[record["backbone"][field] != first].append((record["seed"], folder / run))
        pairs = [(a, b) for (_, a), (_, b) in zip(sorted(arms[0]), sorted(arms[1]), strict=True)]
        low, high = (100 * end for end in interval(pairs, row["score"]))
        off = max(abs(low - float(row["low"])), abs(high - float(row["high"]))) / (high - low)
        worst = max(worst, off)
        print(f"{row['task']} {row['score']}: [{row['low']}, {row['high']}], again [{low:.3f}, {high:.3f}]")
sys.exit(int(worst > 0.01))
