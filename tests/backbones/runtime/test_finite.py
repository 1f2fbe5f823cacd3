import pytest
import torch

from backbones.runtime.finite import NotFinite, check_finite


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_the_image_of_a_number_that_is_not_finite_is_named(wrong: float) -> None:
    rows, names = torch.zeros(4, 3, 2), ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    check_finite(rows, names, "features of the query split")
    rows[2, 1, 0] = wrong
    with pytest.raises(NotFinite, match=r"^features of the query split: not finite for c\.jpg$"):
        check_finite(rows, names, "features of the query split")
    rows[3] = wrong
    with pytest.raises(NotFinite, match=r"not finite for c\.jpg and 1 more of 4 images$"):
        check_finite(rows, names, "features of the query split")
