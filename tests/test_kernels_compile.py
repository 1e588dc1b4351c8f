"""Every Triton kernel compiles for an H100 or H200 (sm_90), with the types that its caller passes; needs no GPU."""

import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest

import wager

triton: Any = pytest.importorskip("triton", reason="Triton is not installed; it comes with torch on a GPU")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton's interpreter takes the place of its compiler", allow_module_level=True)

I32, I64, F32, HALF = "*i32", "*i64", "*fp32", "*bf16"
MATCHING = {"RING": 65536, "K": 4, "K_BLOCK": 4}
DRAFT = [I32, "i32", I64, I32, I64, I32, I64, I64, I64, "i32", *[I32] * 7, "i32"]
DRAFTING = {**MATCHING, "MEMORY": 64, "RUN_BLOCK": 32, "RUNS": 17}
SCAN = [I32, "i32", I64, I32, I32, I32, I64, I64, "i32", "i32", *[I32] * 3]
SCANNING = {**MATCHING, "SHORTEST": 2, "LONGEST": 16, "BLOCK": 1024}
KEEP = [HALF, "i32", I32, I64, I64, I32, I64, I64, I32, HALF, I32, I64, I32]
KEPT = {"WINDOW": 32, "SIZE": 4096, "BLOCK": 1024}
REMEMBER = [I32, "i32", I32, I32, "i32", "i32", "i32", "i32", I32, I64, I64]
ATTEND = [HALF, I64, F32, *["i32"] * 6, "fp32"]
DTYPE = {"DTYPE": "bf16"}
ACCEPTING = {"SLOTS": 64, "READ": 0, "CHAIN": 6, "BRANCHES": 12, "READ_AT": 18, "CHAIN_AT": 19, "LAST": 20,
             "TOKENS": 21, "MOST": 16}  # fmt: skip
# module, kernel, types of its arguments, constants; the last two as the caller has them
KERNELS: list[tuple[str, str, list[str], dict[str, Any]]] = [
    ("vllm.lag_kernels", "keep", KEEP, {**KEPT, "EVERY": True}),
    ("vllm.lag_kernels", "keep", KEEP, {**KEPT, "EVERY": False}),
    ("vllm.match_kernels", "scan", SCAN, {**SCANNING, "FILL": True}),
    ("vllm.match_kernels", "scan", SCAN, {**SCANNING, "FILL": False}),
    ("vllm.match_kernels", "draft", DRAFT, {**DRAFTING, "STORED": False, "FILL": True, "BY_SLOT": True}),
    ("vllm.match_kernels", "draft", DRAFT, {**DRAFTING, "STORED": True, "FILL": False, "BY_SLOT": False}),
    ("vllm.match_kernels", "remember", REMEMBER, {"RING": 65536, "SLOTS": 256, "BLOCK": 1024, "ONE": True}),
    ("vllm.match_kernels", "remember", REMEMBER, {"RING": 65536, "SLOTS": 256, "BLOCK": 1024, "ONE": False}),
    ("vllm.retrieve_kernels", "retrieve", [I32, "i32", I64, I32, I32, I32, "i32", I32, "i32", I32, I32],
     {"SHORTEST": 2, "DEPTH": 16, "K": 4, "LOOK": 32}),
    ("vllm.retrieve_kernels", "retrieve", [I32, "i32", I64, I32, I32, I32, "i64", I32, "i64", I32, I32],
     {"SHORTEST": 2, "DEPTH": 16, "K": 4, "LOOK": 32}),
    ("models.kernels", "_norm", [HALF] * 4 + ["i32", "fp32"], {"ADD": True, "BLOCK": 1024}),
    ("models.kernels", "_rotate_store", [HALF, HALF, HALF, I64, *["i32"] * 4], {"HEAD": 64, "HALF": 32, **DTYPE}),
    ("models.kernels", "_attend", ATTEND, {"ROWS": 16, "HEAD": 64, "BLOCK": 64, "PARTS": 16, "WIDE": False, **DTYPE}),
    ("models.kernels", "_combine", [F32, HALF, "i32", "i32", "i32"], {"HEAD": 64, "PARTS": 16, **DTYPE}),
    ("models.kernels", "_gate", [HALF, HALF, HALF, "i32"], {"BLOCK": 1024}),
    ("eagle.kernels", "_beside", [I64, HALF, HALF, HALF, "i32", "i32"], {"BLOCK": 1024}),
    ("eagle.kernels", "_of_parts", [HALF, F32, I32, F32, F32, "i32"], {"COUNT": 4, "PART": 1024}),
    ("eagle.kernels", "_joined", [F32, I32, F32, F32, F32, I64, "i32"], {"COUNT": 4, "PARTS": 64, "BLOCK": 256}),
    ("eagle.kernels", "_best", [F32, I64, I64, I64, I64, F32], {"COUNT": 4, "BLOCK": 16}),
    ("eagle.round_kernels", "_rank", [F32, I32, "i32", "i32"], {"BLOCK": 512, "TILE": 64}),
    ("eagle.round_kernels", "_place", [I64, I64, I64, I32, I64, I64, *["i32"] * 3],
     {"BREADTH": 8, "ENTRIES": 64, "TILE": 64}),
    ("eagle.round_kernels", "_merge", [*[I64] * 3, "i32"], {"SLOTS": 64}),
    ("eagle.round_kernels", "_accept", [*[I64] * 5, *["i32"] * 3], {"TREE": True, "MERGED": True, **ACCEPTING}),
    ("eagle.round_kernels", "_accept", [*[I64] * 5, *["i32"] * 3], {"TREE": True, "MERGED": False, **ACCEPTING}),
    ("eagle.round_kernels", "_accept", [*[I64] * 5, *["i32"] * 3], {"TREE": False, "MERGED": False, **ACCEPTING}),
    ("eagle.round_kernels", "_move", [I64, I64], {"HEAD": 64, "BLOCK": 64, **DTYPE}),
]  # fmt: skip


def compiled(kernel: Any, types: list[str], constants: dict[str, Any]) -> str:
    """The kernel's PTX for sm_90; ptxas has assembled it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    known = {name: triton.language.bfloat16 if value == "bf16" else value for name, value in constants.items()}
    others = [name for name in kernel.arg_names if name not in known]
    signature = dict(zip(others, types, strict=True)) | dict.fromkeys(known, "constexpr")
    made = triton.compile(ASTSource(kernel, signature, known), target=GPUTarget("cuda", 90, 32))
    assert made.asm["cubin"]
    return str(made.asm["ptx"])


@pytest.mark.parametrize(("module", "name", "types", "constants"), KERNELS)
def test_a_kernel_compiles_for_sm_90(module: str, name: str, types: list[str], constants: dict[str, Any]) -> None:
    kernel = getattr(importlib.import_module(f"wager.{module}"), name)
    assert f".entry {name}" in compiled(kernel, types, constants)


def test_no_kernel_is_left_out() -> None:
    package = Path(wager.__file__).parent
    files = [path for path in package.rglob("*.py") if "@triton.jit" in path.read_text()]
    modules = {".".join(path.relative_to(package).with_suffix("").parts): path.read_text() for path in files}
    listed = {(module, name) for module, name, _, _ in KERNELS}
    assert set(modules) == {module for module, _ in listed}
    for module, source in modules.items():
        for name in re.findall(r"^@triton.jit.*\ndef (\w+)\(", source, re.MULTILINE):
            # a function that other kernels call is compiled with them
            assert (module, name) in listed or source.count(f"{name}(") > 1


def test_a_kernel_that_does_not_compile_is_seen() -> None:
    from wager.vllm.lag_kernels import keep

    with pytest.raises(Exception, match=r"(?i)pointer|type|invalid|unsupported"):
        compiled(keep, ["i32" if kind == I64 else kind for kind in KEEP], {**KEPT, "EVERY": True})
