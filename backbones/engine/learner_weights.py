"""The final state of what a run trained, in its folder, so that its scores can be computed anew."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from backbones.engine.context import Context
from backbones.runtime.files import atomic_replacement

LEARNER = "learner.safetensors"  # in a run's folder


def save_learner(state: Mapping[str, object], context: Context) -> None:
    """Write the tensors of a state dict, whole or not at all, unless the run saves no weights (`--save-weights`).

    Raises:
        UserError: the file cannot be written.
    """
    if context.folder is None or not context.ranks.first or not context.save_weights:
        return
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # one copy of each, contiguous: the format takes neither shared nor strided tensors
    tensors = {
        name: value.detach().cpu().clone().contiguous() for name, value in state.items() if isinstance(value, Tensor)
    }
    with atomic_replacement(context.folder / LEARNER) as temporary:
        try:
            save_file(tensors, temporary, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"is the disk full? {error}") from error
        _copy_read_permissions(temporary, context.folder)


def _copy_read_permissions(path: Path, folder: Path) -> None:
    """Make a file as readable as the run's history: safetensors' writer gives it to its owner alone."""
    neighbour = folder / "history.jsonl"
    if neighbour.exists():
        shutil.copymode(neighbour, path)
