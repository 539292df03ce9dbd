"""Winners for the host: which are tried where it limits a bucket, and which of them stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_tables import make_key, make_outcome, make_row, make_table

from warmup.core.device import CallCost
from warmup.core.errors import BuildError
from warmup.core.rows import (
    Evidence,
    Family,
    Flag,
    Launch,
    Method,
    Rejection,
    Row,
    Scope,
    Winner,
    is_for_host,
    lag_behind_library,
)
from warmup.core.trial import Tuned
from warmup.keys.pad import AS_IS, PADDED
from warmup.models.outputs import WideRun
from warmup.table.store import read
from warmup.tuning.bucket_compiler import BucketCompiler, ServedBucket
from warmup.tuning.progress import Progress
from warmup.tuning.report import Observer
from warmup.tuning.session import OutputCheck, choose_for_host, prefer_host, with_host_winner

LIBRARY = Winner(Family.EXTERN, "aten::addmm")
TRITON = Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 16),), "0123abcd")
LARGE = Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 64),), "0123abcd")
KEY = "addmm m=16"
EXACT = torch.tensor([3.0, 4.0])
BEFORE = CallCost(host_us=120.0, device_us=30.0)
PRODUCTS = {PADDED: 1088, AS_IS: 1083}  # columns of the product


def problem(
    key: str = KEY,
    *,
    times: Mapping[Winner, tuple[float, float | None]] | None = None,
    scope: Scope = Scope.BARE,
    flags: tuple[Flag, ...] = (),
    along: tuple[tuple[int, float | None], ...] = (),
    along_us: Mapping[Winner, float] | None = None,
) -> Tuned:
    """Return a problem that the library won; *times* has the device's and the host's, by winner."""
    times = times or {LIBRARY: (10.0, 25.0), TRITON: (12.0, 7.0), LARGE: (15.0, 7.0)}
    timings = []
    for winner, (device_us, host_us) in times.items():
        at_low = {"along_us": ((2, along_us[winner]),)} if along_us else {}
        own = make_outcome(winner, device_us, host_us=host_us, error=0.02)
        bare = make_outcome(winner, device_us / 2, fused=own) if scope is Scope.FUSED else own
        timings.append(replace(bare, **at_low))
    device_us, host_us = times[LIBRARY]
    evidence = Evidence(
        time_us=device_us,
        library_us=device_us,
        runner_up=str(TRITON),
        runner_up_us=device_us,
        tried=len(times),
        tflops=100.0,
        flags=flags,
        scope=scope,
        bare_us=device_us / 2 if scope is Scope.FUSED else None,
        along=along,
        host_us=host_us,
        library_host_us=host_us,
    )
    return Tuned(key, Row(LIBRARY, evidence), tuple(timings))


def chosen(*tuned: Tuned, cost: CallCost = BEFORE, count: int = 1) -> dict[str, Winner]:
    return choose_for_host(cost, tuned, {each.key: count for each in tuned})


def test_the_host_is_saved_where_it_limits_the_bucket_and_gains() -> None:
    """Of equally cheap candidates the faster on the device is chosen, in the scope of the row."""
    for scope in Scope:
        assert chosen(problem(scope=scope)) == {KEY: TRITON}
    assert chosen(problem(), cost=CallCost(host_us=99.0, device_us=100.0)) == {}
    # Of four such kernels two replacements gain; with more the device would be the limit.
    slow = {LIBRARY: (10.0, 25.0), TRITON: (40.0, 7.0), LARGE: (50.0, 7.0)}
    assert len(chosen(*(problem(f"addmm m=1{i}", times=slow) for i in range(4)))) == 2
    # One replacement gains 2 us of 120, too little; ten of them gain 20.
    small = {LIBRARY: (1.0, 9.0), TRITON: (1.0, 7.0)}
    assert chosen(problem(times=small)) == {}
    assert chosen(problem(times=small), count=10) == {KEY: TRITON}
    # A difference below a tenth of the winner's own time is noise.
    assert chosen(problem(times={LIBRARY: (10.0, 10.0), TRITON: (10.0, 9.5)}), count=50) == {}


def test_rows_whose_times_decide_nothing_stay() -> None:
    """Without a time of the host, unstable, rejected, or of weights that several buckets share."""
    tuned = problem()
    wrong = make_outcome(TRITON, 1.0, host_us=1.0, rejection=Rejection.WRONG)
    weight = replace(tuned.row.winner, family=Family.WEIGHT)
    for other in (
        problem(times={LIBRARY: (10.0, None), TRITON: (10.0, 7.0)}),
        problem(times={LIBRARY: (10.0, 25.0), TRITON: (10.0, None)}),
        problem(flags=(Flag.UNSTABLE,)),
        replace(tuned, timings=(tuned.timings[0], wrong)),
        replace(tuned, row=replace(tuned.row, winner=weight)),
    ):
        assert chosen(other) == {}, other


def test_a_winner_for_the_host_is_not_too_slow_along_its_range() -> None:
    """It may be slower on the device, and does not count as lag behind the library."""
    along_us = {LIBRARY: 10.0, TRITON: 15.0, LARGE: 10.5}
    tuned = problem(along=((2, 1.0), (16, 1.0)), along_us=along_us)
    assert chosen(tuned) == {KEY: LARGE}
    evidence = with_host_winner(tuned, LARGE).row.evidence
    assert evidence.along == ((2, 1.05), (16, None))
    assert is_for_host(evidence)
    assert lag_behind_library(evidence) is None
    assert not is_for_host(tuned.row.evidence)


def test_the_evidence_is_that_of_the_new_winner() -> None:
    """Its times and rate are, and the former winner is the runner-up."""
    for scope in Scope:
        row = with_host_winner(problem(scope=scope), TRITON).row
        assert row.winner == TRITON, scope
        found = row.evidence
        assert (found.time_us, found.host_us, found.library_us) == (12.0, 7.0, 10.0), scope
        assert (found.runner_up, found.runner_up_us) == (str(LIBRARY), 10.0), scope
        assert found.bare_us == (6.0 if scope is Scope.FUSED else None)
        assert found.tflops == pytest.approx(100 * 10 / 12, rel=1e-3), scope
        assert (found.spread, found.error) == (0.0, 0.02), scope


def test_a_way_of_a_template_is_chosen_for_the_host_along_a_range() -> None:
    """Fused and not fused are two alternatives of one template, whose times alone are the same."""
    fused, apart = replace(TRITON, fused=True), replace(TRITON, fused=False)
    ways = {LIBRARY: (10.0, 25.0), fused: (12.0, 7.0), apart: (12.0, 14.0)}
    along_us = {LIBRARY: 10.0, fused: 10.5, apart: 10.5}
    tuned = problem(times=ways, scope=Scope.FUSED, along=((2, 1.0), (16, 1.0)), along_us=along_us)
    assert chosen(tuned) == {KEY: fused}
    assert with_host_winner(tuned, fused).row.evidence.along[0] == (2, 1.05)


# `prefer_host`, with a bucket that only pretends to be served.


class _Lines(Observer):
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
    """A bucket with a pad decision, that says which product it has, or with a product alone.

    ``host_us`` are by the decision, 33 less where the product is `TRITON`. With ``fault`` a call is
    wrong, fails, or is interrupted.
    """

    compiler: _Compiler
    host_us: Mapping[Winner, float]
    pad_key: str | None = None
    device_us: float = 32.0
    output: torch.Tensor = field(default_factory=lambda: EXACT)
    fault: BaseException | None = None
    name: str = "seqlen=16"

    def tune(self) -> ServedBucket:
        if self.fault is not None:
            raise self.fault
        progress, row = self.compiler.progress, _row()
        decided = AS_IS if self.pad_key is None else progress.rows[self.pad_key].winner
        product = make_key(16, n=PRODUCTS[decided])
        if progress.must_tune(product):
            rivals = (
                make_outcome(row.winner, 10.0, host_us=40.0),
                make_outcome(TRITON, 12.0, host_us=7.0),
            )
            progress.save(Tuned(product, row, rivals))
        saved = 33.0 if progress.rows[product].winner == TRITON else 0.0
        keys = tuple(filter(None, (self.pad_key, product)))
        return ServedBucket(
            keys=keys,
            outputs=[self.output if saved else EXACT],
            uncovered={},
            cost=CallCost(self.host_us[decided] - saved, self.device_us if saved else 30.0),
            counts=dict.fromkeys(keys, 1),
        )


def _row(**changes: Any) -> Row:
    row = make_row()
    return replace(row, evidence=replace(row.evidence, host_us=40.0, time_us=10.0, **changes))


Try = Callable[..., tuple[dict[str, Winner], list[str]]]


@pytest.fixture
def try_host(make_progress: Callable[..., Progress]) -> Try:
    """``try_host(as_is_us, pads=True)``: the winners on disk afterwards, and the lines."""

    def make(
        as_is_us: float = 120.0,
        *,
        pads: bool = False,
        launch: Launch = Launch.EAGER,
        fixed: tuple[int, ...] = (),
        fault: BaseException | None = None,
        **changes: Any,
    ) -> Any:
        lines, pad_key = _Lines(), f"pad {make_key(16, n=1083).partition(' out=')[0]}"
        pad = Row(PADDED, replace(_row().evidence, host_us=90.0, time_us=20.0))
        progress = make_progress(make_table({pad_key: pad} if pads else {}), observer=lines)
        if pads:
            ways = make_outcome(PADDED, 20.0, host_us=90.0), make_outcome(AS_IS, 28.0, host_us=40.0)
            progress.tuned.append(Tuned(pad_key, pad, ways))
        compiler = _Compiler(progress, _Tuner(Method(launch=launch)))
        host_us = {PADDED: 170.0, AS_IS: as_is_us}
        run: Any = _Run(compiler, host_us, pad_key if pads else None, **changes)
        served = run.tune()
        run.fault = fault
        check = OutputCheck(
            eager=[EXACT], floors={"f32": 1e-3}, run_wide=lambda: WideRun([EXACT], "float64")
        )
        stays = {make_key(16, n=columns) for columns in fixed}
        prefer_host(run, served, check, check.compare(served.outputs), stays)
        rows = read(progress.path).rows
        assert {tuned.key: tuned.row for tuned in progress.tuned} == rows
        names = {pad_key: "pad"} | {make_key(16, n=n): str(n) for n in PRODUCTS.values()}
        return {names[key]: row.winner for key, row in rows.items()}, lines.lines

    return make


def test_a_faster_call_keeps_its_winners(try_host: Try) -> None:
    rows, lines = try_host()
    assert rows == {"1083": TRITON}
    assert lines == ["seqlen=16: 1 winner for the host: a call took 87.0 us, 120.0 us before"]


def test_winners_that_gain_nothing_are_taken_back(try_host: Try) -> None:
    """So are those with which the output is wrong or the bucket fails; the reason is said."""
    for changes, reason in (
        ({"device_us": 119.0}, "a call took 119.0 us, 120.0 us before"),
        ({"output": EXACT * 2}, "the output is"),
        ({"fault": BuildError("bucket seqlen=16: compiling failed")}, "compiling failed"),
    ):
        rows, (line,) = try_host(**changes)
        assert rows["1083"] != TRITON, reason
        assert "tried and not kept" in line
        assert reason in line


def test_an_interrupted_trial_is_taken_back(try_host: Try, tmp_path: Path) -> None:
    for error in (KeyboardInterrupt(), ValueError("no outputs")):
        with pytest.raises(type(error)):
            try_host(fault=error)
        (row,) = read(tmp_path / "t.json").rows.values()
        assert row.winner != TRITON


def test_nothing_is_tried_where_the_host_does_not_count(try_host: Try) -> None:
    """As with CUDA graphs, and for rows with which another bucket was measured."""
    for changes in ({"launch": Launch.CUDAGRAPH}, {"fixed": (1083,)}):
        rows, lines = try_host(**changes)
        assert rows["1083"] != TRITON
        assert lines == []


def test_the_host_decides_padding_first(try_host: Try) -> None:
    """What pads is not launched; the product that is left has a winner for the host of its own."""
    rows, lines = try_host(pads=True)
    assert rows == {"pad": AS_IS, "1083": TRITON}
    assert lines == [
        "seqlen=16: 1 pad decision for the host: a call took 120.0 us, 170.0 us before",
        "seqlen=16: 1 winner for the host: a call took 87.0 us, 120.0 us before",
    ]
    # A decision that gains nothing is taken back with the rows of its product.
    rows, lines = try_host(169.0, pads=True)
    assert rows == {"pad": PADDED, "1088": TRITON}
    assert "1 pad decision for the host, tried and not kept" in lines[0]
    # The row of a product that another bucket has stays.
    assert set(try_host(pads=True, fixed=(1088,))[0]) == {"pad", "1083", "1088"}


def test_the_table_keeps_what_calls_cost(make_progress: Callable[..., Progress]) -> None:
    """Each bucket has the last cost that was measured, on disk too; rows stay."""
    table = make_table({make_key(16): make_row()})
    progress = make_progress(table)
    for cost in (CallCost(1.0, 2.0), CallCost(3.0, 2.0, left_out=4)):
        progress.keep_cost("MLP seqlen=16", cost)
    found = read(progress.path)
    assert dict(found.provenance.calls) == {"MLP seqlen=16": CallCost(3.0, 2.0, left_out=4)}
    assert (found, found.rows) == (progress.table, table.rows)


def test_a_call_that_cannot_be_measured_fails_no_build(caplog: pytest.LogCaptureFixture) -> None:
    def measure(_call: Callable[[], object]) -> CallCost:
        raise RuntimeError("the state of the model ends after ten calls\nand a trace")

    nothing: Any = None
    compiler = BucketCompiler(
        setup=nothing, model=nothing, progress=nothing, tuner=nothing, measure_cost=measure
    )
    with caplog.at_level("WARNING", logger="warmup"):
        assert compiler._cost_of(lambda: None, "seqlen=16") is None
    assert "seqlen=16: what a call costs was not measured: RuntimeError: the state" in caplog.text
