import os
import signal

import pytest
import torch

from tests.support import context
from transfer.core.errors import UserError
from transfer.core.process import ALONE, Ranks, usable_cores
from transfer.engine.context import Cost, Stopped, auto_workers, peak_mib
from transfer.engine.device import choose_device

CPU = torch.device("cpu")


def test_ranks_on_one_machine_share_its_loader_processes() -> None:
    gpu = torch.device("cuda")
    assert auto_workers(gpu, Ranks(0, 8, 0, usable_cores())) == 1
    assert auto_workers(gpu, ALONE) == min(usable_cores(), 16)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_said() -> None:
    assert choose_device("auto", ALONE) == CPU
    with pytest.raises(UserError, match=r"--device cuda: torch sees no GPU.*doctor"):
        choose_device("cuda", ALONE)


def test_the_first_signal_asks_and_the_second_leaves() -> None:
    here, before = context(), signal.getsignal(signal.SIGTERM)
    with here.signals():
        here.check_stop()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            here.check_stop()
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


def test_rates_are_of_what_was_trained() -> None:
    assert Cost().summary()["images_per_second"] is None
    rates = Cost(train_seconds=4.0, wait_seconds=1.0, images=100).summary()
    assert (rates["images_per_second"], rates["data_wait_share"]) == (25.0, 0.25)
    assert peak_mib(CPU) > 10
