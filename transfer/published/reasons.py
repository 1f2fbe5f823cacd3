"""Reasons why an own score cannot be compared with a published one."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Reason:
    """A condition under which an own run differs from the published one.

    Attributes:
        text: the condition, with the published value in brackets.
        is_option: whether it is an option or a part of the backbone; long lists of these are moved into a note.
        step: name of the sweep's step whose training has the condition; empty for the run of the cell itself.
    """

    text: str
    is_option: bool = False
    step: str = ""

    def __str__(self) -> str:
        """Return the text, with the step if it is of another training."""
        return f"{self.step}: {self.text}" if self.step else self.text

    def of_step(self, step: str) -> "Reason":
        """Return the reason for the training of an earlier step from whose weights the run starts."""
        return replace(self, step=step)
