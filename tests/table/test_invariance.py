"""`RowClasses` chooses a digest for each weight; `Invariance` says what a table promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from sample_tables import make_key, make_outcome, make_row, make_table

from warmup.core.errors import TableMergeError
from warmup.core.rows import Family, Row, Winner
from warmup.core.trial import Outcome
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM
from warmup.table.codec import decode, encode
from warmup.table.invariance import RowClasses, can_hold, invariance_of
from warmup.table.merge import combine, merge
from warmup.table.schema import Table

FEW, MANY, RANGE = make_key(1), make_key(2048), make_key("2..64")
LIBRARY = Winner(Family.EXTERN, "aten::addmm")


def outcomes(**times_us: float) -> list[Outcome]:
    return [
        make_outcome(Winner(Family.TEMPLATE, bits), time_us, bits=bits)
        for bits, time_us in times_us.items()
    ]


def row_with(bits: str | None) -> Row:
    row = make_row()
    return replace(row, evidence=replace(row.evidence, bits=bits))


def invariant(rows: Mapping[str, Row]) -> Table:
    return make_table(rows, policy=replace(make_table().policy, invariant=True))


def test_a_weight_is_a_key_without_its_rows() -> None:
    """GEMMs of other sizes, dtypes or ops have other weights; on a CPU so have other epilogues."""
    assert GEMM.weight is not None
    alike = [FEW, MANY, RANGE, make_key(7, epilogue="add(bf16[7,1280])")]
    assert {GEMM.weight(key) for key in alike} == {
        "addmm n=1280 k=3420 bf16 b=col bias=1d out=bf16"
    }
    assert GEMM.weight(make_key(7, n=64)) != GEMM.weight(FEW)
    batched = "bmm batch={0} m={1} n=64 k=64 bf16 a=row@{0} b=row@4096 out=bf16 | epilogue=none"
    assert GEMM.weight(batched.format(8, 16)) == GEMM.weight(batched.format(32, 1))
    scaled = "scaled_mm m={0} n=64 k=64 f8_e4m3fn a=row b=col scale=f32[{0},1]:f32[1,64] out=bf16"
    spelled = {GEMM.weight(f"{scaled.format(m)} | epilogue=none") for m in (16, 2048)}
    assert len(spelled) == 1
    sizes = "w=4x3x2x2 stride=2 padding=0 groups=1"
    convolution = f"convolution x={{0}}x3x8x8 {sizes} f32 a={{1}} b=first out={{1}}"
    given = [convolution.format(1, "first"), convolution.format(64, "last")]
    assert CONVOLUTION.weight is not None
    assert {CONVOLUTION.weight(key) for key in given} == {
        "convolution x=x3x8x8 w=4x3x2x2 stride=2 padding=0 groups=1 f32 b=first"
    }
    linear = "linear_unary m={0} n=64 k=64 f32 a=row b=packed out=f32 | epilogue={1}"
    assert GEMM.weight(linear.format(1, "relu")) == GEMM.weight(linear.format(9, "relu"))
    assert GEMM.weight(linear.format(1, "relu")) != GEMM.weight(linear.format(1, "none"))


def test_the_digest_with_the_least_total_time_is_chosen() -> None:
    """Of those that every bucket has; a table's own digests come first."""
    seen = (FEW, outcomes(a=9.0, b=10.0, c=1.0)), (MANY, outcomes(a=50.0, b=40.0, d=1.0))
    for fixed, expected in (({}, "b"), ({make_key(4): row_with("a")}, "a")):
        classes = RowClasses()
        classes.fix(fixed)
        for key, found in seen:
            classes.note(key, found)
        classes.choose()
        assert {classes.of(key, found) for key, found in seen} == {expected}, fixed


def test_without_a_survey_the_first_bucket_decides() -> None:
    classes = RowClasses()
    assert classes.of(FEW, outcomes(a=9.0, c=1.0)) == "c"
    assert classes.of(MANY, outcomes(a=1.0)) == "c"
    assert classes.of(make_key(1, n=64), [make_outcome(LIBRARY, 1.0)]) is None


def test_the_library_holds_no_range() -> None:
    """It chooses its kernel by the number of rows."""
    classes = RowClasses()
    library = make_outcome(LIBRARY, 1.0, bits="a")
    assert (can_hold(FEW, LIBRARY), can_hold(RANGE, LIBRARY)) == (True, False)
    assert classes.of(RANGE, [library, *outcomes(b=2.0)]) == "b"


def test_a_table_says_what_it_promises() -> None:
    """Weights with one digest, those that broke it, and rows of kinds that have none."""
    whole = invariant({FEW: row_with("0" * 16), MANY: row_with("0" * 16)})
    assert str(invariance_of(whole)) == (
        "1 weight with one digest each (addmm 1); not promised: decisions without a row"
    )
    assert invariance_of(make_table()) is None
    for other in ("1" * 16, None):
        promise = invariance_of(invariant({FEW: row_with("0" * 16), MANY: row_with(other)}))
        assert promise is not None
        assert (promise.weights, len(promise.broken)) == ({}, 1), other
    assert decode(encode(whole), "t.json") == whole


def test_a_merge_keeps_the_promise_or_is_refused() -> None:
    few, same, other = (
        invariant({key: row_with(bits * 16)})
        for key, bits in ((FEW, "0"), (MANY, "0"), (MANY, "1"))
    )
    promise = invariance_of(merge(few, same))
    assert promise is not None
    assert promise.broken == ()
    with pytest.raises(TableMergeError, match="several digests"):
        merge(few, other)
    with pytest.raises(TableMergeError, match="policy invariant: True and False"):
        merge(few, make_table({MANY: row_with("0" * 16)}))
    assert combine([few, same])[0].policy.invariant
    assert not combine([few, make_table({MANY: make_row()})])[0].policy.invariant
