import pytest

from tests.tasks.support import smoke_options
from transfer.core.errors import UsageError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "96", "64"], "--size 96 64: the limit of the shorter side comes first"),
        (["--drop-path", "1"], "--drop-path 1.0: must be between 0 and 0.99"),
        (["--out-indices", "0", "1", "2", "3"], "set four different blocks, with --pyramid taps"),
        (["--pyramid", "taps", "--out-indices", "0", "1", "1", "2"], "set four different blocks"),
        (["--epochs", "3", "--validate-at", "1", "4"], "epochs count from 1 to 3"),
    ],
)
def test_what_cannot_be_is_named(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        smoke_options("detect", *words)
