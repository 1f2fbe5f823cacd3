from transfer.records.fields import value_label


def test_values_are_for_a_reader() -> None:
    values = (None, False, 0.05, [1, 2.5], (), "/home/someone/parts/my_stem.py:Stem", "3Conv+1Proj@2,1,1,8")
    labels = ["none", "no", "0.05", "1 2.5", "none", "Stem", "3Conv+1Proj@2,1,1,8"]
    assert list(map(value_label, values)) == labels
