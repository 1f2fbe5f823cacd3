"""Reads a sweep's YAML file: steps, rows and tiers, checked before anything runs. Imports no torch.

about: one line
paper: scaled_relu        # rows from configs/published/scaled_relu.yaml ...
table: "4"                # ... of this table
# figure: "4"             # or, with rows of its own, the figure whose claims and notes its report shows
rows:                     # or rows of its own: option values by step; a row runs the steps it names
  - {label: conv, pretrain: {stem: conv}, reid: {lr: 0.05}}
steps:
  pretrain: {pretrain: dino, backbone: [dino_s16], dataset: [imagenet1k], seeds: [0], grid: {lr: [1.0e-3, 2.0e-3]}}
                          # an axis of several options: "attention, qk_norm": [[softmax, false], [relu, true]]
  reid: {run: reid, after: pretrain, dataset: [market1501], options: {epochs: 120}}
tiers:                    # laid over the steps; their options and grids also stand above those of the rows
  smoke: {pretrain: {backbone: [tiny], options: {smoke: true}}, reid: {options: {smoke: true}}}
resources: {gpus: 8, minutes: 2880}
report: {compare: [stem=conv, stem=patchify], heatmap: [lr, warmup_epochs], by: [stem]}
search: {option: lr, low: 1.0e-4, high: 10, budget: 12}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from backbones.spec import default_qk_norm, resolve
from transfer.core.errors import UsageError, attempt, did_you_mean, errors_naming, errors_together, kept, unknown
from transfer.core.options import as_list, check_keys, mapping
from transfer.core.settings import config_path, read_value, read_yaml
from transfer.core.user_code import VARIED_PARTS, is_user_part
from transfer.experiments.published_rows import table_of
from transfer.experiments.step import STEP_KEYS, Step, check_options, options_of, parse_step, read_rows, selector

TIERS = {"smoke": "bundled data, in minutes", "reduced": "on a workstation", "full": "as in the paper, on a cluster"}
SWEEP_KEYS = ("about", "paper", "table", "figure", "rows", "steps", "tiers", "resources", "report", "search", "vary")
REPORT_KEYS = ("compare", "heatmap", "by", "interaction", "cost")
EXAMPLES = {"compare": "stem=conv, stem=patchify", "heatmap": "lr, warmup_epochs", "interaction": "stem, attention"}
SEARCH_KEYS = ("step", "option", "low", "high", "budget", "ratio", "seeds")


@dataclass(frozen=True)
class SweepFile:
    """A parsed sweep at one tier."""

    name: str
    tier: str
    about: str
    steps: dict[str, Step]
    rows: tuple[dict[str, Any], ...]
    report: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] | None = None
    paper: tuple[str, str] | None = None
    tiers: tuple[str, ...] = ()
    """The tiers that it has besides `full`."""
    vary: str | None = None
    """The step whose part `--stem`, `--attention` and `--ffn` vary."""
    epochs: dict[str, float] = field(default_factory=dict)
    """The epochs of variants that pretrain with equal FLOPs, by their selectors; empty if all have the same epochs."""

    @property
    def epochs_text(self) -> str:
        """The epochs of variants: "stem=conv 28.5, stem=patchify 30"."""
        return ", ".join(f"{variant} {epochs:g}" for variant, epochs in self.epochs.items())

    def comparing(self, variants: Sequence[Mapping[str, str]]) -> "SweepFile":
        """Return the sweep with a row for each variant, and comparisons of the first variant with each of the others.

        A part that only some variants name is the backbone's own in the others. Attentions are compared with query-key
        norm in all rows, or in none where one is the user's, unless the step sets it: its default differs between them.

        Args:
            variants: the parts of each variant by name: stem, attention, ffn.

        Raises:
            UsageError: a variant is the same as the first one.
        """
        assert self.vary
        step, parts = self.steps[self.vary], set(chain.from_iterable(variants))
        backbone = resolve(step.backbone[0])
        usual = {part: str(getattr(backbone, part)) for part in VARIED_PARTS if part in parts}
        whole = [usual | {part: value for part, value in variant.items() if value} for variant in variants]
        if whole[0] in whole[1:]:
            raise UsageError(f"--against: {selector(whole[0])} is what it is compared with; name another variant")
        both: dict[str, Any] = {}
        if "attention" in parts and "qk_norm" not in {*step.options, *step.varied}:
            values = [variant["attention"] for variant in whole]
            both = {"qk_norm": any(map(default_qk_norm, values)) and not any(map(is_user_part, values))}
        every: dict[str, Any] = {name: {} for name in self.steps}
        rows = []
        for variant in whole:
            axes = {name: [value] for name, value in (variant | both).items()}
            rows.append(every | {self.vary: axes})
        pairs = [[selector(whole[0]), selector(other)] for other in whole[1:]]
        return replace(self, rows=tuple(rows), report={**self.report, "compare": pairs})


def read_sweep(
    name: str,
    tier: str | None,
    settings: Sequence[str] = (),
    readings: str = "one",
    *,
    tasks: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> SweepFile:
    """Read a shipped sweep or a user's file at one tier.

    Args:
        name: the name of a shipped sweep, or a YAML file.
        tier: full, reduced or smoke; None for a sweep without tiers.
        settings: `STEP.KEY=VALUE` texts that override values of the file.
        readings: "one" or "both"; see `transfer.experiments.step.read_rows`.
        tasks: steps or tasks to keep, with what they need; all if empty.
        seeds: seeds of the steps that start from no other step, overriding the file's.

    Raises:
        UsageError: lists every unknown name, key, value and tier with its place and the fix.
    """
    path = config_path("sweeps", "sweep", name)
    content, where = read_yaml(path), str(path)
    search = dict(mapping(content["search"], f"{where}: search")) if content.get("search") is not None else None
    with errors_together():
        attempt(check_keys, content, SWEEP_KEYS, where)
        overrides = attempt(_tier, content, tier, where) or {}
        merged = _merge(mapping(content.get("steps"), f"{where}: steps"), overrides, where)
        for text in settings:
            attempt(_set, merged, search, text)
        _keep_tasks(merged, tasks)
        if seeds:
            first_steps = [step for step in filter(None, merged.values()) if not step.get("after")]
            for step in (*first_steps, search or {}):
                step["seeds"] = list(seeds)
        parsed = _parse_steps(merged, mapping(content.get("resources") or {}, f"{where}: resources"), where)
        replaced = {tuple(text.partition("=")[0].split(".", 1)) for text in settings}
        for step_name, values in overrides.items():
            for key in ("options", "grid"):
                replaced |= {(step_name, option) for option in (values or {}).get(key) or ()}
        rows = attempt(read_rows, content, parsed, readings, replaced, where) or []
        step_names = [key for key, step in merged.items() if step]
        attempt(_check_named_steps, content.get("vary"), search, step_names, where)
        report = attempt(_report, content, f"{where}: report") or {}
        paper = attempt(_paper, content, where)
    for key, step in parsed.items() if tier in ("full", None) else ():  # at full scale a step takes a GPU by default
        if not step.options.get("smoke"):
            parsed[key] = replace(step, resources={"gpus": 1, **step.resources})
    return SweepFile(
        name=path.stem,
        tier=tier or "full",
        about=str(content.get("about", "")),
        steps=parsed,
        rows=tuple(rows),
        report=report,
        search=search,
        paper=paper,
        tiers=tuple(content.get("tiers") or ()),
        vary=content.get("vary"),
    )


def _check_named_steps(vary: str | None, search: dict[str, Any] | None, steps: Sequence[str], where: str) -> None:
    if vary is not None:
        attempt(check_keys, {vary: {}}, tuple(steps), f"{where}: vary")
    if search is not None:
        attempt(check_keys, search, SEARCH_KEYS, f"{where}: search", needed=("low", "high"))
        check_keys({search.get("step", steps[-1]): {}}, tuple(steps), f"{where}: search")


def _parse_steps(steps: dict[str, Any], shared: dict[str, Any], where: str) -> dict[str, Step]:
    """Return the steps that are not null. Raises UsageError; mistakes within steps are `kept`."""
    parsed, earlier = dict[str, Step](), list[str]()
    for key, value in ((key, value) for key, value in steps.items() if value is not None):
        with kept():
            step = parsed[key] = parse_step(key, value, shared, where)
            if step.after is not None and step.after not in earlier:
                hint = did_you_mean(step.after, earlier)
                raise UsageError(f"{where}: steps.{key}: `after: {step.after}` must name an earlier step{hint}")
            if (parent := parsed.get(str(step.after))) and parent.kind != "pretrain":
                raise UsageError(f"{where}: steps.{key}: `after: {step.after}` must name a step that pretrains")
        earlier.append(key)
    return parsed


def _keep_tasks(steps: dict[str, Any], tasks: Sequence[str]) -> None:
    """Remove the steps that none of these tasks needs. Raises UsageError, `kept`, for each unknown task."""
    runs = {name: str(step["run"]) for name, step in steps.items() if "run" in (step or ())}
    known = tuple(dict.fromkeys([*runs, *runs.values()]))
    for task in tasks:
        with kept():
            if task not in known:
                raise unknown("task", task, known)
    needed = {name for name, task in runs.items() if {name, task} & {*tasks}}
    for name in reversed(steps) if needed else ():
        if name not in needed:
            steps[name] = None
        elif after := steps[name].get("after"):
            needed.add(after)


def _paper(content: dict[str, Any], where: str) -> tuple[str, str] | None:
    """Return the paper and the name of its table or figure. Raises UsageError when one of them is missing."""
    table = f"figure{content['figure']}" if "figure" in content else str(content.get("table", ""))
    if bool(table) != ("paper" in content):
        raise UsageError(f"{where}: `paper` and `table` belong together, or `paper` and `figure`")
    return (str(content["paper"]), table_of(str(content["paper"]), table).name) if table else None


def _report(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Check what the report shows besides its tables, and return it in the form that `transfer.sweep.report` takes."""
    parts = mapping(content.get("report") or {}, where)
    check_keys(parts, REPORT_KEYS, where)
    pairs = as_list(parts.get("compare"))
    pairs = [pairs] if pairs and not isinstance(pairs[0], list) else pairs
    once = [(key, parts[key]) for key in ("heatmap", "interaction") if key in parts]
    for key, values in [*(("compare", pair) for pair in pairs), *once]:
        if not (isinstance(values, list) and len(values) == 2):
            raise UsageError(f"{where}: `{key}` takes two, as [{EXAMPLES[key]}], not {values!r}")
    return parts | {"compare": pairs, "by": as_list(parts.get("by"))}


def _tier(content: dict[str, Any], tier: str | None, where: str) -> dict[str, Any]:
    """Return the values by step that a tier sets. Raises UsageError if the sweep has no such tier, or needs one."""
    tiers = mapping(content.get("tiers", {}), f"{where}: tiers")
    check_keys(tiers, tuple(TIERS), f"{where}: tiers")
    if tier is None and tiers:
        scales = ", or ".join(f"--tier {name} ({text})" for name, text in TIERS.items() if name in {*tiers, "full"})
        raise UsageError(f"this sweep has several scales; add {scales}")
    if tier not in {*tiers, "full", None}:
        raise unknown("tier", str(tier), [*tiers, "full"])
    return mapping(tiers.get(tier or "full") or {}, f"{where}: tiers.{tier}")


def _merge(steps: dict[str, Any], overrides: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the steps with a tier's values; `options` and `grid` are merged by key, null removes a step."""
    check_keys(overrides, tuple(steps), f"{where}: the tier")
    merged: dict[str, Any] = {name: dict(mapping(step, f"{where}: steps.{name}")) for name, step in steps.items()}
    for name, values in overrides.items():
        if values is None:
            merged[name] = None
            continue
        for key, value in mapping(values, f"{where}: the tier's {name}").items():
            together = key in ("options", "grid") and isinstance(value, dict)
            merged[name][key] = {**(merged[name].get(key) or {}), **value} if together else value
    return merged


def _set(steps: dict[str, Any], search: dict[str, Any] | None, text: str) -> None:
    """Apply a setting such as `pretrain.epochs=5` to a key of a step, an option of a step, or a key of the search.

    A list of values for an option becomes an axis of the grid.
    """
    target_text, equals, value_text = text.partition("=")
    step, dot, key = target_text.partition(".")
    if not (equals and dot and key) or key in ("options", "grid"):
        raise UsageError(f"--set {text}: use STEP.KEY=VALUE, as pretrain.epochs=5; a list of values is an axis")
    targets = {name: content for name, content in [*steps.items(), ("search", search)] if content is not None}
    check_keys({step: {}}, tuple(targets), f"--set {text}")
    value, target = read_value(value_text, f"--set {text}"), targets[step]
    if target is search:
        check_keys({key: {}}, SEARCH_KEYS, f"--set {text}")
    if target is search or key in STEP_KEYS:
        target[key] = value
        return
    options, grid = (mapping(target.get(name) or {}, f"steps.{step}: {name}") for name in ("options", "grid"))
    kind = "run" if "run" in target else "pretrain"
    with errors_naming(f"--set {text}"):
        check_options(options_of(key), kind, str(target.get(kind)))
    for axis in grid:
        if key in options_of(axis) and key != axis:
            fix = f"use --set '{step}.{axis}=[[...], ...]'"
            raise UsageError(f"--set {text}: `{key}` belongs to the axis `{axis}`; {fix}")
    if key in grid or isinstance(value, list):
        target["grid"] = {**grid, key: as_list(value)}
    else:
        target["options"] = {**options, key: value}
