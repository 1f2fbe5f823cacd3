"""Compiles the kernel for compute capability 9.0, without such a GPU, and fails where it would run slowly.

    python -m tests.backbones.kernels.translate

Matrix units of that generation are to be used, and no register is to be spilled to memory. Triton brings the assembler;
only running the result takes a GPU.
"""

import re
import subprocess
import tempfile
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from backbones.kernels import blocked, fused

POINTERS = ("x", "y", "u", "w", "dx", "out")
CASES = [("bf16", 2, (64, 64), h) for h in blocked.BUFFERED_FUNCTIONS]
CASES += [("bf16", 2, (128, 64), "relu"), ("bf16", 2, (256, 64), "relu"), ("fp32", 4, (128, 128), "relu")]
"""Type and its bytes, widths of keys and of values, which relative positions make differ, and h."""


def check(kind: str, widths: tuple[int, int], h: str, tile: fused.Tile, **passes: bool) -> None:
    """Compile the kernel of some passes as a GPU would run it, lengths being any."""
    kernel: Any = fused.rows_kernel
    constants = {"H": h, "SCALED": True, "EVEN": False, "PRECISION": "ieee", **passes}
    constants |= {"D": widths[0], "E": widths[1], "M": tile.rows, "J": tile.columns}
    signature, divisible = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("scale", "of_weights", "of_scores"):
            signature[name] = "fp32"
        else:
            signature[name] = f"*{kind}" if name in POINTERS else "i32"
            if name not in ("heads", "N", "L"):
                divisible[(place,)] = [["tt.divisibility", 16]]
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=divisible)
    how = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=how)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    what = f"{passes}, {h}, {kind}, {widths}"
    assert re.search(r"STACK:0\b", usage), f"{what} spills registers: {usage}"
    assert kind == "fp32" or "wgmma.mma_async" in made.asm["ptx"], what
    assert made.metadata.shared <= 227 * 1024, what


if __name__ == "__main__":
    for kind, size, widths, h in CASES:
        for out, slopes in ((True, False), (True, True), (False, True)):  # forward, for keys, for queries
            check(kind, widths, h, fused.TILES[size, max(widths)][0], OUT=out, SLOPES=slopes)
