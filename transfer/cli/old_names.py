"""Maps the option names of records of schema 1 to those of this version, for older records and for error messages.

No other module knows an old name. Imports no torch.
"""

from collections.abc import Iterable, Mapping
from typing import Any

OPTIONS = {
    "weight_decay_to": "weight_decay_end",
    "bias_factor": "bias_lr_factor",
    "clip": "clip_grad",
    "clip_each": "clip_grad_per_param",
    "accumulate": "grad_accum_steps",
    "identities": "num_identities",
    "instances": "num_instances",
    "draw": "save_pictures",
    "receipt": "result_file",
    "track": "tracker",
}
"""The new name of each option that schema 2 renamed. Their values are the same, except that of `track`."""
RECORD_KEYS = {"identity": "run_key", "identity_content": "run_key_content", "protocol": "config_digest"}
"""The new name of each entry of `record.json` that schema 2 renamed."""
RATES = {"warmup_from": "warmup_lr", "cosine_to": "min_lr"}
"""The new name of each option that was a rate or, by `ends`, a multiple of lr; NAME_factor is now that multiple."""


def current_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a record under the names of this version."""
    return {RECORD_KEYS.get(name, name): value for name, value in content.items()}


def current_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded run's options under the names of this version; other options stay as they are."""
    current: dict[str, Any] = {}
    for name, value in options.items():
        if name in RATES:
            current |= _rate(RATES[name], value, options.get("ends"))
        elif name == "track":
            current["tracker"] = "tensorboard" if value else "none"
        elif name != "ends":
            current[OPTIONS.get(name, name)] = value
    return current


def current_content(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's identity was the digest of, with its options under the names of this version.

    The digest of the result is the identity that a run of the same settings has today: options without an effect are
    left out, as the factor beside a rate is.
    """
    if "options" not in content:
        return dict(content)
    options = current_options(content["options"])
    ignored = {f"{name}_factor" for name in RATES.values() if options.get(name) is not None}
    return {**content, "options": {name: value for name, value in options.items() if name not in ignored}}


def _rate(name: str, value: Any, ends: str | None) -> dict[str, Any]:
    """Return the rate and the multiple of lr that an old value means. `ends` was left out if both were 0."""
    if ends == "factor" and value:
        return {name: None, f"{name}_factor": value}
    return {name: value, f"{name}_factor": 0.0}


def renamed_flag(argv: Iterable[str], known: Iterable[str], where: str = "") -> str:
    """Return a sentence for the first flag under an old name, with the new name; empty if there is none.

    Args:
        argv: the arguments of the command.
        known: the field names of the command's options; an old name that is one of these is valid there.
        where: a text before the sentence, such as the YAML file that the flags come from.
    """
    old = {**OPTIONS, **RATES, "ends": "min_lr_factor", "draws": "bootstrap_samples"}
    fields = {*known}
    for argument in argv:
        name = argument.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        if argument.startswith("--") and name in old and name not in fields and old[name] in fields:
            flag, new = (f"--{text.replace('_', '-')}" for text in (name, old[name]))
            return f"{where}{flag} is called {new}{_MORE.get(name, '')}"
    return ""


_MORE = {
    "cosine_to": ", and --min-lr-factor as a multiple of --lr",
    "warmup_from": ", and --warmup-lr-factor as a multiple of --lr",
    "ends": " and --warmup-lr-factor for multiples of --lr, --min-lr and --warmup-lr for rates",
    "track": " tensorboard",
}
