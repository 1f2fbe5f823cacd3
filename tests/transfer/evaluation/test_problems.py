"""All that is missing is one error, which says each thing once."""

import pytest

from backbones.errors import MissingInput, UsageError, UserError
from transfer.evaluation.problems import Problems


def test_the_error_is_of_the_kind_of_all() -> None:
    for kinds, kind in (
        ((UsageError, UsageError), UsageError),
        ((MissingInput, MissingInput, MissingInput), MissingInput),
        ((UsageError, MissingInput), UserError),
    ):
        problems = Problems()
        for raised, text in zip(kinds, "aba"):
            with problems.collected():
                raise raised(text)
        with pytest.raises(UserError, match=r"^a\nb$") as error:
            problems.raise_if_any()
        assert type(error.value) is kind
