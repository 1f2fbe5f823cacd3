import pytest

from transfer.records.labels import value_label


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (None, "none"),
        (False, "no"),
        (0.05, "0.05"),
        ([1, 2.5], "1 2.5"),
        ((), "none"),
        ("/home/someone/parts/my_stem.py:Stem", "my_stem.py:Stem"),
        ("C:\\parts\\my_stem.py:Stem", "my_stem.py:Stem"),
        ("3Conv+1Proj@2,1,1,8", "3Conv+1Proj@2,1,1,8"),
    ],
)
def test_values_are_for_a_reader(value: object, label: str) -> None:
    """A user's part is shown without the folder of the machine it lies on."""
    assert value_label(value) == label
