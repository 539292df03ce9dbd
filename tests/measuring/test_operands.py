"""Operand sets: random, different, within the memory limit; views share their operand's memory."""

from __future__ import annotations

import pytest
import torch
from sample_trials import dense, make_trial

from warmup.core.trial import Fill, TensorSpec, Trial, ViewSpec
from warmup.measuring import reference as operands
from warmup.measuring.reference import MAX_OPERAND_SETS, OperandSets, dtype_named, poison_of

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


def test_a_view_is_of_its_operand() -> None:
    """Templates and library calls use the same memory, also with other strides."""
    sets = one_operand(
        TensorSpec((4, 6), (6, 1), 0, "float32"),
        ViewSpec(0, (6, 4), (1, 6), 0),
        ViewSpec(0, (2, 3), (6, 1), 8),
    )
    (operand,), (turned, part) = sets.operands(0), sets.views(0)
    assert torch.equal(turned, operand.t())
    assert torch.equal(part, operand[1:3, 2:5])
    part.zero_()
    assert operand[1:3, 2:5].count_nonzero() == 0


def test_an_operand_at_an_offset_has_memory_before_it() -> None:
    """Templates get the base and add the offset themselves; library calls get it added."""
    spec = TensorSpec((4, 6), (6, 1), 5, "float32")
    sets = one_operand(spec, ViewSpec(0, (4, 6), (6, 1), 5))
    (operand,), (view,) = sets.operands(0), sets.views(0)
    assert (operand.storage_offset(), view.storage_offset()) == (0, 5)
    assert operand.untyped_storage().nbytes() == 4 * (5 + 24)


def test_an_output_at_an_offset_is_given_as_operands_are() -> None:
    """The base without, and the same memory with the offset."""
    sets = sets_of(make_trial(out=dense(256, 128, offset=32)))
    base, shifted = sets.out(0), sets.out(0, at_offset=True)
    assert shifted.data_ptr() - base.data_ptr() == 32 * 4
    assert (tuple(shifted.shape), shifted.dtype) == ((256, 128), torch.float32)


def test_floats_are_normal() -> None:
    """Around zero and of both signs, as real data is: constant data would run faster."""
    for dtype in ("float32", "float16", "bfloat16", "float64", "float8_e4m3fn"):
        sets = one_operand(dense(128, 64, dtype=dtype))
        values = sets.operands(0)[0].double()
        assert abs(values.mean().item()) < 0.1, dtype
        assert values.std().item() == pytest.approx(1, abs=0.1), dtype


def test_scales_and_integers_have_values_that_tell_errors() -> None:
    """No scale is near zero, where a result would not depend on its factors."""
    spec = TensorSpec((64, 32), (32, 1), 0, "float32", Fill.POSITIVE)
    assert one_operand(spec).operands(0)[0].min().item() >= 0.5
    # Sums of their products do not overflow, and the values differ.
    for dtype in ("int32", "uint8", "bool"):
        values = one_operand(dense(64, 32, dtype=dtype)).operands(0)[0]
        assert (values.dtype, len(values.unique()) > 1) == (dtype_named(dtype), True)
        assert (values.long().min().item(), values.long().max().item() < 8) == (0, True), dtype
    # An int8 operand takes every value of its dtype, and a product of K 131071 fits int32.
    values = one_operand(dense(64, 128, dtype="int8")).operands(0)[0].long()
    assert (values.min().item(), values.max().item(), len(values.unique())) == (-128, 127, 256)
    assert 128 * 128 * (2**17 - 1) < 2**31


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
        monkeypatch.setattr(operands, "operand_room", lambda _device, room=room: room)
        counts[room] = (sets_of(trial).count, sets_of(trial, most=MAX_OPERAND_SETS).count)
    assert counts == {1: (1, 1), 1200: (2, 2), 1799: (2, 2), 10**9: (3, MAX_OPERAND_SETS)}
