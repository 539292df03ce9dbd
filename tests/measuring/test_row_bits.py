"""The digest of a row: candidates that add up a row in one order share it, whatever the rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from sample_trials import dense, make_trial

from warmup.core.rows import Family, Rejection, Winner
from warmup.core.trial import Candidate, Operands, Region, ViewSpec
from warmup.measuring.reference import OperandSets
from warmup.measuring.row_bits import Probe, bits_of_rows, fill_samples
from warmup.measuring.trial import run_trial

K, N = 64, 24
CPU = torch.device("cpu")
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def by_chunks(size: int, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    out.zero_()
    for row, result in zip(a, out, strict=True):
        for start in range(0, K, size):
            chunk = row[start : start + size, None] * b[start : start + size]
            result.add_(chunk.sum(0))


def by_number_of_rows(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    by_chunks(8 if len(a) < 16 else 32, a, b, out)


def by_position(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    by_chunks(8, a[:2], b, out[:2])
    by_chunks(32, a[2:], b, out[2:])


def with_neighbours(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    by_chunks(8, a, b, out)
    out += 0 * out[min(1, len(out) - 1)]  # NaN where that row is


KERNELS: dict[str, Kernel] = {
    "mm": partial(by_chunks, 8),
    "chunks_of_32": partial(by_chunks, 32),
    "by_number_of_rows": by_number_of_rows,
    "by_position": by_position,
    "with_neighbours": with_neighbours,
}


def call(candidate: Candidate, sets: Operands) -> Callable[[int], object]:
    kernel = KERNELS[candidate.winner.uid.removeprefix("aten::")]
    return lambda number: kernel(*sets.views(number), sets.out(number))


def digests_at(m: int) -> dict[str, str | None]:
    a, b = dense(m, K), dense(K, N)
    trial = make_trial(
        operands=(a, b),
        views=(ViewSpec(0, a.sizes, a.strides, 0), ViewSpec(1, b.sizes, b.strides, 0)),
        out=dense(m, N),
        candidates=tuple(Candidate(Winner(Family.EXTERN, f"aten::{name}")) for name in KERNELS),
        notes_bits=True,
        only_screens=True,
    )

    outcomes = run_trial(trial, partial(OperandSets, trial, CPU), call)
    assert all(one.time_us for one in outcomes)
    return {one.winner.uid.removeprefix("aten::"): one.bits for one in outcomes}


def test_a_digest_is_that_of_the_order_of_a_sum() -> None:
    """One order has one digest for every number of rows, and another order another one."""
    few, some, many = digests_at(1), digests_at(5), digests_at(32)
    for name in ("mm", "chunks_of_32"):
        assert few[name] == some[name] == many[name] is not None, name
    assert few["mm"] != few["chunks_of_32"]
    assert few["by_number_of_rows"] == some["by_number_of_rows"] == few["mm"]
    assert many["by_number_of_rows"] == many["chunks_of_32"]


def test_what_is_fused_must_have_the_bits_of_a_kernel_of_its_own() -> None:
    """In a region; where the library is barred the first other kernel that is not fused decides."""
    a, b = dense(4, K), dense(K, N)
    library, other, *fused = (
        Winner(Family.EXTERN if way is None else Family.TEMPLATE, f"aten::{name}", fused=way)
        for name, way in (
            ("mm", None),
            ("chunks_of_32", False),
            ("mm", True),
            ("chunks_of_32", True),
        )
    )
    for is_barred, rejected in ((False, fused[1]), (True, fused[0])):
        trial = make_trial(
            operands=(a, b),
            views=(ViewSpec(0, a.sizes, a.strides, 0), ViewSpec(1, b.sizes, b.strides, 0)),
            out=dense(4, N),
            candidates=tuple(map(Candidate, (library, *fused, other))),
            library=library,
            region=Region(inputs=(), steps=(), outputs=(), flops=(1,)),
            notes_bits=True,
            bars_library=is_barred,
            only_screens=True,
        )
        outcomes = run_trial(trial, partial(OperandSets, trial, CPU), call)
        found = {one.winner for one in outcomes if one.rejection is Rejection.WRONG}
        assert found == {rejected}, is_barred


def test_rows_that_differ_by_place_or_neighbours_have_no_digest() -> None:
    found = digests_at(5)
    assert (found["by_position"], found["with_neighbours"]) == (None, None)


@pytest.mark.parametrize(
    ("op", "shapes", "shared"),
    [
        ("mm", lambda m: [(m, K), (K, N)], [1]),
        ("addmm", lambda m: [(m, N), (m, K), (K, N)], [2]),
        ("baddbmm", lambda m: [(3, m, N), (3, m, K), (3, K, N)], [2]),
        ("scaled_mm", lambda m: [(m, K), (K, N), (m, 1), (1, N)], [1, 3]),
    ],
)
def test_operands_have_equal_rows_and_the_values_of_any_number_of_rows(
    op: str, shapes: Any, shared: list[int]
) -> None:
    """Shared operands are the same for every number of rows, and other rows leave them alone."""
    filled: dict[int, list[torch.Tensor]] = {}
    for m in (1, 6):
        specs = [dense(*sizes) for sizes in shapes(m)]
        views = tuple(ViewSpec(i, one.sizes, one.strides, 0) for i, one in enumerate(specs))
        trial = make_trial(op=op, operands=tuple(specs), views=views)
        sets = OperandSets(trial, CPU, 7, 1)
        probe = Probe(op, sets)
        probe.fill()
        filled[m] = [view.clone() for view in sets.views(0)]
        assert probe.disturb() is (m > 1)
        for number, (before, after) in enumerate(zip(filled[m], sets.views(0), strict=True)):
            kept = slice(None) if number in shared else slice(None, None, 2)
            assert torch.equal(before[..., kept, :], after[..., kept, :]), (op, m, number)
    for number, (one, many) in enumerate(zip(filled[1], filled[6], strict=True)):
        expected = one if number in shared else one.expand(many.shape)
        assert torch.equal(many, expected), (op, number)


def test_fixed_operands_keep_their_values() -> None:
    """They are weights of the model."""
    sets = OperandSets(make_trial(), CPU, 7, 1)
    sets.fixed = frozenset({1})
    before = sets.views(0)[1].clone()
    Probe("mm", sets).fill()
    assert torch.equal(sets.views(0)[1], before)


def test_a_vector_has_no_rows() -> None:
    assert bits_of_rows(torch.ones(4)) is None
    assert bits_of_rows(torch.ones(0, 4)) is None
    assert bits_of_rows(torch.tensor([[0.0], [-0.0]])) is None


def test_samples_of_a_probe_are_equal_whatever_their_number() -> None:
    """So are the weights; in every second channel of the output the products cancel."""
    filled = []
    for batch in (1, 6):
        x, w = torch.empty(batch, 4, 6, 6), torch.empty(3, 4, 2, 2)
        fill_samples(x, w)
        assert torch.equal(x, x[:1].expand(x.shape)), batch
        filled.append((x[0], w))
    (one, w), (many, same) = filled
    assert torch.equal(one, many)
    assert torch.equal(w, same)
    exact = torch.conv2d(one[None].double(), w.double()).abs().amax((0, 2, 3))
    assert exact[0] < 1e-9 < exact[1]
