"""`Progress`: rows that a build measures again, searches further, or takes from earlier tables."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sample_tables import make_key, make_row, make_runtime, make_table

from warmup.core.buckets import Bucket
from warmup.core.device import CallCost
from warmup.core.errors import SettingsError, TableNotFoundError
from warmup.core.phases import BuildStage
from warmup.core.rows import Flag, Rejection, Row, Search
from warmup.core.trial import Tuned
from warmup.table.codec import encode
from warmup.table.schema import Table
from warmup.table.store import read, write
from warmup.tuning.build import BuildOptions
from warmup.tuning.model import revisit_for
from warmup.tuning.progress import (
    BuildEstimate,
    Progress,
    Revisit,
    SearchBudget,
    choose_keys,
    parse_budget,
    spend_budget,
)
from warmup.tuning.report import (
    MEASURED_AGAIN,
    MEASURED_WORSE,
    NOT_TRUSTED,
    TEMPLATE_CHANGED,
    BucketResult,
    CheckedOutput,
    EarlierRows,
    RowSource,
    open_earlier,
)

# Three builds of one bucket on an H200, the second of which searched by shares: until when so many
# items of a stage were done, and how long they took together.
EVA = """
36 bare_trials 2 5, 41 fused_trials 1 5, 42 bare_trials 1 1, 51 fused_trials 2 9, 53 bare_trials 1 1
73 fused_trials 2 21, 75 bare_trials 1 1, 84 fused_trials 1 9, 109 launch_searches 19 20
110 compiling 1 37, 230 regions 6 120, 249 launch_searches 4 8, 262 compiling 2 25
289 launch_searches 5 6, 290 compiling 1 20, 299 fused_trials 1 4, 320 compiling 2 27
"""
EVA_BY_SHARES = """
25 bare_trials 5 4, 28 compiling 1 22, 69 fused_trials 6 41, 86 regions 2 17
124 launch_searches 15 27, 140 compiling 2 25
"""
WAV2VEC2 = """
30 bare_trials 1 4, 34 fused_trials 1 3, 35 bare_trials 1 1, 39 fused_trials 1 4, 40 bare_trials 1 1
48 fused_trials 1 9, 52 bare_trials 1 1, 63 fused_trials 2 10, 64 bare_trials 1 1
73 fused_trials 1 9, 74 bare_trials 1 1, 79 fused_trials 1 6, 132 launch_searches 30 43
133 compiling 1 46, 336 regions 9 203, 348 launch_searches 2 4, 364 compiling 2 23
"""
DEFAULT = SearchBudget(Search.DEFAULT)
RETRY = BuildOptions(retry="unstable")
UNSTABLE = {"flags": (Flag.UNSTABLE,)}
PAD = "pad mm m=1 n=5 k=5 f16 a=row b=col free=ab"
A, B = Path("a.json"), Path("b.json")
Make = Callable[..., Progress]


def _with(row: Row, **changes: Any) -> Row:
    return replace(row, evidence=replace(row.evidence, **changes))


@pytest.fixture
def progress(make_progress: Make) -> Progress:
    """A retry over a table with a stable row (m=1) and an unstable one with a spread of 20 %."""
    unstable = _with(make_row("aten", 10.0), spread=0.2, **UNSTABLE)
    table = make_table({make_key(1): make_row(), make_key(2): unstable})
    return make_progress(table, can_search=True, revisit=revisit_for(table, DEFAULT, RETRY))


def test_only_unstable_rows_are_measured_again(progress: Progress) -> None:
    assert [progress.must_retune(make_key(m)) for m in (1, 2, 3)] == [False, True, False]
    assert not progress.is_done
    progress.save(Tuned(make_key(2), progress.rows[make_key(2)], ()))
    assert progress.is_done
    # Older tables have rows without a flag whose control was refused.
    refused = _with(make_row(), library_us=None, rejected=((Rejection.IMPLAUSIBLE, 1),), flags=())
    wrong = _with(make_row(), library_us=None, rejected=((Rejection.WRONG, 1),), flags=())
    table = make_table({make_key(1): refused, make_key(2): wrong})
    assert revisit_for(table, DEFAULT, RETRY).retried == {make_key(1)}
    progress.revisit = revisit_for(table, DEFAULT, BuildOptions(retry=(make_key(1),)))
    assert [progress.must_retune(make_key(m)) for m in (1, 2, 3)] == [True, False, False]


def test_better_evidence_replaces_the_row_and_noisier_does_not(make_progress: Make) -> None:
    """A stable row replaces an unstable one, and a smaller spread a larger one, however slow."""
    old = _with(make_row("aten", 10.0), spread=0.2, **UNSTABLE)
    table = make_table({make_key(2): old})
    for changes, is_kept in (
        ({"flags": (), "spread": 0.3}, False),
        ({"spread": 0.19, **UNSTABLE}, False),
        ({"spread": 0.2, "time_us": 9.0, **UNSTABLE}, False),
        ({"spread": 0.31, "time_us": 1.0, **UNSTABLE}, True),
    ):
        progress = make_progress(table, revisit=revisit_for(table, DEFAULT, RETRY))
        new = _with(make_row("new", 10.0), **changes)
        progress.save(Tuned(make_key(2), new, ()))
        assert read(progress.path).rows[make_key(2)] == (old if is_kept else new), changes
        assert [one.row for one in progress.tuned] == [old if is_kept else new], changes
        assert bool(progress.kept) is is_kept
    assert progress.kept == {
        make_key(2): "the new times are unstable too (spread 31.0%, and 20.0% in the table)"
    }
    progress.discard({make_key(2)}, 0)  # the output of its bucket was wrong: its new rows go
    assert read(progress.path).rows[make_key(2)] == old
    progress.revisit = Revisit(all_rows=True)  # --force takes the new row whatever its evidence
    progress.save(Tuned(make_key(2), new, ()))
    assert read(progress.path).rows[make_key(2)] == new


def test_a_retry_that_makes_no_sense_is_refused() -> None:
    """Another word, all rows, a budget for a wider search, and a narrower search than the row's."""
    wide = make_table({make_key(1): _with(make_row(), search=Search.WIDE, **UNSTABLE)})
    for budget, options, words in (
        (DEFAULT, {"retry": "stable"}, "write --retry unstable"),
        (DEFAULT, {"retry": "unstable", "force": True}, "--retry all"),
        (SearchBudget(Search.WIDE, 5.0), {"retry": "unstable"}, "--budget"),
        (DEFAULT, {"retry": "unstable"}, "add --search wide"),
    ):
        with pytest.raises(SettingsError, match=words):
            revisit_for(wide, budget, BuildOptions(**options))  # type: ignore[arg-type]
    assert revisit_for(wide, SearchBudget(Search.WIDE), RETRY).retried == {make_key(1)}


def test_a_search_budget_is_seconds_minutes_or_hours() -> None:
    for search, budget, budgeted in (
        ("default", None, SearchBudget(Search.DEFAULT)),
        ("default", "90s", SearchBudget(Search.DEFAULT, 90.0)),
        ("wide", "20m", SearchBudget(Search.WIDE, 1200.0)),
        ("exhaustive", "1.5h", SearchBudget(Search.EXHAUSTIVE, 5400.0)),
        ("wide", 12.5, SearchBudget(Search.WIDE, 12.5)),
    ):
        assert parse_budget(search, budget) == budgeted
    for search, wrong, words in (
        ("narrow", None, "--search 'narrow' is unknown; use one of default, wide, "),
        ("imported", None, "--search 'imported' is unknown"),
        ("wide", "20 minutes", "'20 minutes' is no time; write 90s, 20m or 2h"),
        ("wide", "-1", "'-1' is no time"),
        ("wide", float("nan"), "nan is no time"),
        ("wide", float("inf"), "inf is no time"),
    ):
        with pytest.raises(SettingsError, match=words):
            parse_budget(search, wrong)


def _result(name: str, *keys: str, **changes: Any) -> BucketResult:
    judgement = CheckedOutput(error=0.0, limit=0.01)
    bucket = Bucket((("m", int(name)),))
    fields = {"seconds": 1.0, **changes}
    return BucketResult(bucket=bucket, keys=keys, tuned=1, judgement=judgement, **fields)


def test_problems_that_may_gain_most_are_searched_further() -> None:
    """By the time above the peaks; as many as fit; no other kind, and none searched as far."""
    short, long, near, fused, wide = (make_key(m) for m in range(1, 6))
    rows = {
        short: _with(make_row(time_us=10.0), peak_share=0.0),
        long: _with(make_row(time_us=100.0), peak_share=0.5),
        near: _with(make_row(time_us=100.0), peak_share=0.99),
        fused: _with(make_row(time_us=500.0), peak_share=0.0, bare_us=20.0),
        wide: _with(make_row(time_us=900.0), search=Search.WIDE),
        PAD: make_row(),
    }
    results = [_result("1", short, near, PAD), _result("2", fused, long, wide)]
    for limit, chosen in ((9, (long, fused, short, near)), (2.9, (long, fused)), (-3, ())):
        assert choose_keys(results, rows, Search.WIDE, limit) == chosen
    assert choose_keys(results, rows, Search.EXHAUSTIVE, 1) == (wide,)


@dataclass
class _Runner:
    """The buckets that are run again: name, chosen keys and search."""

    progress: Progress
    ran: list[tuple[str, frozenset[str] | None, Search]] = field(default_factory=list)

    def __call__(self, before: BucketResult, _number: int, _total: int) -> BucketResult:
        revisit = self.progress.revisit
        assert all(map(self.progress.must_retune, revisit.chosen or ()))
        self.ran.append((before.name, revisit.chosen, revisit.search))
        return replace(before, tuned=len(revisit.chosen or ()), seconds=2.0)


def test_the_bucket_with_the_best_problem_is_compiled_first(make_progress: Make) -> None:
    """Each as it was, with its own chosen keys; the seconds of both runs are added."""
    small, large = make_key(1), make_key(1, n=1288)
    table = make_table({small: make_row(time_us=10.0), large: make_row(time_us=100.0)})
    runner = _Runner(make_progress(table, can_search=True))
    results = (_result("1", small), _result("1", large, weights_padded=True))
    budget, now = SearchBudget(Search.WIDE, 3600.0), time.monotonic()
    estimate = BuildEstimate(until=now + 3600)
    found = spend_budget(runner.progress, estimate, runner, results, budget)
    assert runner.ran == [
        ("m=1, weights padded", frozenset({large}), Search.WIDE),
        ("m=1", frozenset({small}), Search.WIDE),
    ]
    assert [(one.keys, one.tuned, one.seconds) for one in found] == [
        ((small,), 2, 3.0),
        ((large,), 2, 3.0),
    ]
    estimate.until = now - 1
    spent = spend_budget(runner.progress, estimate, runner, results, budget)
    assert (spent, len(runner.ran)) == (results, 2)


def test_postponed_problems_share_the_rest_of_the_budget(make_progress: Make) -> None:
    """By their device time, the most valuable bucket first; none that cannot be compiled in it."""
    keys = [make_key(m) for m in (1, 2, 3)]
    rows = {key: _with(make_row(), flags=(Flag.OPEN,)) for key in keys}
    results = [
        _result(str(m), key, cost=CallCost(1.0, device_us), seconds=seconds)
        for m, (key, device_us, seconds) in enumerate(
            zip(keys, (100.0, 300.0, 100.0), (10.0, 10.0, 80.0), strict=True), 1
        )
    ]
    runner, now = _Runner(make_progress(make_table(rows))), time.monotonic()
    shares = dict(zip(keys, (0.2, 0.4, 0.1), strict=True))
    estimate, ends = BuildEstimate(until=now + 75, ends=-math.inf, postponed=shares), list[float]()

    def run_again(before: BucketResult, number: int, total: int) -> BucketResult:
        ends.append(round(estimate.ends - now))
        return runner(before, number, total)

    budget = SearchBudget(Search.DEFAULT, 100.0)
    spend_budget(runner.progress, estimate, run_again, results, budget)
    assert [(name, chosen) for name, chosen, _ in runner.ran] == [
        ("m=2", frozenset(keys[1:2])),
        ("m=1", frozenset(keys[:1])),
    ]
    assert ends == [60, 50]


def test_rows_that_a_build_needs_are_taken_unchanged(tmp_path: Path) -> None:
    """A row is taken when it is looked up and the table lacks it; the flush writes it to disk."""
    source, key, out = make_table(), make_key(560), tmp_path / "t.json"
    write(tmp_path / "a.json", source)
    earlier = open_earlier(
        [tmp_path / "a.json"], make_table({}), dict, measures_again=False, is_dry=False
    )
    assert earlier is not None
    progress = Progress(path=out, table=make_table({}), replaces=False, earlier=earlier)
    assert not progress.rows
    assert [progress.must_tune(one) for one in (key, "x")] == [False, True]
    progress.flush()
    assert encode(read(out)) == encode(make_table({key: source.rows[key]}))
    assert earlier.used() == (RowSource(tmp_path / "a.json", (key,)),)
    assert earlier.used([key])[0].taken == ()  # measured after all, searched further
    with pytest.raises(TableNotFoundError):
        open_earlier([tmp_path / "b.json"], source, dict, measures_again=False, is_dry=True)


def test_each_row_that_is_not_taken_has_its_reason() -> None:
    """Untrusted here or in another table, another source of the template, measured worse."""
    key, sources = make_key(), {"triton_mm": "0123456789abcdef"}
    good, other = make_row(), make_row(BLOCK_M=16)
    bad, flagged = replace(good, untrusted="wrong"), _with(good, **UNSTABLE)
    stale = replace(good, winner=replace(good.winner, source_hash="fedcba9876543210"))
    noisy, quiet = _with(good, spread=0.2), _with(other, spread=0.01)
    cases: dict[str, tuple[Row, Row, Row | None, dict[Path, str]]] = {
        "only one is there": (good, good, good, {B: MEASURED_WORSE}),
        "not trusted": (bad, bad, None, {A: NOT_TRUSTED, B: NOT_TRUSTED}),
        "not trusted by another": (good, bad, None, {A: NOT_TRUSTED, B: NOT_TRUSTED}),
        "another winner": (bad, other, other, {A: NOT_TRUSTED}),
        "changed": (stale, stale, None, {A: TEMPLATE_CHANGED, B: TEMPLATE_CHANGED}),
        "current": (stale, flagged, flagged, {A: TEMPLATE_CHANGED}),
        "better": (noisy, quiet, quiet, {A: MEASURED_WORSE}),
    }
    for name, (of_a, of_b, taken, refused) in cases.items():
        tables = {A: make_table({key: of_a}), B: make_table({key: of_b})}
        earlier = EarlierRows(tables, make_table({}), sources)
        assert [earlier.take(key), earlier.take(key)] == [taken, taken], name
        found = {one.path: one.refused[key] for one in earlier.used() if one.refused}
        assert found == refused, name
        assert sum(len(one.taken) for one in earlier.used()) == (taken is not None), name


def test_a_table_that_does_not_fit_is_refused_whole() -> None:
    """Another device, minor of torch or Triton, or policy; patch versions and drivers fit."""
    policy = make_table().policy
    cases: dict[str, tuple[Mapping[str, Any], str]] = {
        "device": ({"runtime": make_runtime(sm_count=78)}, "device.sm_count: table 78, here 132"),
        "torch": ({"runtime": make_runtime(torch="2.11.0")}, "torch minor: table 2.11, here 2.13"),
        "driver": ({"runtime": make_runtime(driver="581")}, ""),
        "mode": ({"policy": replace(policy, mode="max-autotune")}, "policy mode"),
    }
    for name, (changes, reason) in cases.items():
        table: Table = make_table(**changes)
        earlier = EarlierRows({A: table}, make_table({}), {})
        assert (earlier.take(make_key()) is None) == bool(reason), name
        (source,) = earlier.used()
        assert len(source.refused) == (len(table.rows) if reason else 0), name
        assert all(reason in why for why in source.reasons), name
    earlier = EarlierRows({A: make_table()}, make_table({}), {}, measures_again=True)
    assert (earlier.take(make_key()), earlier.used()[0].reasons) == (None, {MEASURED_AGAIN: 2})


def _replayed(log: str, before: int) -> list[float]:
    """Return actual over estimated seconds left, after each item of *log* from the first minute on.

    *before* seconds were gone when it began; the last half minute is left out.
    """
    lines = [one.split() for one in log.replace("\n", ",").split(",") if one]
    items = [(float(at), BuildStage(stage), int(n), float(s)) for at, stage, n, s in lines]
    now, said = [0.0], list[tuple[float, float]]()
    estimate = BuildEstimate(lambda left_s, _: said.append((now[0], left_s)), lambda: now[0])
    counts = Counter[BuildStage]()
    for _, stage, count, _ in items:
        counts[stage] += count
    estimate.bucket_started(0)
    estimate.expect(counts)
    for at, stage, count, seconds in items:
        since = now[0]
        for number in range(count):
            now[0] = since + (number + 1) * (at - since) / count
            estimate.done(stage, seconds / count)
    end = now[0]
    return [(end - at) / left_s for at, left_s in said if at + before >= 60 and end - at > 30]


def test_a_build_knows_from_the_first_minute_how_long_it_will_take() -> None:
    """Within a factor of 1.5, with the items of three builds."""
    for log in (EVA, EVA_BY_SHARES, WAV2VEC2):
        ratios = _replayed(log, 15)
        assert len(ratios) > 10, log
        assert all(1 / 1.5 <= ratio <= 1.5 for ratio in ratios), (log, ratios)


def test_buckets_that_were_not_begun_take_what_those_after_the_first_took() -> None:
    now, said = [0.0], list[tuple[float, float]]()
    estimate = BuildEstimate(lambda left_s, part: said.append((left_s, part)), lambda: now[0])
    for seconds, left, told in (
        (40.0, 2, (56.0, 0.95)),
        (20.0, 1, (20.0, 0.95)),
        (10.0, 0, (0, 0.95)),
    ):
        estimate.bucket_started(left)
        estimate.done(BuildStage.JUDGING, 1.0)  # nothing is known of the bucket yet
        estimate.expect({BuildStage.REGIONS: 1})
        now[0] += seconds
        estimate.done(BuildStage.REGIONS, seconds)
        estimate.bucket_finished()
        assert said.pop() == told, (seconds, left)
        assert said == [], (seconds, left)


def test_what_a_bundle_compiles_is_a_part_of_the_time_left() -> None:
    """Each of three buckets once more, as long as compiles after the first take."""
    now, said = [0.0], list[float]()
    estimate = BuildEstimate(lambda left_s, _: said.append(left_s), lambda: now[0], packs=True)
    estimate.bucket_started(2)
    estimate.expect({BuildStage.COMPILING: 2})
    for seconds in (20.0, 10.0):
        now[0] += seconds
        estimate.done(BuildStage.COMPILING, seconds)
    assert said[-1] == 2 * 0.7 * 30.0 + 3 * 10.0
