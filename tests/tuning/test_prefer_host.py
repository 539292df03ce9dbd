"""`prefer_host`: winners for the host stay where they gain, with a bucket that only pretends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_tables import make_key, make_row, make_table

from warmup.core.device import CallCost
from warmup.core.errors import BuildError
from warmup.core.method import Launch, Method
from warmup.core.rows import Family, Row, Timing, Tuned, Winner
from warmup.models.outputs import WideRun
from warmup.table.store import read
from warmup.tuning.bucket_compiler import BucketCompiler, ServedBucket
from warmup.tuning.output_check import OutputCheck
from warmup.tuning.progress import Progress
from warmup.tuning.report import Observer
from warmup.tuning.session import prefer_host

EXACT = torch.tensor([3.0, 4.0])
CHEAP = Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 16),), "0123abcd")
BEFORE = CallCost(host_us=120.0, device_us=30.0)


class _Lines(Observer):
    """Keeps the lines about winners for the host."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def host_preferred(self, line: str) -> None:
        self.lines.append(line)


@dataclass
class _Tuner:
    method: Method = field(default_factory=Method)


@dataclass
class _Compiler:
    progress: Progress
    tuner: _Tuner = field(default_factory=_Tuner)


@dataclass
class _Run:
    """A bucket that gives ``output`` at ``cost`` when it is served again; None: it fails."""

    compiler: _Compiler
    key: str
    cost: CallCost
    output: torch.Tensor | None = None
    error: BaseException | None = None
    name: str = "seqlen=16"

    def served(self, output: torch.Tensor, cost: CallCost) -> ServedBucket:
        return ServedBucket(
            keys=(self.key,), outputs=[output], uncovered={}, cost=cost, counts={self.key: 1}
        )

    def tune(self) -> ServedBucket:
        if self.output is None:
            raise BuildError("bucket seqlen=16: compiling failed")
        if self.error is not None:
            raise self.error
        progress = self.compiler.progress
        assert progress.rows[self.key].winner == CHEAP
        new = replace(progress.tuned[0], key=self.key.replace("m=16", "m=17"))
        progress.save(new)  # of a kernel that only these winners have
        return self.served(self.output, self.cost)


def _check() -> OutputCheck:
    return OutputCheck(
        eager=[EXACT], floors={"f32": 1e-3}, run_wide=lambda: WideRun([EXACT], "float64")
    )


def _measured(key: str, row: Row) -> Tuned:
    """Return a problem that *row* won, with `CHEAP` as a rival that the host enqueues faster."""
    timings = (
        Timing(row.winner, 10.0, host_us=40.0),
        Timing(CHEAP, 12.0, host_us=7.0, spread=0.01),
    )
    return Tuned(key, row, timings)


Try = Callable[..., tuple[Row, list[str]]]


@pytest.fixture
def try_host(make_progress: Callable[..., Progress]) -> Try:
    """``try_host(**run)``: the row on disk afterwards, and the lines that were said."""

    def make(launch: Launch = Launch.EAGER, fixed: bool = False, **changes: Any) -> Any:
        key, lines = make_key(16), _Lines()
        row = make_row()
        row = replace(row, evidence=replace(row.evidence, host_us=40.0, time_us=10.0))
        progress = make_progress(make_table({key: row}), observer=lines)
        progress.tuned.append(_measured(key, row))
        run: Any = _Run(
            _Compiler(progress, _Tuner(Method(launch=launch))),
            key,
            **{"cost": CallCost(87.0, 32.0), "output": EXACT, **changes},
        )
        check = _check()
        served = run.served(EXACT, BEFORE)
        judgement = check.compare(served.outputs)
        prefer_host(run, served, check, judgement, {key} if fixed else ())
        found = read(progress.path).rows[key]
        assert progress.rows[key] == found
        assert progress.tuned[0].row == found
        is_kept = bool(lines.lines) and "not kept" not in lines.lines[0]
        assert len(read(progress.path).rows) == len(progress.tuned) == (2 if is_kept else 1)
        return found, lines.lines

    return make


def test_a_faster_call_keeps_its_winners(try_host: Try) -> None:
    """The table has the winner that is enqueued faster, and the build says what it gains."""
    row, lines = try_host()
    assert row.winner == CHEAP
    assert lines == ["seqlen=16: 1 winner for the host: a call took 87.0 us, 120.0 us before"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cost": CallCost(119.0, 32.0)}, "a call took 119.0 us, 120.0 us before"),
        ({"cost": CallCost(80.0, 125.0)}, "a call took 125.0 us, 120.0 us before"),
        ({"output": EXACT * 2}, "the output is"),
        ({"output": None}, "compiling failed"),
    ],
)
def test_winners_that_gain_nothing_are_taken_back(
    try_host: Try, changes: dict[str, Any], reason: str
) -> None:
    """So are those with which the output is wrong or the bucket fails; the reason is said."""
    row, lines = try_host(**changes)
    assert row.winner != CHEAP
    (line,) = lines
    assert "tried and not kept" in line
    assert reason in line


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no outputs")])
def test_an_interrupted_trial_is_taken_back(
    try_host: Try, tmp_path: Path, error: BaseException
) -> None:
    """No row is left whose winner is slower on the device and gained nothing that was measured."""
    with pytest.raises(type(error)):
        try_host(error=error)
    (path,) = tmp_path.rglob("*.json")
    (row,) = read(path).rows.values()
    assert row.winner != CHEAP


@pytest.mark.parametrize("changes", [{"launch": Launch.CUDAGRAPH}, {"fixed": True}])
def test_nothing_is_tried_where_the_host_does_not_count(
    try_host: Try, changes: dict[str, Any]
) -> None:
    """As with CUDA graphs, and for rows with which another bucket was measured."""
    row, lines = try_host(**changes)
    assert row.winner != CHEAP
    assert lines == []


PADDED = Winner(Family.PAD, "padded")
AS_IS = Winner(Family.PAD, "as_is")
NOT_KEPT = "seqlen=16: 1 pad decision for the host, tried and not kept"
PRODUCTS = {PADDED: 1088, AS_IS: 1083}  # columns of the product


@dataclass
class _PadRun:
    """A bucket whose pad decision says which product it has; `host_us` by the decision."""

    compiler: _Compiler
    pad_key: str
    product_key: Callable[[int], str]
    host_us: dict[Winner, float]
    row: Row
    name: str = "seqlen=16"

    def tune(self) -> ServedBucket:
        progress = self.compiler.progress
        decided = progress.rows[self.pad_key].winner
        product = self.product_key(PRODUCTS[decided])
        if progress.must_tune(product):
            progress.save(_measured(product, self.row))
        saved = 33.0 if progress.rows[product].winner == CHEAP else 0.0
        keys = (self.pad_key, product)
        return ServedBucket(
            keys=keys,
            outputs=[EXACT],
            uncovered={},
            cost=CallCost(self.host_us[decided] - saved, 30.0),
            counts=dict.fromkeys(keys, 1),
        )


PadTry = Callable[..., tuple[dict[str, Winner], list[str]]]


@pytest.fixture
def try_pads(make_progress: Callable[..., Progress]) -> PadTry:
    """``try_pads(as_is_us)``: the rows on disk afterwards, and the lines that were said."""

    def make(as_is_us: float, fixed: tuple[int, ...] = ()) -> Any:
        lines, row = _Lines(), make_row()
        evidence = replace(row.evidence, host_us=40.0, time_us=10.0)
        row = replace(row, evidence=evidence)
        pad_key = f"pad {make_key(16, n=1083).partition(' out=')[0]}"
        pad = Row(PADDED, replace(evidence, host_us=90.0, time_us=20.0))
        progress = make_progress(make_table({pad_key: pad}), observer=lines)
        ways = (
            Timing(PADDED, 20.0, host_us=90.0, spread=0.01),
            Timing(AS_IS, 28.0, host_us=40.0, spread=0.01),
        )
        progress.tuned.append(Tuned(pad_key, pad, ways))

        def product_key(columns: int) -> str:
            return make_key(16, n=columns)

        host_us = {PADDED: 170.0, AS_IS: as_is_us}
        run: Any = _PadRun(
            _Compiler(progress, _Tuner(Method(launch=Launch.EAGER))),
            pad_key,
            product_key,
            host_us,
            row,
        )
        served = run.tune()
        check = _check()
        prefer_host(run, served, check, check.compare(served.outputs), set(map(product_key, fixed)))
        rows = read(progress.path).rows
        assert set(rows) == {tuned.key for tuned in progress.tuned}
        names = {pad_key: "pad"} | {product_key(n): str(n) for n in PRODUCTS.values()}
        return {names[key]: row.winner for key, row in rows.items()}, lines.lines

    return make


def test_the_host_decides_padding_first(try_pads: PadTry) -> None:
    """What pads is not launched; the product that is left has a winner for the host of its own."""
    rows, lines = try_pads(as_is_us=120.0)
    assert rows == {"pad": AS_IS, "1083": CHEAP}
    assert lines == [
        "seqlen=16: 1 pad decision for the host: a call took 120.0 us, 170.0 us before",
        "seqlen=16: 1 winner for the host: a call took 87.0 us, 120.0 us before",
    ]


def test_a_pad_decision_that_gains_nothing_is_taken_back(try_pads: PadTry) -> None:
    """With the rows of its product; the padded product may still have a winner for the host."""
    rows, lines = try_pads(as_is_us=169.0)
    assert rows == {"pad": PADDED, "1088": CHEAP}
    assert lines == [
        f"{NOT_KEPT}: a call took 169.0 us, 170.0 us before",
        "seqlen=16: 1 winner for the host: a call took 137.0 us, 170.0 us before",
    ]


def test_the_row_of_a_product_that_another_bucket_has_stays(try_pads: PadTry) -> None:
    """The bucket of this decision has it no more, and the other one was measured with it."""
    rows, _lines = try_pads(as_is_us=120.0, fixed=(1088,))
    assert set(rows) == {"pad", "1083", "1088"}


def test_the_table_keeps_what_calls_cost(make_progress: Callable[..., Progress]) -> None:
    """Each bucket has the last cost that was measured, on disk too; rows stay."""
    table = make_table({make_key(16): make_row()})
    progress = make_progress(table)
    progress.keep_cost("MLP seqlen=560", BEFORE)
    progress.keep_cost("MLP seqlen=16", CallCost(1.0, 2.0))
    progress.keep_cost("MLP seqlen=16", CallCost(3.0, 2.0, left_out=4))
    found = read(progress.path)
    assert dict(found.provenance.calls) == {
        "MLP seqlen=16": CallCost(3.0, 2.0, left_out=4),
        "MLP seqlen=560": BEFORE,
    }
    assert found == progress.table
    assert found.rows == table.rows


def test_a_call_that_cannot_be_measured_fails_no_build(caplog: pytest.LogCaptureFixture) -> None:
    """The bucket was served: what a call costs is not known, and a warning says why."""

    def measure(_call: Callable[[], object]) -> CallCost:
        raise RuntimeError("the state of the model ends after ten calls\nand a trace")

    nothing: Any = None
    compiler = BucketCompiler(
        setup=nothing, model=nothing, progress=nothing, tuner=nothing, measure_cost=measure
    )
    with caplog.at_level("WARNING", logger="warmup"):
        assert compiler._cost_of(lambda: None, "seqlen=16") is None
    assert "seqlen=16: what a call costs was not measured: RuntimeError: the state" in caplog.text
    assert "trace" not in caplog.text
