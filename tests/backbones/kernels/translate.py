"""Compiles the kernels for a GPU that need not be there, and prints what came of each as JSON.

    python -m tests.backbones.kernels.translate CAPABILITY HEAD_DIM TYPE [h ...]     (e.g. 90 64 bf16 relu)

128x64 stands for queries and keys of 128 beside values of 64, as relative positions make them.

Triton brings the assembler; only running the result takes a GPU.
"""

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from backbones.kernels import blocked, fused

POINTERS = ("q", "k", "v", "g", "out", "dq", "dk", "dv")
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def translated(kernel: Any, capability: int, widths: list[int], kind: str, h: str, tile: fused.Tile) -> dict[str, Any]:
    """Registers, shared memory and matrix instructions of a kernel as a GPU would run it, lengths being any."""
    constants = {"H": h, "SCALED": True, "EVEN": False, "PRECISION": "ieee"}
    constants |= {"D": widths[0], "E": widths[-1], "M": tile.rows, "J": tile.columns}
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
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=how)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    return {
        "kernel": kernel.fn.__name__,
        "h": h,
        "registers": int(found[1]),
        "spilled_bytes": int(found[2]),
        "shared_bytes": made.metadata.shared,
        "wgmma": made.asm["ptx"].count("wgmma.mma_async"),
    }


def main() -> None:
    capability, widths, kind = int(sys.argv[1]), [int(width) for width in sys.argv[2].split("x")], sys.argv[3]
    tile = fused.TILES[BYTES[kind], max(widths)][0]
    kernels = (fused.forward_kernel, fused.keys_kernel, fused.queries_kernel)
    names = sys.argv[4:] or blocked.SCORE_FUNCTIONS
    found = [translated(kernel, capability, widths, kind, h, tile) for kernel in kernels for h in names]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
