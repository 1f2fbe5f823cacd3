"""Rebuilds the numbers and verdicts of a study from its raw records and registered rows, with numpy, scipy and yaml.

python docs/studies/rebuild.py docs/studies/cifar_runs configs/claims/cifar.yaml docs/studies/cifar/comparisons.csv
It follows docs/guide/claims.md and docs/concepts/statistics.md, not the suite's code, and prints each comparison beside
the suite's. Exit status 1: a verdict differs, a number by 0.01 % of the interval's width, or a comparison is missing.

Runs by changed files count, as in the study. What does not occur there is not here: failed runs, clusters of
unequal sizes, unequal numbers of unpaired seeds, samples of which fewer than ten differ, bounds of a metric, equal
counts; of half-score rates scores that rise from rate to rate, rates beyond the grid, and steps of it coarser than the
margin. Nearly all of these stop it, or make it differ. Rank correlations, none of which has its runs, and collectives,
which need none, are left out.
"""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import yaml
from scipy import stats

FOLDER, ROWS, TABLE = map(Path, sys.argv[1:])
RUNS = sorted((json.loads(path.read_text()) for path in FOLDER.glob("*/record.json")), key=lambda run: run["seed"])
LR = {run.get("export"): run["options"]["lr"] for run in RUNS}
for r in RUNS:
    r["all"] = {**r["environment"], **r, **r["options"], **r["backbone"], "pretraining.lr": LR.get(r["weights_id"])}


def plain(value):  # 1e-3 is 0.001, yes is true, a list of one dataset is the dataset
    text = {"yes": "true", "no": "false"}.get(str(value), str(value).lower().strip("[']"))
    return float(text) if re.fullmatch(r"\d[-.\de]*", text) else text


def select(selector):  # {seed: run}; the seed is the pretraining's, if there was one, and everything else is equal
    wanted = [(x, plain(y)) for x, y in (part.split("=", 1) for part in re.split(r",(?=[\w.]+=)", selector))]
    runs = [(run, run["origin"]) for run in RUNS if all(plain(run["all"].get(x)) == y for x, y in wanted)]
    alike = {json.dumps({**run["run_key_content"], "seed": 0, "weights_id": x.get("training")}) for run, x in runs}
    return {(bool(x), x.get("seed", run["seed"])): run for run, x in runs} if len(alike) == 1 else {}


def values(run, metric):  # by cluster of test samples, which are of one size; a single value counts as two equal ones
    folder, name, epoch = FOLDER / run["run_id"], metric.split("@")[0].rpartition("."), metric.split("@")[-1]
    if metric in run["scores"]:
        data = dict(np.load(folder / "outcomes.npz"))
        found = data["ap"] if metric == "mAP" else np.clip((1 - data["rank"]) / (data.get("ties", 0) + 1), 0, 1)
        return 100 * found.reshape(len(np.unique(data["cluster"])), -1).mean(1)
    lines = [json.loads(line) for line in (folder / "history.jsonl").open() if f'"epoch": {epoch},' in line]
    layers = {f"layers.{layer['place']}": layer for line in lines for layer in line.get("layers", [])}
    found = {"": {key: x for line in lines for key, x in line.items()}, "cost": run["cost"], **run["details"], **layers}
    return np.full(2, found[name[0]][name[2]] * (1 if name[0] in ("cost", *layers) else 100))


def interval(sides, metric):  # [effect, low, high] of a - b or of a - b - (c - d), and the number of seeds
    shared = sorted(set.intersection(*map(set, sides)))
    pairs = 2 * len(shared) > max(2, *map(len, sides))
    g = [k * np.array([values(x[s], metric) for s in (shared if pairs else x)]) for k, x in zip([1, -1, -1, 1], sides)]
    groups, n = [sum(g)] if pairs else g, g[0].shape[1]  # [seed, cluster]
    # C and T of each group, written as variances: with clusters of one size v is (x - mean) / sqrt(n (n - 1))
    raw = np.array([x.mean(1).var(ddof=1) / len(x) for x in groups])
    t = np.maximum(n * raw - [x.var(0, ddof=1).mean() / len(x) for x in groups], 0) / (n - 1)
    v = np.array([[sum(x.mean(0) for x in groups).var(ddof=1) / n, *t], [0, *raw]])
    # the first row is over clusters and seeds, the second over seeds alone; the wider interval counts
    f = v.sum(1) ** 2 / ((v**2 / [n - 1, *(len(x) - 1 for x in groups)]).sum(1) + 1e-99)
    half = (stats.t.ppf(0.975, np.maximum(f, 1)) * np.sqrt(v.sum(1))).max()
    return sum(x.mean() for x in groups) + half * np.array([0, -1, 1]), min(map(len, groups))


def judge(expect, low, high, margin):  # equality is judged on the side to which the effect lies
    low, high = (-high, -low) if "<" in expect or (expect == "a = b" and low + high > 0) else (low, high)
    word = "support" if low > -margin * ("=" in expect) else "contradiction" if high <= -margin else "undecided"
    return "no relevant effect" if "=" not in expect and -margin < low and high < margin else word


def compare(a, b, kind, expect, runs, metric, margin=0, needs=1, grid=(), floor=None, untrained=None, **row):
    ends, rates = ("/.*", "(?<==).*/"), [f",{row.get('choose', row.get('over'))}={x}" for x in grid] or [""]
    # of stem=conv/patchify the ends take what follows the first value, and the first value
    texts = [a, b] if kind != "interaction" else [re.sub(x, "", a) + "," + re.sub(y, "", b) for y in ends for x in ends]
    sides = [[select(f"{runs},{text}{rate}") for rate in rates] for text in texts]
    # with a grid the seeds that all sides have at all its values
    sides = [[{s: x[s] for s in x if not grid or all(s in y for z in sides for y in z)} for x in w] for w in sides]
    means = [[[values(y, row.get("chosen_by", metric)).mean() for y in x.values()] for x in w] for w in sides]
    best = [side[np.argmax(np.sum(x, 1))] for side, x in zip(sides, means)]
    poor = floor and all(best) and min(np.mean([values(y, metric) for y in x.values()]) for x in best) <= floor["value"]
    others = [select(untrained[text]) for text in texts] if untrained and not poor else []
    whole = all(len(x) > 1 for x in [*best, *others])  # no interval of one seed
    found, n = interval(best, metric) if whole else (np.full(3, np.nan), 0)
    # the first of `every` is shown; all have to give the same verdict
    poor, every = poor or any(whole and interval(x, metric)[0][1] <= margin for x in zip(best, others)), [found]
    if kind == "failure share" and n:
        bad = [np.ravel(side) <= 10 * ("top1" in metric) for side in means]  # no better than chance
        (p, i, j), (q, k, m) = [(x.mean(), *stats.binomtest(sum(x), x.size).proportion_ci(0.95, "wilson")) for x in bad]
        every = [100 * (p - q + np.array([0, -np.hypot(p - i, m - q), np.hypot(j - p, q - k)]))]
    if kind == "half-score rate" and n:  # by the common line, and by each one's own
        x, y = np.log2(grid), -np.array(means)  # y rises with the rate, as np.interp wants it
        h, top = (y.mean(2).min(1) - 10) / 2, np.maximum.accumulate(y, axis=1)  # half-way to chance; worst score so far
        # scores rise again below both lines alone, and the rates of a grid are rounded
        assert (((top == y) | (y > max(h))) & (np.diff(x).max() < margin + 0.05)).all()
        falls = [[[np.interp(z, s, x, np.nan, np.nan) for s in w.T] for w, z in zip(top, v)] for v in ([max(h)] * 2, h)]
        every = [np.r_[np.mean(u) - np.mean(v), stats.ttest_rel(u, v).confidence_interval()] for u, v in falls]
    said = {"undertrained"} if poor else {judge(expect, *x[1:], margin) for x in every}
    return every[0], "no verdict" if n < needs else said.pop() if len(said) == 1 else "undecided"


shown, wrong = {(x["id"], x["a"], x["b"]): x for x in csv.DictReader(TABLE.open()) if "=" in x["b"]}, 0
for row in [row for row in yaml.safe_load(ROWS.read_text())["claims"] if "runs" in row and "against" not in row]:
    for a, b in row.get("pairs") or [(a, b) for a in np.atleast_1d(row["a"]) for b in np.atleast_1d(row["b"])]:
        found, verdict = compare(**{**row, "a": a, "b": b})
        other = shown.pop((row["id"], a, b), {"verdict": "missing"})
        theirs = [float(other.get(x) or other.get("effect") or "nan") for x in ("effect", "effect low", "effect high")]
        same = verdict == other["verdict"] and np.allclose(found, theirs, 5e-6, 1e-4 * np.ptp(found), equal_nan=True)
        print("same" if same else "DIFFERS", row["id"], a, b, found, verdict, "suite:", theirs, other["verdict"])
        wrong += not same
sys.exit(f"not registered: {list(shown)}" if shown else int(wrong > 0))
