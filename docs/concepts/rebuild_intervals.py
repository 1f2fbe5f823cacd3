"""Computes the intervals of a comparison again from the runs' outcomes.npz, with numpy and scipy alone.

python -m transfer.report compare RUNS --compare stem=conv stem=patchify --format csv --output rows.csv
python docs/concepts/rebuild_intervals.py RUNS rows.csv
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
    plain = score.removeprefix("macro_")
    if score.startswith("rank"):  # without equal distances
        values = np.where(data["hits"] > 0, data["before"] < int(score[4:]), np.nan)
    elif "top" in score:
        kind, k = plain.split("top")  # top1, best_top1
        values = np.clip((int(k) - data[f"{kind}rank"]) / (data.get(f"{kind}ties", 0) + 1), 0, 1)
    else:
        values = data[{"mAP": "ap", "mINP": "inp"}.get(plain, plain.replace("accuracy", "correct"))]
        values = values.reshape(len(values), -1).mean(axis=1)
    if plain != score:  # all classes count the same
        _, label, counts = np.unique(data["label"], return_inverse=True, return_counts=True)
        values = values * len(values) / len(counts) / counts[label]
    order = np.argsort(data["sample"])
    return values[order], data["cluster"][order]


def exact(more, fewer, n):
    (low_a, high_a), (low_b, high_b) = (stats.binomtest(k, n).proportion_ci() for k in (more, fewer))
    a, b = more / n, fewer / n
    x, y = np.array([a - low_a, high_a - a]), np.array([high_b - b, b - low_b])
    length = np.sqrt(x**2 + y**2 + 2 * np.sqrt(a * b / ((1 - a) * (1 - b))) * x * y)
    shown = stats.binomtest(more, more + fewer).pvalue < 0.05
    return (a - b - length[0], a - b + length[1]) if shown else (min(a - b - length[0], 0), max(a - b + length[1], 0))


def interval(pairs, score):  # of a - b; pairs: the folders of both variants, for each seed
    read = [[values_of(folder, score) for folder in pair] for pair in pairs]
    d, where, seeds = np.stack([a[0] - b[0] for a, b in read]), read[0][0][1], len(pairs)
    if np.ndim(where) == 0:
        whole = [[json.loads((folder / "record.json").read_text()) for folder in pair] for pair in pairs]
        m, freedom = np.array([a["scores"][score] - b["scores"][score] for a, b in whole]), where - 1
        v = (d - d.mean(1, keepdims=True)) * np.sqrt(where / (where - 1) / (d.shape[1] - 1))
    else:
        kept = ~np.isnan(d[0])
        d, (_, where, n) = d[:, kept], np.unique(where[kept], return_inverse=True, return_counts=True)
        if seeds == 1 and n.max() == 1 and np.isin(d, (-1, 0, 1)).all() and d.any():
            return exact(int((d > 0).sum()), int((d < 0).sum()), d.size)
        h, m = n / n.sum(), d.mean(axis=1)
        if not np.ptp(d):  # the rule of three
            return m.mean() - 1 + 0.05 ** (h**2).sum(), m.mean() + 1 - 0.05 ** (h**2).sum()
        v = np.stack([np.bincount(where, row) for row in d - m[:, None]]) / n.sum() / np.sqrt(1 - h)
        basis = (np.diag(h) - np.outer(h, h)) / np.sqrt(1 - h)[:, None]
        freedom = np.trace(basis @ basis.T) ** 2 / ((basis @ basis.T) ** 2).sum()
    of_clusters, both = (v.mean(0) ** 2).sum(), ((v - v.mean(0)) ** 2).sum() / max(seeds - 1, 1) / seeds
    of_seeds = max(m.var(ddof=1) / seeds - both, 0) if seeds > 1 else 0
    total = of_clusters + of_seeds
    freedom = total**2 / (of_clusters**2 / freedom + of_seeds**2 / max(seeds - 1, 1))
    half = stats.t.ppf(0.975, freedom) * np.sqrt(total)
    if seeds > 1:  # the wider of both counts
        half = max(half, stats.t.ppf(0.975, seeds - 1) * m.std(ddof=1) / np.sqrt(seeds))
    return max(m.mean() - half, -1), min(m.mean() + half, 1)


folder, rows, worst = Path(sys.argv[1]), Path(sys.argv[2]), 0.0
for row in csv.DictReader(rows.read_text().splitlines()):
    if row.get("low"):
        runs = [folder / run for run in row["run"].split()]  # those of a, then those of b
        seeds = [json.loads((run / "record.json").read_text())["seed"] for run in runs]
        variants = [
            sorted(zip(seeds[part], runs[part], strict=True)) for part in np.s_[: len(runs) // 2, len(runs) // 2 :]
        ]
        low, high = (
            100 * end for end in interval([(a, b) for (_, a), (_, b) in zip(*variants, strict=True)], row["score"])
        )
        off = max(abs(low - float(row["low"])), abs(high - float(row["high"]))) / (high - low)
        worst = max(worst, off)
        print(f"{row['task']} {row['score']}: [{row['low']}, {row['high']}], again [{low:.3f}, {high:.3f}]")
sys.exit(int(worst > 0.01))
