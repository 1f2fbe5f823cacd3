"""What torch asks of a GPU, answered without one; and the product's training loop, watched."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.gpu.ledger import LEDGER
from tests.gpu.tensors import GPU, Gpu, on_gpu
from transfer.engine.device import cpu_has_bf16

NAME = "Pretended H100"


def pretend() -> None:
    """Let torch see one GPU. Begin before other libraries are imported: they ask once."""
    # device guards that do nothing, and no context, which a backward pass asks for
    torch._C._ensureCUDADeviceGuardSet()
    ctypes.CDLL(None).pretend_devices(127)
    _answers()
    _choices()
    _constructors()


def _answers() -> None:
    """Answer for the GPU in `torch.cuda`."""
    cuda: Any = torch.cuda
    properties = SimpleNamespace(major=9, minor=0, total_memory=80 * 2**30, multi_processor_count=132, name=NAME)
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_name": NAME, "is_initialized": True,
        "get_device_capability": (9, 0), "get_device_properties": properties, "is_bf16_supported": cpu_has_bf16(),
        "max_memory_allocated": 123 * 2**20, "memory_reserved": 0, "memory_allocated": 0, "_is_in_bad_fork": False,
        "mem_get_info": (70 * 2**30, 80 * 2**30),
        **dict.fromkeys(("set_device", "reset_peak_memory_stats", "empty_cache", "set_rng_state", "manual_seed")),
        **dict.fromkeys(("manual_seed_all", "_lazy_init")),
    }  # fmt: skip
    for name, answer in answers.items():
        getattr(cuda, name)  # a name that is gone is told
        setattr(cuda, name, lambda *_, answer=answer, **__: answer)
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.Event = Event
    cuda.synchronize = lambda *_: LEDGER.sync("torch.cuda.synchronize")


class Event:
    """Waiting for it is a synchronisation if nothing was launched behind it."""

    def record(self) -> None:
        """Stand behind what was launched."""
        self.launched = LEDGER.launches.total()

    def synchronize(self) -> None:
        """Wait."""
        if LEDGER.launches.total() == self.launched:
            LEDGER.sync("the last event")


def _choices() -> None:
    """Let torch choose as on a GPU, but for attention and batch norm, whose CUDA operators do not run on the CPU."""
    from torch.cuda.amp import common
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer
    from torch.utils import _foreach_utils, checkpoint

    common.amp_definitely_not_available = lambda: False
    for module in (_foreach_utils, clip_grad):
        module._has_foreach_support = lambda *_: True
        module._device_has_foreach_support = lambda *_: True
    optimizer._foreach_supported_types.append(Gpu)
    checkpoint.get_device_states = lambda *_: ([], [])
    torch.backends.cudnn.enabled = False
    for kind in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
    # a wrapper of an inference tensor cannot be a view of another one
    torch.inference_mode = lambda mode=True: torch.no_grad()(mode) if callable(mode) else torch.no_grad()


def _constructors() -> None:
    """Make tensors from Python's numbers on the CPU and bring them over; keep generators and batches on the CPU."""
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _made_on_the_cpu(getattr(torch, name)))
    own = torch.Generator
    torch.Generator = type("Generator", (), {"__new__": lambda *_, **__: own("cpu")})  # type: ignore[misc]
    loader: Any = torch.utils.data.DataLoader
    begin = loader.__init__
    loader.__init__ = lambda self, *given, **named: begin(self, *given, **named | {"pin_memory": False})


def _made_on_the_cpu(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(data: Any, *given: Any, device: Any = None, **named: Any) -> Tensor:
        if on_gpu(device):
            return make(data, *given, **named).to(GPU)
        return make(data, *given, **named, **({} if device is None else {"device": device}))

    return made


def watch(most_steps: int) -> None:
    """Count the product's training steps and mark phases; epochs have at most so many steps (0: all)."""
    from transfer.data.loading.loader import RunLoader
    from transfer.engine.loop import _Run

    step, settle, backward, begin = _Run.step, _Run.settle, Tensor.backward, RunLoader.__init__

    def watched_step(self: Any, *given: Any, **named: Any) -> Any:
        LEDGER.steps += 1
        with LEDGER.within("train"):
            return step(self, *given, **named)

    def watched_settle(self: Any, **named: Any) -> Any:
        with LEDGER.within("settle"):
            return settle(self, **named)

    def watched_backward(self: Any, *given: Any, **named: Any) -> None:
        with LEDGER.within("backward" if LEDGER.phase == "train" else LEDGER.phase):
            backward(self, *given, **named)

    def shortened(self: Any, dataset: Any, epoch_batches: Any, **named: Any) -> None:
        begin(self, dataset, lambda epoch: epoch_batches(epoch)[: most_steps or None], **named)

    _Run.step, _Run.settle = watched_step, watched_settle  # type: ignore[method-assign]
    Tensor.backward, RunLoader.__init__ = watched_backward, shortened  # type: ignore
