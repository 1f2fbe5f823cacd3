"""All that is missing is one error, which says each thing once."""

import pytest

from backbones.errors import MissingInput, UsageError, UserError
from transfer.evaluation.problems import Problems


@pytest.mark.parametrize(
    ("errors", "kind", "status"),
    [
        ([UsageError("a"), UsageError("b")], UsageError, 2),
        ([MissingInput("a"), MissingInput("b"), MissingInput("a")], MissingInput, 1),
        ([UsageError("a"), MissingInput("b")], UserError, 1),
    ],
)
def test_the_error_is_of_the_kind_of_all(errors: list[UserError], kind: type[UserError], status: int) -> None:
    problems = Problems()
    for error in errors:
        with problems.collected():
            raise error
    with pytest.raises(UserError) as raised:
        problems.raise_if_any()
    assert (type(raised.value), raised.value.exit_status, str(raised.value)) == (kind, status, "a\nb")
