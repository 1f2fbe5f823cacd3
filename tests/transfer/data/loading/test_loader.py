"""Batches and their order, and the workers that load them, as a server starts them beside a GPU."""

import os
import signal
import subprocess
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Subset

from tests.processes import ENVIRONMENT, wait_for
from tests.transfer.data.layouts import write_images
from transfer.core.errors import UserError
from transfer.core.process import Ranks
from transfer.core.user_code import load_part
from transfer.data.loading.images import collate_boxes, reid_train_transform
from transfer.data.loading.loader import RunLoader, pk_batches, repeated_batches, shuffled_batches
from transfer.data.loading.workers import _Sent, worker_batches
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.split import FileSplit

IDENTITIES = [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 3]


@pytest.fixture
def images(tmp_path):
    folder, names = write_images(tmp_path, len(IDENTITIES), 0), [f"{n}.jpg" for n in range(len(IDENTITIES))]
    files = FileSplit.of("train", folder, names, IDENTITIES)
    options = SimpleNamespace(size=(32, 16), flip=0.5, pad=2, erase=0.5)
    return SplitDataset(files, reid_train_transform(options, (0.5,) * 3, (0.5,) * 3), seed=3, preload=False)


def run(images, **given):
    batches = partial(pk_batches, IDENTITIES, p=2, k=2, seed=3)
    stream = RunLoader(images, batches, collate=collate_boxes, **given).stream(0, 0, 3)
    return [(place, images.tolist(), labels.tolist()) for place, ((images, *_), labels) in stream]


def test_batches_do_not_depend_on_workers(images):
    assert run(images) == run(images, workers=2)


@pytest.mark.parametrize("parts", [1, 2])
def test_ranks_share_every_micro_batch(images, parts):
    ranks = [run(images, parts=parts, ranks=Ranks(rank, 2, rank, 2)) for rank in (0, 1)]
    for (place, batch, _), *shares in zip(run(images), *ranks):
        assert all(share[0] == place for share in shares)
        size = len(batch) // (2 * parts)
        micro = (share[1][size * part : size * (part + 1)] for part in range(parts) for share in shares)
        assert list(chain.from_iterable(micro)) == batch


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_breaks_during_the_run_is_named(images, workers):
    for index in range(len(images)):
        Path(images.split.place(index)).write_bytes(b"no image")
    with pytest.raises(UserError) as caught:
        run(images, workers=workers)
    assert str(caught.value).startswith(str(Path(images.split.place(0)).parent))
    assert "Traceback" not in str(caught.value)


def crowd(sizes):
    """Identity i with sizes[i] images, mixed."""
    identities = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(0).permutation(identities).tolist()


@pytest.mark.parametrize(("p", "k"), [(4, 4), (8, 2), (3, 5), (2, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_batches_are_p_identities_by_k_images(p, k, seed):
    """An epoch ends when fewer than P identities have a group of K left; smaller identities have one group."""
    sizes = np.random.default_rng(1).integers(1, 14, 20)
    identities, left = crowd(sizes), np.maximum(1, sizes // k)
    drawn = [pk_batches(identities, p=p, k=k, seed=one, epoch=epoch) for one in (seed, seed + 1) for epoch in (0, 1)]
    batches, *others = drawn
    assert batches not in others
    for batch in batches:
        assert np.sum(left > 0) >= p
        people = np.array([identities[index] for index in batch]).reshape(p, k)
        assert (people == people[:, :1]).all()
        assert len({*people[:, 0]}) == p
        left[people[:, 0]] -= 1
    assert left.min() >= 0
    assert np.sum(left > 0) < p


@pytest.mark.parametrize(("n", "batch"), [(10, 3), (12, 4), (7, 7)])
def test_shuffled_batches(n, batch):
    whole = shuffled_batches(n, batch, seed=0, epoch=1, drop_last=False)
    assert sorted(index for one in whole for index in one) == list(range(n))
    cut = shuffled_batches(n, batch, seed=0, epoch=1, drop_last=True)
    assert cut == [one for one in whole if len(one) == batch]
    assert whole != shuffled_batches(n, batch, seed=0, epoch=2, drop_last=False)


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (lambda: pk_batches(crowd([4] * 4), p=5, k=4, seed=0, epoch=0), "5 identities, but the training set has 4"),
        (lambda: shuffled_batches(7, 8, seed=0, epoch=0), "takes 8 images, but the training set has 7"),
        (lambda: repeated_batches(9, 20, repeats=3, seed=0, epoch=0), "takes 20 images, but an epoch has 9"),
    ],
)
def test_too_few_for_one_batch(batches, said):
    with pytest.raises(UserError, match=said):
        batches()


@pytest.mark.parametrize(
    ("n", "batch", "repeats"), [(1000, 64, 3), (700, 96, 3), (300, 50, 2), (600, 128, 1), (100, 20, 3)]
)
def test_repeated_batches_hold_the_first_samples_of_deits_epoch_or_a_small_set_whole(n, batch, repeats):
    batches = repeated_batches(n, batch, repeats=repeats, seed=3, epoch=2)
    order = np.random.default_rng([3, 2]).permutation(n)
    listed = [int(image) for image in order for _ in range(repeats)][: n // 256 * 256 or n]
    assert len(batches) == len(listed) // batch
    for number, indices in enumerate(batches):
        assert sorted(indices) == sorted(listed[number * batch : (number + 1) * batch])


PART = """from torch.utils.data import Dataset

SCALE = 1

class Numbers(Dataset):
    def __init__(self, array):
        self.array = array
    def __getitem__(self, index):
        return SCALE * self.array[index]
"""
UNGUARDED = """import os, numpy
from torch.utils.data import Subset
from transfer.data.loading import workers
numbers = Subset(numpy.arange(-9, 0), range(9))
batches = workers.worker_batches(numbers, [[index] for index in range(9)] * 10**6, workers=2, on_gpu=True)
print(next(batches).item(), workers.forkserver._forkserver._forkserver_pid, *os.popen("pgrep -P %s" %
    workers.forkserver._forkserver._forkserver_pid).read().split(), flush=True)
for batch in batches: pass
"""


@pytest.fixture
def users(tmp_path: Path) -> Any:
    (tmp_path / "part.py").write_text(PART)
    numbers = load_part(f"{tmp_path / 'part.py'}:Numbers")
    sys.modules[numbers.__module__].SCALE = 2  # type: ignore[attr-defined]
    return numbers(np.arange(-9, 0))


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.nightly
def test_workers_give_what_this_process_would(users: Any) -> None:
    for dataset, scale in (Subset(np.arange(-9, 0), range(9)), 1), (users, 2):  # type: ignore[arg-type]
        batches = worker_batches(dataset, [[8, 0], [4, 3, 2]], workers=2, on_gpu=True)
        assert [(batch // scale).tolist() for batch in batches] == [[-1, -9], [-5, -6, -7]]


def test_a_dataset_is_sent_without_its_arrays_but_not_with_a_lambda_or_a_users_class(users: Any) -> None:
    sent = _Sent.of(Subset(np.zeros(2**20), range(9)))  # type: ignore[arg-type]
    assert sent is not None
    assert sent.sizes[0] < 1000
    assert sent.sizes[1:] == [2**23]
    assert _Sent.of(lambda number: number) is None
    assert _Sent.of(users) is None


@pytest.mark.nightly
def test_workers_and_their_server_end_with_a_script_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    script = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert script.stdout is not None
    first, *processes = map(int, script.stdout.readline().split())
    assert first == -9
    assert len(processes) == 3
    os.kill(script.pid, signal.SIGKILL)
    script.wait()
    wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in processes), 30)
