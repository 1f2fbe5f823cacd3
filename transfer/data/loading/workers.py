"""Loader processes: how they begin and end, and how a dataset gets there.

On a CPU they are forked. A fork of a process that uses a GPU copies locks which CUDA's threads and the one that pins
memory hold, and nobody opens them there: so beside a GPU they come from a server, which has imported what they need.
"""

import mmap
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing import forkserver, reduction
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from transfer.core.errors import UserError
from transfer.core.process import exit_with
from transfer.core.user_code import SUITE_PACKAGES

SERVER_MODULES = ("timm", "torchvision.transforms.v2", "backbones.backbone", "transfer.data.splits.dataset")
ASKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals that the process which loads answers, where they come to all."""
ALIGNED = 64


Collate = Callable[[list[Any]], Any]
"""Samples -> batch."""


def start_server(module: str = "") -> None:
    """Start the server, unless it runs; it imports while this process goes on, and ends with it and its workers.

    Args:
        module: of a task, to be imported with the module `preloaded` beside it, if there is one.
    """
    beside = [module, f"{module.rpartition('.')[0]}.preloaded"] if module else []
    multiprocessing.set_forkserver_preload([*SERVER_MODULES, *beside])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED)
    forkserver.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_batches(
    dataset: Dataset[Any],
    batches: Iterable[list[Any]],
    *,
    workers: int,
    on_gpu: bool,
    collate: Collate | None = None,
    ahead: int = 2,
) -> Iterator[Any]:
    """Yield the collated samples of each batch of keys, in order, on a GPU in pinned memory.

    Args:
        workers: processes; 0 loads in this one.
        ahead: batches that each process loads before they are asked for.

    Raises:
        UserError: a worker's, without the traceback that the loader wraps around it.
    """
    sent = _Sent.of(dataset, collate) if on_gpu and workers else None
    loader = DataLoader(
        sent or dataset,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=on_gpu,
        worker_init_fn=partial(_prepare_worker, os.getpid()) if workers else None,
        prefetch_factor=ahead if workers else None,
        multiprocessing_context="forkserver" if sent else None,
    )
    try:
        yield from _started(loader) if sent else loader
    except UserError as error:
        kind = type(error)  # also the last thing that the traceback names
        raise kind(str(error).rpartition(f"{kind.__name__}: ")[2].strip()) from None


def _started(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the workers without the program of this process, which they would run: a user's script has no guard."""
    start_server()
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        return iter(loader)
    finally:
        sys.modules["__main__"] = main


class _Sent(Dataset[Any]):
    """A dataset on its way to the workers: pickled once, its arrays in memory that all share as if they were forked."""

    def __init__(self, content: bytes, arrays: list[pickle.PickleBuffer]) -> None:
        parts = [memoryview(content), *(array.raw() for array in arrays)]
        self.sizes = [part.nbytes for part in parts]
        with open(os.memfd_create("dataset"), "wb", closefd=False) as file:
            self.memory = file.fileno()
            for part in parts:
                file.write(part)
                file.write(bytes(-part.nbytes % ALIGNED))

    def __del__(self) -> None:
        os.close(self.memory)

    @classmethod
    def of(cls, *sent: Any) -> "_Sent | None":
        """Return the first of what is sent; None where that cannot be pickled, as a lambda, and must be forked.

        So must what belongs to a user's module, which a worker would import anew, without what was set in it since.
        """
        arrays: list[pickle.PickleBuffer] = []
        try:
            content = pickle.dumps(sent, protocol=5, buffer_callback=arrays.append)
        except Exception:  # of any kind, as users' classes raise them
            return None
        users = any(_is_users(name, module) and name.encode() in content for name, module in [*sys.modules.items()])
        return None if users else cls(content, arrays)

    def __reduce__(self) -> Any:
        return _receive, (reduction.DupFd(self.memory), self.sizes)


def _is_users(name: str, module: ModuleType) -> bool:
    """Return whether a module is neither of the suite nor installed."""
    file = getattr(module, "__file__", None) or ""
    installed = file.startswith(sys.base_prefix) or "-packages/" in file
    return name == "__main__" or (bool(file) and name.partition(".")[0] not in SUITE_PACKAGES and not installed)


def _receive(memory: Any, sizes: list[int]) -> Any:
    descriptor, parts, start = memory.detach(), [], 0
    view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    os.close(descriptor)
    for size in sizes:
        parts.append(view[start : start + size])
        start += size + -size % ALIGNED
    return pickle.loads(parts[0], buffers=parts[1:])[0]


def _prepare_worker(parent: int, worker: int) -> None:
    """Ignore signals, which the parent answers, end with the parent, and use one thread."""
    # A forked worker inherits the parent's handlers; a signal to the whole group is the parent's to answer. A worker
    # that died of it would make torch raise in the parent at any point, within the saving of its state too.
    signal.set_wakeup_fd(-1)  # of the parent, see `signals_answered`
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    # torch looks at the process that forked the worker, which is a server where workers are not forked directly
    exit_with(parent)
    torch.set_num_threads(1)
