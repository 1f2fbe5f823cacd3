from pathlib import Path

import pytest
import torch

from backbones.engine.checkpoint import STATE, save_state


class Interrupted:
    """A value during whose saving the process learns that a loader process of its own was killed."""

    def __reduce__(self) -> str:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")


def test_a_loader_that_is_killed_while_the_state_is_saved_is_no_full_disk(tmp_path: Path) -> None:
    save_state(tmp_path, {"step": 1})
    with pytest.raises(RuntimeError, match="is killed by signal"):
        save_state(tmp_path, {"step": Interrupted()})
    assert torch.load(tmp_path / STATE) == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == [STATE]
