"""A model without values has the shapes and names of the real one."""

import pytest

from backbones.backbone import create
from transfer.sweep.model_check import shapes_only


@pytest.mark.parametrize("name", ["tiny", "volo_d1_convstem"])
def test_shapes_are_those_of_the_model(name: str) -> None:
    model = create(name, weights="random", img_size=64)
    with shapes_only():
        empty = create(name, weights="random", img_size=64)
    assert all(value.is_meta for value in empty.parameters())
    assert {key: (value.shape, value.dtype) for key, value in empty.state_dict().items()} == {
        key: (value.shape, value.dtype) for key, value in model.state_dict().items()
    }
    assert not any(value.is_meta for value in create(name, weights="random", img_size=64).parameters())
