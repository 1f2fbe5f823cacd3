"""Tensors that say they are on cuda:0 and are computed on the CPU: real numbers, so control flow runs as it would."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.gpu.ledger import LEDGER, line

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
KERNELS = False
"""Whether point-wise attention takes the fused kernels, in Triton's interpreter; else blocks."""

SYNCHRONISE = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal",
    "bincount", "_linalg_eigh", "linalg_eigh", "_linalg_svd", "linalg_cholesky_ex", "is_nonzero", "allclose", "histc",
}  # fmt: skip
VIEWS = {
    "view", "_unsafe_view", "t", "transpose", "permute", "select", "slice", "unsqueeze", "squeeze", "expand", "detach",
    "alias", "split", "split_with_sizes", "unbind", "as_strided", "diagonal", "unfold", "_reshape_alias", "chunk",
    "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_",
    "view_as_complex", "view_as_real", "is_same_size", "sym_size", "sym_stride", "is_pinned", "movedim",
}  # fmt: skip
"""They launch nothing."""
NO_SCALARS = {
    "cat", "stack", "index_select", "gather", "scatter", "scatter_", "scatter_add_", "scatter_add", "mm", "addmm",
    "bmm", "baddbmm", "take", "searchsorted",
}  # fmt: skip
"""They take not even a CPU tensor without dimensions beside CUDA tensors."""


class Gpu(Tensor):
    """A tensor on the pretended GPU."""

    _cpu: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, cpu: Tensor) -> "Gpu":
        made = Tensor._make_wrapper_subclass(
            cls, cpu.size(), strides=cpu.stride(), storage_offset=cpu.storage_offset(), dtype=cpu.dtype, device=GPU
        )
        made._cpu = cpu
        return made

    def __init__(self, cpu: Tensor):
        pass

    def __repr__(self, **_: Any) -> str:
        return f"Gpu({self._cpu!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._cpu.detach().__reduce_ex__(protocol)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["_cpu"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> "Gpu":
        return Gpu(inner["_cpu"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise mixed("numpy() of a CUDA tensor", TypeError)

    def __array__(self, *_: Any) -> Any:
        return self.numpy()

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or GPU)

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_index(index), value)


class Pretended(TorchDispatchMode):
    """Within it, tensors can be made on the GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with LEDGER.device():
            leaves = tree_leaves((args, kwargs))
            devices = (leaf.type for leaf in leaves if isinstance(leaf, torch.device))
            if "cuda" in devices or any(isinstance(leaf, Gpu) for leaf in leaves):
                return compute(func, args, kwargs or {})
            return func(*args, **(kwargs or {}))


def _index(index: Any) -> Any:
    """Return an index whose lists and arrays are tensors: torch would ask the driver to copy them."""
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    if isinstance(index, range) or type(index).__module__ == "numpy" or (isinstance(index, list) and index):
        return torch.as_tensor(list(index) if isinstance(index, range) else index, device=GPU)
    return index


def mixed(text: str, kind: type[Exception] = RuntimeError) -> Exception:
    """Count a mix of devices; return what CUDA would raise."""
    text = f"{text} @ {line()}"
    LEDGER.mixes[text] += 1
    return kind(f"Expected all tensors to be on the same device: {text}")


def on_gpu(x: Any) -> bool:
    """Return whether a tensor or a device is the pretended GPU."""
    return isinstance(x, Gpu) if isinstance(x, Tensor) else x is not None and torch.device(x).type == "cuda"


def unwrap(x: Any) -> Any:
    """Return what is computed with."""
    return x._cpu if isinstance(x, Gpu) else x


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation that has to do with the GPU: refuse what CUDA refuses, count, compute on the CPU."""
    name = func._schema.name.split("::")[1]
    if name == "_to_copy":
        return _copied(func, args[0], **kwargs)
    if name == "copy_":
        _transfer(on_gpu(args[0]), on_gpu(args[1]), (*args, False)[2] or kwargs.get("non_blocking"))
        unwrap(args[0]).copy_(unwrap(args[1]))
        return args[0]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    known = {id(unwrap(tensor)): tensor for tensor in tensors}
    if any(map(on_gpu, tensors)):
        _check(name, args, tensors)
        if name in SYNCHRONISE or (func.name() == "aten::repeat_interleave.Tensor" and not kwargs.get("output_size")):
            LEDGER.sync(name)
    device = kwargs.get("device")
    result_on_gpu = on_gpu(device) if device is not None else any(map(on_gpu, tensors))
    if name not in VIEWS:
        LEDGER.launches[LEDGER.phase] += 1
    kernels = _kernels(name, args) if KERNELS and func.namespace == "transfer" else func
    replaced = {"device": CPU} if on_gpu(device) else {}
    plain = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    found = kernels(*tree_map(unwrap, args), **tree_map(unwrap, plain | replaced))

    def wrap(x: Any) -> Any:
        return x if not isinstance(x, Tensor) else known[id(x)] if id(x) in known else Gpu(x) if result_on_gpu else x

    return tree_map(wrap, found)


def _copied(func: Any, source: Tensor, *, device: Any = None, pin_memory: Any = None, **how: Any) -> Tensor:
    to_gpu = on_gpu(source if device is None else device)
    _transfer(to_gpu, on_gpu(source), how.get("non_blocking"))
    plain = unwrap(source)
    made = func(plain, **how)
    if made.numel() and made.data_ptr() == plain.data_ptr():
        made = made.clone()
    return Gpu(made) if to_gpu else made


def _transfer(to_gpu: bool, from_gpu: bool, non_blocking: Any) -> None:
    if to_gpu and from_gpu:
        LEDGER.launches[LEDGER.phase] += 1
    elif to_gpu != from_gpu and not non_blocking:
        LEDGER.sync("to the GPU" if to_gpu else "from the GPU")


def _check(name: str, args: Any, tensors: list[Tensor]) -> None:
    """Raise where CUDA refuses tensors of two devices."""
    if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"):
        where = on_gpu(args[0])
        for index in args[1]:
            if index is None:
                continue
            if where != on_gpu(index):
                if not where:
                    raise mixed("CPU tensor indexed by a CUDA tensor")
                LEDGER.sync("index from the CPU")
            elif index.dtype in (torch.bool, torch.uint8):
                LEDGER.sync("boolean index")
        if "put" in name and where != on_gpu(args[2]) and (args[2].ndim or not where):
            raise mixed("values put into a tensor of another device")
        return
    for tensor in tensors:
        if not on_gpu(tensor) and (tensor.ndim or name in NO_SCALARS):
            raise mixed(f"{name}: CPU tensor {tuple(tensor.shape)} {tensor.dtype} beside CUDA tensors")


def _kernels(name: str, args: Any) -> Any:
    """Return the fused kernels where the product would take them for tensors on a GPU, else the operator."""
    from backbones.kernels import operator

    backward = name.endswith("backward")
    kernels = operator._kernels_for(args[backward], args[2 + backward])
    LEDGER.kernels += kernels is not None
    return getattr(torch.ops.transfer, name) if kernels is None else kernels.backward if backward else kernels.forward
