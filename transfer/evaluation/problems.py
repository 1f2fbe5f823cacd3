"""All that is missing or wrong before a command runs, as one error."""

import contextlib
from collections.abc import Iterator

from backbones.errors import MissingInput, UsageError, UserError


class Problems:
    """Errors of a command's inputs, for one message with all of them."""

    def __init__(self) -> None:
        self.errors: list[UserError] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Keep a UserError that is raised inside."""
        try:
            yield
        except UserError as error:
            self.errors.append(error)

    def raise_if_any(self) -> None:
        """Raise one error for all, each text once; its exit status is 2 when all of them are usage errors."""
        if not self.errors:
            return
        kinds: tuple[type[UserError], ...] = (UsageError, MissingInput)
        common = [kind for kind in kinds if all(isinstance(error, kind) for error in self.errors)]
        raise (common or [UserError])[0]("\n".join(dict.fromkeys(map(str, self.errors)))) from self.errors[0]
