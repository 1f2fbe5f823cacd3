"""All that is wrong is one error, which says each thing once."""

import pytest

from transfer.core.errors import MissingInput, UsageError, UserError, errors_together, kept, reject


def raise_together(*errors: UserError) -> None:
    with errors_together(), errors_together(join=True):
        for error in errors:
            with kept():
                raise error


def test_the_error_has_all_texts_and_the_strongest_kind() -> None:
    for kinds, kind in (
        ((UsageError, UsageError, UsageError), UsageError),
        ((MissingInput, MissingInput, MissingInput), MissingInput),
        ((UserError, MissingInput, UserError), UserError),
        ((UsageError, MissingInput, UserError), UsageError),
    ):
        with pytest.raises(UserError, match=r"^a\nb$") as error:
            raise_together(*(raised(text) for raised, text in zip(kinds, "aba")))
        assert type(error.value) is kind


def check(size: int) -> None:
    with errors_together():
        if size < 1:
            reject(f"--size {size}")
        _ = 1 // min(size, 0)


def test_an_error_that_a_rejected_value_causes_is_not_shown() -> None:
    with pytest.raises(UsageError, match=r"^--size 0$"):
        check(0)
    with pytest.raises(ZeroDivisionError):
        check(1)
