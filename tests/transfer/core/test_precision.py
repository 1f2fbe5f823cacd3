from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support import context
from transfer.engine.device import choose_precisions, full_float32, scoring_precision, tf32_operations

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"precision": "bf16", "eval_precision": "fp32"}, ("bf16", "fp32")),
        ({"precision": "bf16", "eval_precision": "run"}, ("bf16", "bf16")),
        ({"eval_precision": "bf16"}, ("bf16", "bf16")),
    ],
)
def test_training_and_scoring_have_a_precision_each(said: dict[str, str], meant: tuple[str, str]) -> None:
    assert choose_precisions(SimpleNamespace(**said), CPU) == meant


def test_each_of_both_computes_in_its_own() -> None:
    rows, here = torch.randn(4, 4), context(precision="bf16", eval_precision="fp16")
    with here.autocast():
        assert (rows @ rows).dtype == torch.bfloat16
        with here.scoring():
            assert (rows @ rows).dtype == torch.float16
    with context(precision="bf16").autocast(), context(precision="bf16").scoring():
        assert (rows @ rows).dtype == torch.float32
    with context(precision="fp32").autocast():
        assert (rows @ rows).dtype == torch.float32


def test_scoring_in_fp32_is_float32_in_full_whatever_training_has_switched_on() -> None:
    rows, before = torch.randn(64, 512), torch.get_float32_matmul_precision()
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    try:
        torch.set_float32_matmul_precision("medium")  # TF32 on a GPU, bfloat16 on CPUs that multiply it
        outside = [backend.fp32_precision for backend in backends]
        with scoring_precision("fp32", CPU):
            assert {backend.fp32_precision for backend in backends} == {"ieee"}
            product = rows @ rows.T
        assert [backend.fp32_precision for backend in backends] == outside
    finally:
        torch.set_float32_matmul_precision(before)  # type: ignore[arg-type]
    exact = rows.double() @ rows.double().T
    assert (product - exact).abs().max() <= 512 * 2**-24 * exact.max()


@pytest.mark.parametrize("convolutions", [True, False])
@pytest.mark.parametrize("products", ["highest", "high", "medium"])
def test_a_network_may_read_the_older_switches(products: str, convolutions: bool) -> None:
    """torch raises where they contradict the newer ones."""

    def read() -> list[Any]:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=convolutions):
            within = torch.backends.cudnn.allow_tf32
        switches = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        return [within, *switches, torch.get_float32_matmul_precision(), tf32_operations(torch.device("cuda"))]

    try:
        torch.set_float32_matmul_precision(products)  # type: ignore[arg-type]
        torch.backends.cudnn.allow_tf32 = convolutions
        before = read()
        with full_float32():
            assert read() == [convolutions, False, False, "highest", "none"]
        assert read() == before
        assert before[2:4] == [products != "highest", products]
        assert ("convolutions" in before[4]) == convolutions, "torch's own default, which a record has to say"
        assert tf32_operations(CPU) is None
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
