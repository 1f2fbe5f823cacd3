import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import Classifier, context, fit_options, loader, tensors
from tests.transfer.engine.test_loop import stop
from transfer.core.errors import UserError
from transfer.engine.checkpoint import HISTORY, STATE, load_state
from transfer.engine.loop import fit


def saved(state: Any) -> bytes:
    """A state as torch saves it."""
    torch.save(state, file := io.BytesIO())
    return file.getvalue()


def test_a_flipped_bit_is_refused_or_was_of_no_consequence(tmp_path: Path) -> None:
    """Bits all over the file: no state is accepted that is not the saved one."""
    stop(tmp_path, 4)
    path, sound = tmp_path / STATE, (tmp_path / STATE).read_bytes()
    expected, refused = saved(load_state(tmp_path, "run")), list[str]()
    for bit in np.random.default_rng(0).choice(8 * len(sound), 600, replace=False):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        try:
            assert saved(load_state(tmp_path, "run")) == expected, bit
        except UserError as error:
            refused.append(str(error))
    assert len(refused) > 400
    assert all(said.startswith(f"{path}: not a readable training state") for said in refused)
    assert all(said.endswith("delete it to restart training") for said in refused)


def test_the_state_before_is_kept_and_leads_to_the_same_end(tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    for folder in (whole, pieces):
        folder.mkdir()
    fit(Classifier(), loader(), fit_options(), context(whole))
    stop(pieces, 3)
    stop(pieces, 5)
    damaged = bytearray((pieces / STATE).read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 500] = bytes(500)  # single bits may lie in the padding between two tensors
    (pieces / STATE).write_bytes(damaged)
    with pytest.raises(UserError, match=r"state\.pt: .*; delete it to resume from the previous checkpoint"):
        fit(Classifier(), loader(), fit_options(), context(pieces))
    (pieces / STATE).unlink()
    fit(Classifier(), loader(), fit_options(), context(pieces))
    ended = [torch.load(folder / STATE) for folder in (whole, pieces)]
    assert all(torch.equal(a, b) for a, b in zip(*map(tensors, ended), strict=True))
    assert (whole / HISTORY).read_bytes() == (pieces / HISTORY).read_bytes()


class Harmful:
    """An object that would write a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_is_not_run_and_nobody_is_told_to_run_it(tmp_path: Path) -> None:
    torch.save({"run_key": "run", "harm": Harmful(tmp_path / "harm")}, tmp_path / STATE)
    with pytest.raises(UserError, match="it holds Python objects, which are not run") as caught:
        load_state(tmp_path, "run")
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("cut", [0, 2])
def test_a_resumed_training_goes_on_with_what_is_left_of_its_history(tmp_path: Path, cut: int) -> None:
    stop(tmp_path, 4)
    path = tmp_path / HISTORY
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: 4 - cut]) + b'{"step": 5, "epo')  # a killed process has not ended its last line
    fit(Classifier(), loader(), fit_options(), context(tmp_path))
    steps = [json.loads(line)["step"] for line in path.read_bytes().splitlines()]
    assert steps == [*range(1, 5 - cut), 5, 6, 7, 8, 9]


def test_other_threads_are_noted(tmp_path: Path) -> None:
    stop(tmp_path, 2)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        here = context(tmp_path)
        fit(Classifier(), loader(), fit_options(), here)
    finally:
        torch.set_num_threads(threads)
    assert here.notes == [f"step 2 was reached with {threads} thread(s), the rest with {threads + 1} thread(s)"]
