"""Operand sets, references in higher precision, and the error of an output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from sample_trials import dense, make_trial

from warmup.core.rows import Rejection
from warmup.core.trial import Fill, TensorSpec, Trial, ViewSpec
from warmup.measuring import reference as module
from warmup.measuring.reference import (
    MAX_OPERAND_SETS,
    OperandSets,
    dtype_named,
    full_precision,
    judge_output,
    poison_of,
    reference_of,
)

CPU = torch.device("cpu")


def sets_of(trial: Trial, seed: int = 0, most: int = 3) -> OperandSets:
    return OperandSets(trial, CPU, seed, most)


def one_operand(spec: TensorSpec, *views: ViewSpec) -> OperandSets:
    return sets_of(make_trial(operands=(spec,), views=views, out=spec))


def test_values_follow_from_the_seed_and_the_set() -> None:
    """Of three sets of two operands, all six differ: a cache cannot know the next call's data."""
    sets = sets_of(make_trial())
    found = [tensor.flatten()[:100] for number in range(3) for tensor in sets.operands(number)]
    assert len({tuple(tensor.tolist()) for tensor in found}) == 6
    # The same seed gives the same operands, another seed other operands.
    first, same, other = (sets_of(make_trial(), seed).operands(1)[0] for seed in (7, 7, 8))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    # With three sets, call number three uses the first set.
    sets = sets_of(make_trial())
    pairs = zip(sets.operands(0), sets.operands(3), strict=True)
    assert [a.data_ptr() == b.data_ptr() for a, b in pairs] == [True, True]
    assert sets.out(0).data_ptr() == sets.out(3).data_ptr() != sets.out(1).data_ptr()


def test_views_are_of_their_operand_at_its_offset() -> None:
    """Templates get the base and add an offset themselves; library calls get it added."""
    sets = one_operand(
        TensorSpec((4, 6), (6, 1), 0, "float32"),
        ViewSpec(0, (6, 4), (1, 6), 0),
        ViewSpec(0, (2, 3), (6, 1), 8),
    )
    (operand,), (turned, part) = sets.operands(0), sets.views(0)
    assert torch.equal(turned, operand.t())
    assert torch.equal(part, operand[1:3, 2:5])
    spec = TensorSpec((4, 6), (6, 1), 5, "float32")
    sets = one_operand(spec, ViewSpec(0, (4, 6), (6, 1), 5))
    (operand,), (view,) = sets.operands(0), sets.views(0)
    assert (operand.storage_offset(), view.storage_offset()) == (0, 5)
    assert operand.untyped_storage().nbytes() == 4 * (5 + 24)
    assert sets.out(0, at_offset=True).data_ptr() - sets.out(0).data_ptr() == 5 * 4


def test_values_tell_errors() -> None:
    """As real data: floats around zero, no scale near zero, integers without an overflow."""
    for dtype in ("float32", "float16", "bfloat16", "float64", "float8_e4m3fn"):
        values = one_operand(dense(128, 64, dtype=dtype)).operands(0)[0].double()
        assert abs(values.mean().item()) < 0.1, dtype
        assert values.std().item() == pytest.approx(1, abs=0.1), dtype
    spec = TensorSpec((64, 32), (32, 1), 0, "float32", Fill.POSITIVE)
    assert one_operand(spec).operands(0)[0].min().item() >= 0.5
    for dtype in ("int32", "uint8", "bool"):
        values = one_operand(dense(64, 32, dtype=dtype)).operands(0)[0]
        assert (values.dtype, len(values.unique()) > 1) == (dtype_named(dtype), True)
        assert (values.long().min().item(), values.long().max().item() < 8) == (0, True), dtype
    values = one_operand(dense(64, 128, dtype="int8")).operands(0)[0].long()
    assert (values.min().item(), values.max().item(), len(values.unique())) == (-128, 127, 256)


def test_poison_covers_all_memory_of_every_output() -> None:
    """Memory before an offset and between rows is poisoned too, in every set."""
    for dtype in ("float32", "bfloat16", "float8_e4m3fn", "int32", "int8", "bool"):
        spec = TensorSpec((8, 16), (32, 1), 24, dtype)
        sets = sets_of(make_trial(operands=(dense(2, 2),), views=(), out=spec))
        sets.poison()
        flats = [sets.out(number).as_strided((spec.span,), (1,), 0) for number in range(3)]
        if spec.dtype.startswith(("float", "bfloat")):
            assert all(flat.float().isnan().all() for flat in flats), dtype
        else:
            assert all((flat == poison_of(flat.dtype)).all() for flat in flats), dtype


def test_memory_bounds_the_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sets as fit, at least one, and never more than requested or useful."""
    trial = make_trial(operands=(dense(100),), views=(), out=dense(50))
    counts = {}
    for room in (1, 1200, 1799, 10**9):
        monkeypatch.setattr(module, "operand_room", lambda _device, room=room: room)
        counts[room] = (sets_of(trial).count, sets_of(trial, most=MAX_OPERAND_SETS).count)
    assert counts == {1: (1, 1), 1200: (2, 2), 1799: (2, 2), 10**9: (3, MAX_OPERAND_SETS)}


Matrix = list[list[float]]
M, N, K = 3, 4, 5


def normal(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))).to(dtype)


def loops(a: Any, b: Any) -> Matrix:
    """Return the product of two matrices as nested lists, one element at a time."""
    return [[sum(row[k] * b[k][n] for k in range(len(b))) for n in range(len(b[0]))] for row in a]


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tensor(loops(a.double().tolist(), b.double().tolist()), dtype=torch.float64)


A, B, C, D = normal(M, K), normal(K, N), normal(M, 6), normal(6, N)
BATCHED = normal(2, M, K), normal(2, K, N)
BIAS, ROW_SCALES, COLUMN_SCALES = normal(N), normal(M, 1).abs(), normal(1, N).abs()
ONE_SCALE = torch.tensor(0.5)
BATCH_PRODUCT = torch.stack([product(*pair) for pair in zip(*BATCHED, strict=True)])
CASES: dict[str, tuple[str, Sequence[torch.Tensor], torch.Tensor]] = {
    "mm": ("mm", (A, B), product(A, B)),
    "bmm": ("bmm", BATCHED, BATCH_PRODUCT),
    "int_mm": ("int_mm", (A.to(torch.int8), B.to(torch.int8)), product(A.int(), B.int())),
    "addmm": ("addmm", (BIAS, A, B), 0.5 * BIAS + 2 * product(A, B)),
    "baddbmm": ("baddbmm", (BIAS, *BATCHED), 0.5 * BIAS + 2 * BATCH_PRODUCT),
    "mm_plus_mm": ("mm_plus_mm", (A, B, C, D), product(A, B) + product(C, D)),
    "scaled_mm, one scale each": ("scaled_mm", (A, B, ONE_SCALE, ONE_SCALE), product(A, B) / 4),
    "scaled_mm, scales by row and column": (
        "scaled_mm",
        (A, B, ROW_SCALES, COLUMN_SCALES),
        product(A, B) * ROW_SCALES * COLUMN_SCALES,
    ),
    "scaled_mm, bias": (
        "scaled_mm",
        (A, B, ROW_SCALES, ONE_SCALE, BIAS),
        product(A, B) * ROW_SCALES / 2 + BIAS,
    ),
}


def test_a_reference_is_what_a_plain_loop_gives() -> None:
    """Each op on small operands, with alpha 2 and beta 0.5 where it has them."""
    for case, (op, operands, expected) in CASES.items():
        found = reference_of(make_trial(op=op, alpha=2.0, beta=0.5), operands)
        assert found is not None, case
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-12, atol=1e-12)


def test_what_is_not_known_has_no_reference() -> None:
    for case, (op, operands) in {
        "other op": ("conv", (A, B)),
        "other operands": ("mm", (A, B, C)),
        "scaled in blocks": ("scaled_mm", (A, B, normal(M, 2).abs(), ONE_SCALE)),
        "scaled in blocks, b": ("scaled_mm", (A, B, ROW_SCALES, normal(2, N).abs())),
        "packed": ("mm", (A, B.to_mkldnn())),
    }.items():
        assert reference_of(make_trial(op=op), operands) is None, case


def test_precision_is_switched_back() -> None:
    """References are computed in full precision; the process's setting is restored."""
    for before in ("tf32", "ieee"):
        matmul = torch.backends.cuda.matmul
        own = matmul.fp32_precision
        matmul.fp32_precision = before
        try:
            reference_of(make_trial(), (A, B))
            assert matmul.fp32_precision == before
            with pytest.raises(RuntimeError):
                reference_of(make_trial(), (A, A))
            assert matmul.fp32_precision == before
        finally:
            matmul.fp32_precision = own


def test_a_scaled_product_is_dequantized_in_full_precision() -> None:
    """Inside, `torch._scaled_mm` is the product of what 8 bits stand for, whatever its operands."""
    for by_row in (False, True):
        a, b = normal(32, 64, dtype=torch.float8_e4m3fn), normal(48, 64, dtype=torch.float8_e4m3fn)
        scales = [normal(32, 1).abs(), normal(1, 48).abs()] if by_row else [ONE_SCALE, ONE_SCALE]
        exact = product(a.float(), b.float().t()) * scales[0] * scales[1]
        with full_precision():
            found = torch._scaled_mm(a.float(), b.t(), *scales, out_dtype=torch.bfloat16)
            lowered = torch.ops.aten._scaled_mm.default(
                a, b.t(), *scales, None, None, torch.bfloat16
            )
        assert (found.dtype, lowered.dtype) == (torch.float32, torch.float32), by_row
        torch.testing.assert_close(found.double(), exact.double(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(lowered, found)
        if not by_row:  # on the CPU torch 2.11 multiplies with one scale for each factor only
            rounded = torch._scaled_mm(a, b.t(), *scales, out_dtype=torch.bfloat16)
            assert judge_output(rounded, exact, 2e-2)[1] is None, by_row


def test_scales_of_blocks_have_no_full_precision() -> None:
    """A model that scales blocks is not run in higher precision, instead of wrongly."""
    with full_precision(), pytest.raises(NotImplementedError, match="blocks"):
        torch._scaled_mm(A, B, normal(M, 2).abs(), ONE_SCALE)


EXACT = torch.full((10, 10), 2.0, dtype=torch.float64)


def changed(value: float, count: int = 1) -> torch.Tensor:
    out = EXACT.float()
    out.view(-1)[:count] = value
    return out


def test_a_result_is_judged_as_a_whole_and_by_element() -> None:
    """The norm may be off by the tolerance, an element by ten times that; the worst is reported."""
    for case, (out, tolerance, error, reason) in {
        "equal": (EXACT.float(), 0.0, 0.0, None),
        "one": (changed(2.02), 1e-2, 0.01, None),
        "all": (changed(2.02, 100), 1e-2, 0.01, None),
        "all, too far": (changed(2.02, 100), 9e-3, 0.01, Rejection.WRONG),
        "one, far": (changed(2.18), 1e-2, 0.09, None),
        "one, too far": (changed(2.24), 1.1e-2, 0.12, Rejection.WRONG),
        "nan": (changed(float("nan")), 1e9, float("inf"), Rejection.UNWRITTEN),
        "infinite": (changed(float("-inf")), 1e9, float("inf"), Rejection.WRONG),
    }.items():
        found, rejection, said = judge_output(out, EXACT, tolerance)
        assert (found, rejection, bool(said)) == (
            pytest.approx(error, rel=1e-5),
            reason,
            bool(reason),
        ), case


def test_an_element_in_8_bits_may_be_a_unit_of_rounding_off() -> None:
    """The largest of a heavy tail are rounded by more than a share of the RMS; fp8 saturates.

    Of an int8 result, beyond the unit, ten tolerances times an RMS of 5 are allowed, which is 1.
    """
    for largest, value, reason in (
        (30.0, 30.0, None),
        (30.0, 32.0, None),
        (30.0, 40.0, Rejection.WRONG),
        (1000.0, 448.0, None),
        (1000.0, 240.0, Rejection.WRONG),
    ):
        exact = normal(64, 64).double()
        exact[0, 0] = largest
        out = exact.clamp(-448, 448).to(torch.float8_e4m3fn)
        out[0, 0] = value
        assert judge_output(out, exact, 5e-2)[1] is reason, (largest, value)
    for off, reason in ((1, None), (2, None), (3, Rejection.WRONG)):
        exact = torch.full((64, 64), 5, dtype=torch.int8)
        out = exact.clone()
        out[0, 0] += off
        assert judge_output(out, exact, 2e-2)[1] is reason, off


def test_rows_and_columns_with_large_scales_are_as_inexact_as_they_are_large() -> None:
    """Products in fp8 that add up fast are 0.3 % off, a few elements by more of the whole's RMS."""
    for wrong, reason in ((0.0, None), (0.5, Rejection.WRONG)):
        scales = normal(512, 1).double() * normal(1, 1024).double()
        exact = normal(512, 1024).double() * scales
        error = normal(512, 1024).double() * 3e-3 * scales
        largest = int(scales.abs().argmax())
        error.view(-1)[largest] += wrong * scales.abs().max()
        rms, tolerance = exact.norm() / exact.numel() ** 0.5, 4e-3
        assert error.abs().max() > 10 * tolerance * rms, (wrong, reason)
        assert judge_output(exact + error, exact, tolerance)[1] is reason, (wrong, reason)


def test_a_product_that_ends_by_quantizing_is_right_where_rounding_moves_a_unit() -> None:
    """A row's largest is 127 and most of the row much smaller: a unit is 0.2 RMS (H100, H200)."""
    scales = normal(32, 1) * normal(1, 14336) ** 2
    wide = torch.nn.functional.relu(normal(32, 14336) * scales) * normal(32, 14336)
    exact, out = quantized(wide), quantized(wide.bfloat16().float())
    assert (1 / exact.double().square().mean().sqrt()) > 0.2
    assert (out != exact).any()
    assert judge_output(out, exact, 2e-2)[1] is None


def quantized(values: torch.Tensor) -> torch.Tensor:
    return (values * (127 / values.abs().amax(-1, keepdim=True))).round().to(torch.int8)


def test_empty_and_zero_results_are_judged() -> None:
    """Without a division by zero."""
    nothing = torch.empty(0, 4)
    assert judge_output(nothing, nothing.double(), 0.0) == (0.0, None, "")
    for value, reason in ((0.0, None), (0.5, Rejection.WRONG)):
        out = torch.full((4, 4), value)
        assert judge_output(out, torch.zeros(4, 4, dtype=torch.float64), 1e-2)[1] is reason, value


def test_a_right_output_is_judged_without_a_copy_wider_than_the_reference() -> None:
    """Outputs may be gigabytes; adding up truth values would copy them as int64."""
    reference = normal(64, 64)
    out = reference.to(torch.bfloat16)
    with torch.profiler.profile(profile_memory=True) as profiled:
        judge_output(out, reference, tolerance=1e-2)
    allocated = [event.self_cpu_memory_usage for event in profiled.events() or ()]
    assert max(allocated) == reference.nbytes
