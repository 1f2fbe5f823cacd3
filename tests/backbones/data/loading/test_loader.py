from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from backbones.data.loading.images import ReidTrainTransform
from backbones.data.loading.loader import RunLoader, StreamPosition, pk_batches
from backbones.data.splits.dataset import SplitDataset
from backbones.data.splits.split import FileSplit
from backbones.errors import UserError
from backbones.runtime.ranks import Ranks

IDENTITIES = [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 3]


@pytest.fixture
def images(tmp_path: Path) -> SplitDataset:
    names = [f"{number:02}.jpg" for number in range(len(IDENTITIES))]
    for number, name in enumerate(names):
        Image.effect_noise((16, 32), 40 + number).convert("RGB").save(tmp_path / name)
    files = FileSplit.unlabelled("train", tmp_path, names)
    files.labels = np.array(IDENTITIES)
    return SplitDataset(files, ReidTrainTransform((32, 16), pad=2), seed=3, preload=False)


def epoch_batches(epoch: int) -> list[list[int]]:
    return pk_batches(IDENTITIES, p=2, k=2, seed=3, epoch=epoch)


def run(loader: RunLoader, epoch: int = 0, index: int = 0) -> list[tuple[StreamPosition, torch.Tensor, torch.Tensor]]:
    return [(place, *batch) for place, batch in loader.stream(epoch, index, 3)]


def same(one: list, two: list) -> bool:
    return len(one) == len(two) and all(
        a[0] == b[0] and torch.equal(a[1], b[1]) and torch.equal(a[2], b[2]) for a, b in zip(one, two)
    )


def test_batches_do_not_depend_on_workers(images: SplitDataset) -> None:
    alone = run(RunLoader(images, epoch_batches))
    assert same(alone, run(RunLoader(images, epoch_batches, workers=2)))


def test_a_stream_from_the_middle_is_the_rest_of_the_whole(images: SplitDataset) -> None:
    loader = RunLoader(images, epoch_batches)
    whole = run(loader)
    lengths = [len(epoch_batches(epoch)) for epoch in range(3)]
    assert len(whole) == sum(lengths)
    assert same(run(loader, 1, 1), whole[lengths[0] + 1 :])
    assert same(run(loader, 2, 0), whole[lengths[0] + lengths[1] :])


@pytest.mark.parametrize("parts", [1, 2])
def test_ranks_share_every_micro_batch(images: SplitDataset, parts: int) -> None:
    whole = run(RunLoader(images, epoch_batches))
    ranks = [run(RunLoader(images, epoch_batches, parts=parts, ranks=Ranks(rank, 2, rank, 2))) for rank in (0, 1)]
    for (place, batch, _), *shares in zip(whole, *ranks):
        assert all(share[0] == place for share in shares)
        micro = [torch.cat([share[1].chunk(parts)[part] for share in shares]) for part in range(parts)]
        assert torch.equal(torch.cat(micro), batch)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_breaks_during_the_run_is_named(images: SplitDataset, workers: int) -> None:
    for index in range(len(images)):
        Path(images.split.place(index)).write_bytes(b"no image")
    with pytest.raises(UserError) as caught:
        run(RunLoader(images, epoch_batches, workers=workers))
    assert str(caught.value).startswith(str(Path(images.split.place(0)).parent))
    assert "Traceback" not in str(caught.value)
