"""`--list [KIND]` of every command: the names that options take. Imports no torch."""

from collections.abc import Callable, Iterable
from functools import partial

from backbones.archs import timm_names
from transfer.core import user_code
from transfer.core.errors import unknown
from transfer.core.settings import CONFIGS, config_names, read_yaml

KINDS: dict[str, Callable[[], Iterable[str]]] = {
    **{kind: partial(config_names, kind) for kind in ("tasks", "backbones", "datasets", "detectors", "sweeps")},
    **{f"{part}s": partial(user_code.builtin_names, part) for part in ("stem", "attention", "ffn")},
    "recipes": partial(config_names, "pretrain"),
    "steps": lambda: [f"{name}: {' '.join(_steps(name))}" for name in config_names("sweeps")],
}
"""Kind of names -> what lists them; `steps` are those of each sweep, for `--set STEP.KEY=VALUE`."""


def listing(kinds: Iterable[str]) -> str:
    """Return the names of each kind below its title; one kind alone has none. Raises UsageError for an unknown kind."""
    chosen = list(kinds)
    for kind in chosen:
        if kind not in KINDS:
            raise unknown("kind of name", kind, KINDS)
    if len(chosen) == 1:
        return "\n".join(KINDS[chosen[0]]())
    parts = [f"{kind}:\n  " + "\n  ".join(KINDS[kind]()) for kind in chosen]
    more = f"--list KIND lists one of {', '.join(KINDS)}. Any of timm's {len(timm_names())} models is a backbone too."
    return "\n".join([*parts, more])


def _steps(sweep: str) -> list[str]:
    return list(read_yaml(CONFIGS / "sweeps" / f"{sweep}.yaml").get("steps", {}))
