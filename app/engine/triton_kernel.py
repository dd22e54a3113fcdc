"""One small kernel in Triton's language. Importing this imports Triton."""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-untyped]
from triton import language as tl
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

BLOCK = 128
_WARP = 32  # threads, on every device of NVIDIA
_POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32"}


# Triton compiles this source, and knows no names of Python's typing.
@triton.jit  # type: ignore[untyped-decorator]
def axpb(source, target, n, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001, N803
    """target = 2 * source + 1, of n elements."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(target + at, tl.load(source + at, mask=inside) * 2 + 1, mask=inside)


def launch(source: Any, target: Any) -> None:
    """Run it on the device where both tensors lie; they are contiguous and of one size."""
    n = source.numel()
    axpb[(triton.cdiv(n, BLOCK),)](source, target, n, BLOCK=BLOCK)


def compiled(capability: tuple[int, int], dtype: str) -> dict[str, Any]:
    """Compile it for a device that need not be here; what each step of the compiler made."""
    pointer = _POINTERS[dtype]
    signature = {"source": pointer, "target": pointer, "n": "i32", "BLOCK": "constexpr"}
    made = triton.compile(
        ASTSource(fn=axpb, signature=signature, constexprs={"BLOCK": BLOCK}),
        target=GPUTarget("cuda", 10 * capability[0] + capability[1], _WARP),
    )
    return dict(made.asm)
