"""Rules of the form: these options have no effect if the others are like that; with their words for messages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FACTS = ("task", "batch_norm", "ours", "plain")
"""The facts on which a rule may depend besides options and fields of the backbone; `rule_inputs` gives them."""


@dataclass(frozen=True)
class Condition:
    """A condition on a value other than equality; `text` is a phrase that follows the name of the option."""

    text: str
    holds: Callable[[Any], bool]


ON, OFF = Condition("given", bool), Condition("none or 0", lambda value: not value)
RATE = Condition("a rate", lambda value: value is not None)
ONE = Condition("of one value", lambda value: len(value) == 1)
UNCERTAIN = Condition("", lambda value: value is not False)
"""The condition that a fact is true or unknown."""


def other_than(*others: Any) -> Condition:
    """Return the condition that a value is none of these."""
    return Condition(f"other than {' and '.join(map(str, others))}", lambda value: value not in others)


def one_of(*values: Any) -> Condition:
    """Return the condition that a value is one of these."""
    return Condition(" or ".join(map(str, values)), lambda value: value in values)


@dataclass(frozen=True)
class Rule:
    """Options that have no effect if all other values are as `when` requires.

    Attributes:
        options: the names of the options.
        when: the required value, or a `Condition`, of each name on which the rule depends.
        because: the reason as text; empty if the required values are the reason.
        refused: whether a flag is refused then. It is not if the flag turns something off, or if it asks for something
            that does not belong to the computation.
    """

    options: tuple[str, ...]
    when: Mapping[str, Any]
    because: str = ""
    refused: bool = True

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the options have no effect with these values."""
        return all(name in values and _fulfils(values[name], wanted) for name, wanted in self.when.items())

    def reason(self, values: Mapping[str, Any]) -> str:
        """Return the reason that a refusal gives: "with --optimizer adamw"."""
        if self.because:
            return self.because
        unset = [name for name in self.when if values[name] in (None, [], ()) or values[name] is False]
        set_flags = [flag_with_value(name, values[name]) for name in self.when if name not in unset]
        parts = ["with " + " ".join(set_flags)] * bool(set_flags)
        parts += ["without " + " or ".join(map(flag, unset))] * bool(unset)
        return " and ".join(parts)

    def condition(self) -> str:
        """Return when the rule holds, as the page of options prints it."""
        names = [name for name in self.when if name not in FACTS and f"--{name}" not in self.because]
        parts = [f"`{name}` {_text(self.when[name])}" for name in names]
        return ", ".join([*parts, self.because.removeprefix("with ")] if self.because else parts)


def _fulfils(value: Any, wanted: Any) -> bool:
    try:
        return bool(wanted.holds(value)) if isinstance(wanted, Condition) else bool(value == wanted)
    except (AttributeError, TypeError):  # a value of another type, which only another version can have written
        return False


def _text(wanted: Any) -> str:
    if isinstance(wanted, Condition):
        return wanted.text
    return {True: "on", False: "off"}[wanted] if isinstance(wanted, bool) else "none" if wanted is None else str(wanted)


def flag(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.replace('_', '-')}"


def flag_with_value(name: str, value: Any) -> str:
    """Return a flag as a user gives it."""
    if value is True:
        return flag(name)
    values = value if isinstance(value, list | tuple) else [value]
    return " ".join([flag(name), *(f"{item:g}" if isinstance(item, float) else str(item) for item in values)])


def no_effect(options: str, because: str = "", *, refused: bool = True, **when: Any) -> Rule:
    """Return the rule for options that are separated by spaces; see `Rule`."""
    return Rule(tuple(options.split()), when, because, refused)
