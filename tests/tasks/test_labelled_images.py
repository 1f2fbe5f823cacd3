"""What all tasks on labelled images refuse and guarantee."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.support import smoke_options
from transfer.core.errors import UserError
from transfer.data.spec import find_root, resolve_dataset
from transfer.task import load_task

TASKS = ["classify", "knn", "linear"]


def opened(task: str, name: str) -> Any:
    options = smoke_options(task)
    return load_task(task).open(resolve_dataset(name), options, root=None, subset=None, drop_corrupt=False)


def one_split(folder: Path, split: str) -> str:
    """A user's dataset of the embedded digits' one split; its YAML."""
    digits = find_root(resolve_dataset("toy_digits"), None)
    shutil.copytree(digits / split, folder / "digits" / split)
    shutil.copytree(digits / split / "0", folder / "digits" / "more")
    path = folder / "mine.yaml"
    path.write_text("format: image_folder\nroot: digits\n")
    return str(path)


@pytest.mark.parametrize("task", TASKS)
def test_a_missing_split_is_named_with_its_fix(task: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"validation split, which is missing.*key `val`"):
        opened(task, one_split(tmp_path / "a", "train"))
    only_val = one_split(tmp_path / "b", "val")
    if task == "classify":
        assert len(opened(task, only_val).val) == 355
    else:
        with pytest.raises(UserError, match=r"training split, which is missing.*key `train`"):
            opened(task, only_val)
