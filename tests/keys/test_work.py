"""The least work that a key spells, counted by hand."""

from __future__ import annotations

import pytest

from warmup.core.errors import ProblemError
from warmup.core.roofline import Work
from warmup.keys.registry import KINDS, work_of

BF16 = "bf16 a=row b=col"


def test_work_is_the_products_and_each_tensor_once() -> None:
    """Operations are two for each multiplication; operands, bias and result are moved once."""
    mm, end = f"m=2 n=3 k=5 {BF16}", "| epilogue=none"
    eight = "m=2 n=3 k=5 f8_e4m3fn a=row b=col scale=f32[1],f32[1]"
    chain = "in=5,5 features=3 out=7 bf16 bias=111 via=mul(silu(p0),p1)"
    for key, dtype, flops, moved in (
        (f"mm {mm} out=bf16 | epilogue=relu", "bf16", 60, 2 * (10 + 15 + 6)),
        (f"addmm {mm} bias=1d out=f32 {end}", "bf16", 60, 2 * (10 + 15 + 3) + 4 * 6),
        (f"addmm {mm} bias=2d out=bf16 {end}", "bf16", 60, 2 * (10 + 15 + 6 + 6)),
        (f"bmm batch=4 {mm} out=bf16 {end}", "bf16", 240, 8 * (10 + 15 + 6)),
        (f"mm m=2 n=3 k=5 f32 a=row b=row out=f32 fp32=tf32 {end}", "tf32", 60, 4 * 31),
        (f"mm_plus_mm {mm} a2=row b2=row out=bf16 {end}", "bf16", 120, 2 * (2 * (10 + 15) + 6)),
        (f"scaled_mm {eight} out=bf16 {end}", "f8_e4m3fn", 60, 10 + 15 + 2 * 6),
        (f"pad mm {mm}", "bf16", 60, 2 * (10 + 15 + 6)),
        ("weight n m=2 in=5 features=3 bf16 bias=0", "bf16", 60, 2 * (15 + 2 * (5 + 3))),
        ("weight k m=2 features=3 out=5 bf16 bias=0", "bf16", 60, 2 * (15 + 2 * (3 + 5))),
        (f"weight chain m=2 {chain}", "bf16", 2 * 2 * 3 * 17, 2 * (17 * 3 + 2 * (5 + 7))),
    ):
        assert work_of(key) == Work(dtype, flops, moved), key


def test_a_range_has_the_work_of_its_upper_end() -> None:
    ranged = f"mm m=17..32 n=3 k=5 {BF16} out=bf16 | epilogue=none"
    assert work_of(ranged) == work_of(ranged.replace("17..32", "32"))
    padded = f"pad mm m=17..32 n=3 k=5 {BF16}"
    assert work_of(padded) == work_of(padded.replace("17..32", "32"))
    # Nothing is guessed for a size that has no bound.
    assert work_of(f"mm m=2.. n=3 k=5 {BF16} out=bf16 | epilogue=none") is None
    assert work_of("weight n m=2.. in=5 features=3 bf16 bias=0") is None


def test_generated_kernels_bound_their_bytes() -> None:
    """Sizes are rounded up to powers of two: 513 elements of one tensor at least."""
    key = "launch triton_poi_fused_add x=1024 args=*bf16,*f32,i32 source=3f2a9c0d41b7e865"
    work = work_of(key)
    assert work is not None
    assert (work.flops, work.moved, work.most_moved) == (None, 513 * 2, 2 * 1024 * 6)
    # A kernel that takes no tensor moves nothing that its key would say.
    assert work_of("launch triton_poi_fused x=1024 args=i32 source=3f2a9c0d41b7e865") is None
    # The narrowest buffer that is read has all elements, and at most all buffers, twice.
    start = "reduction sum x=100 r=64 hint=inner"
    work = work_of(f"{start} reads=bf16,f32 writes=bf16 body=3f2a9c0d41b7e865")
    assert work is not None
    assert (work.moved, work.most_moved) == (51 * 64 * 2, 2 * 100 * 64 * 8)
    assert work_of(f"{start} reads=none writes=bf16 body=3f2a9c0d41b7e865") is None
    # The operators of the region around a split may read and write each element once more.
    split = "split sum x=8 r=1048576 f32 out=f32 reads={} hint=inner rule=128 input=once"
    work = work_of(split.format("bf16,f32"))
    assert work == Work("", None, 8 * (1 << 20) * 6, most_moved=64 * 2 * 8 * (1 << 20) * 4)
    assert work_of(split.format("none")) is None


def test_every_kind_says_its_work_and_no_other_text_has_any() -> None:
    assert all(kind.work is not None for kind in KINDS.values())
    with pytest.raises(ProblemError):
        work_of("no key")
