"""`weigh_launched`: padding stays where launched calls gain, with buckets that only pretend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_table
from torch import nn

from warmup.core.buckets import Bucket
from warmup.core.device import CallCost
from warmup.core.method import Launch, Method
from warmup.core.rows import Row, Timing, Tuned
from warmup.keys.gemm import Dim
from warmup.keys.weight import Padding, winner_of
from warmup.models.padding import Prepared
from warmup.models.weight_groups import find_groups
from warmup.table.schema import Table
from warmup.table.store import read
from warmup.tuning.progress import Progress
from warmup.tuning.report import BucketResult, CheckedOutput
from warmup.tuning.weights import slower_when_launched, weigh_launched

GROUP = find_groups(nn.Sequential(nn.Linear(64, 99))).groups[0]
AS_IS, PADDED = winner_of(GROUP.structure, 99), winner_of(GROUP.structure, 100)
WEIGHT = GROUP.structure.key(Dim.of(16))
PREPARED = Prepared({GROUP: Padding(100)}, (), 400, 416)
FASTER = CallCost(host_us=90.0, device_us=30.0), CallCost(host_us=80.0, device_us=15.0)
SLOWER = CallCost(host_us=100.0, device_us=30.0), CallCost(host_us=120.0, device_us=15.0)
TIE = CallCost(host_us=100.0, device_us=30.0), CallCost(host_us=104.0, device_us=15.0)


@dataclass
class _Built:
    """A build with padded weights before and after they were weighed."""

    progress: Progress
    results: list[BucketResult]
    after: list[BucketResult]
    prepared: Prepared
    own: str
    gone: str

    @property
    def table(self) -> Table:
        found = read(self.progress.path)
        assert dict(found.rows) == dict(self.progress.rows)
        return found


Weigh = Callable[..., _Built]


@pytest.fixture
def weigh(make_progress: Callable[..., Progress]) -> Weigh:
    """``weigh(FASTER, SLOWER)``: a bucket for each pair of costs, without and with padding."""

    def make(
        *pairs: tuple[CallCost | None, CallCost | None], launch: Launch = Launch.EAGER
    ) -> _Built:
        own, gone = make_key(16), make_key(17)
        row = make_row()
        evidence = replace(row.evidence, time_us=8.0, library_us=10.0)
        rows = {own: row, gone: row, WEIGHT: Row(PADDED, evidence)}
        progress = make_progress(make_table(rows))
        timings = (Timing(AS_IS, 10.0), Timing(PADDED, 8.0))
        progress.tuned += [Tuned(key, each, timings) for key, each in rows.items()]
        results = []
        for number, costs in enumerate(pairs):
            for is_padded, cost in enumerate(costs):
                one = BucketResult(
                    bucket=Bucket((("seqlen", number + 1),)),
                    keys=(own, gone) if is_padded else (own,),
                    tuned=0,
                    judgement=CheckedOutput(error=0.0, limit=1e-3),
                    seconds=0.0,
                    uncovered={},
                    weights_padded=bool(is_padded),
                    cost=cost,
                )
                results.append(one)
                if cost is not None:
                    progress.keep_cost(f"made.up {one.name}", cost)
        compiler: Any = SimpleNamespace(
            progress=progress,
            tuner=SimpleNamespace(method=Method(launch=launch)),
            call_name="made.up {}".format,
        )
        after, prepared = weigh_launched(compiler, PREPARED, results)
        return _Built(progress, results, after, prepared, own, gone)

    return make


def test_padding_that_makes_launched_calls_slower_is_taken_back(weigh: Weigh) -> None:
    """The weights' rows have the weights' own size, with both times; nothing is padded."""
    built = weigh(SLOWER)
    row = built.table.rows[WEIGHT]
    assert (row.winner, row.evidence.time_us, row.evidence.runner_up_us) == (AS_IS, 10.0, 8.0)
    assert not built.prepared.padded
    assert built.prepared.bytes_after == built.prepared.bytes_before


def test_what_only_the_padded_model_asked_for_goes_with_it(weigh: Weigh) -> None:
    """Rows and costs that no call of the unpadded model has, on disk and in the report."""
    built = weigh(SLOWER)
    assert set(built.table.rows) == {built.own, WEIGHT}
    assert dict(built.table.provenance.calls) == {"made.up seqlen=1": SLOWER[0]}
    assert built.after == built.results[:1]


def test_the_report_says_why_nothing_is_padded(weigh: Weigh) -> None:
    """By the names of the weights, with how much slower the calls were."""
    assert str(weigh(SLOWER).prepared.left[0]) == (
        "0: not padded: launched one by one, calls took 1.20 times as long with padded weights "
        "(geometric mean of 1 bucket)"
    )


@pytest.mark.parametrize(
    "pairs",
    [[FASTER], [TIE], [FASTER, TIE], [(None, None)]],
    ids=["faster", "within noise", "faster in the mean", "not measured"],
)
def test_padding_stays_where_launched_calls_are_not_slower(weigh: Weigh, pairs: Any) -> None:
    """By more than 5 %; without a cost, as on a CPU, device times alone decided."""
    built = weigh(*pairs)
    assert built.table.rows[WEIGHT].winner == PADDED
    assert (built.after, built.prepared) == (built.results, PREPARED)


def test_only_the_host_of_launched_calls_weighs_alike_for_all_buckets(weigh: Weigh) -> None:
    """Padding stays whatever it costs to enqueue."""
    assert weigh(SLOWER, launch=Launch.CUDAGRAPH).table.rows[WEIGHT].winner == PADDED
    # The geometric mean of their ratios: 1.2 and 80 over 90.
    ratio = slower_when_launched(weigh(SLOWER, FASTER, (None, None)).results)
    assert ratio == pytest.approx((120 / 100 * 80 / 90) ** 0.5)
