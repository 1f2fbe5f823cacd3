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


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("bf16", 0.02)])
def test_features_are_fp32_from_the_precision_of_scoring_not_of_training(precision: str, tolerance: float) -> None:
    images, weight = torch.rand(4, 3), torch.rand(3, 8)
    here = context(precision="bf16", eval_precision=precision)
    rows = extract(lambda part: part @ weight, images, here, batch_size=2, label="x")  # type: ignore[arg-type]
    assert rows.dtype == torch.float32
    assert torch.allclose(rows, images @ weight, rtol=tolerance)


def test_a_signal_ends_the_extraction() -> None:
    here = context(stop_signal=15)
    with pytest.raises(Stopped):
        extract(lambda images: images, Images(), here, batch_size=4, label="x")
