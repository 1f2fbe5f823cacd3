"""Workers that a server starts, as beside a GPU: the same batches, users' classes forked, and no process that stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Subset

from tests.processes import ENVIRONMENT, wait_for
from transfer.core.user_code import load as load_part
from transfer.data.loading.workers import _Sent, load

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
batches = workers.load(numbers, [[index] for index in range(9)] * 10**6, workers=2, on_gpu=True)
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
        batches = load(dataset, [[8, 0], [4, 3, 2]], workers=2, on_gpu=True)
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
