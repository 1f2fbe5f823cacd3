import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tests.support import context
from transfer.core.errors import Stopped
from transfer.engine.extract import extract


class Images(Dataset[Tensor]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3, 2, 2), float(index))


@pytest.mark.parametrize("batch_size", [1, 4, 11, 64])
def test_rows_are_in_order_and_complete(batch_size: int) -> None:
    rows = extract(lambda images: images.mean((2, 3)), Images(), context(), batch_size=batch_size, label="x")
    assert rows.tolist() == [[float(i)] * 3 for i in range(11)]


def test_features_are_fp32_whatever_the_precision() -> None:
    weight = torch.rand(3, 4) + 0.5  # no sums near zero, where bf16 has no relative precision
    here = context(eval_precision="bf16")
    rows = extract(lambda images: images.mean((2, 3)) @ weight, Images(), here, batch_size=4, label="x")
    assert rows.dtype == torch.float32
    assert torch.allclose(rows[3], torch.full((3,), 3.0) @ weight, rtol=0.02)


def test_the_precision_of_training_does_not_reach_what_is_scored() -> None:
    images, weight = torch.rand(4, 3), torch.rand(3, 8)
    rows = extract(lambda part: part @ weight, images, context(precision="bf16"), batch_size=2, label="x")  # type: ignore[arg-type]
    assert torch.allclose(rows.double(), images.double() @ weight.double(), rtol=1e-6)


def test_a_signal_ends_the_extraction() -> None:
    here = context(stop_signal=15)
    with pytest.raises(Stopped):
        extract(lambda images: images, Images(), here, batch_size=4, label="x")
