"""Regions of a build: fused GEMMs, pad decisions and split reductions, compiled as they run."""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sample_tables import make_key, make_outcome, make_row, make_table
from sample_trials import make_trial
from torch._inductor.kernel import mm
from torch.fx.experimental.proxy_tensor import make_fx

from warmup.core.device import CallCost
from warmup.core.rows import (
    Effort,
    Family,
    Flag,
    Method,
    Rejection,
    Row,
    Scope,
    Winner,
    ranked,
)
from warmup.core.trial import (
    Candidate,
    Contenders,
    Fill,
    Outcome,
    Region,
    Step,
    TensorSpec,
    Trial,
    Tuned,
    ranking_of,
)
from warmup.inductor.caches import empty_caches
from warmup.inductor.gemm.regions import module_of, region_of
from warmup.keys.gemm import GemmProblem
from warmup.keys.kind import ProblemOfKey
from warmup.keys.pad import AS_IS, PADDED
from warmup.keys.question import GemmQuestion, RegionQuestion
from warmup.keys.reduction import split_into
from warmup.measuring.reference import judge_output
from warmup.measuring.selection import make_variants_row
from warmup.measuring.trial_process import TrialProcess
from warmup.table.schema import TOLERANCE, OnMiss
from warmup.table.store import read
from warmup.tuning.bucket_compiler import (
    BucketCompiler,
    ServedBucket,
    _with_finite_result,
    is_far_behind,
)
from warmup.tuning.progress import BuildEstimate, Progress
from warmup.tuning.trials import (
    RegionQuestions,
    WaitingFused,
    WaitingQuestion,
    alone,
    region_trial,
    variants_trial,
)
from warmup.tuning.tuner import Tuner
from warmup.tuning.worker import RegionCompiler, RegionSets

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
CPU, FP8 = torch.device("cpu"), torch.float8_e4m3fn
ROWS, WIDTH, INNER = 48, 64, 96
LIBRARY = Winner(Family.EXTERN, "aten::mm")
FUSED = Winner(Family.TEMPLATE, "triton::mm", (("BLOCK_M", 16),), "0123abcd", fused=True)
_aten = torch.ops.aten


def trial_of(function: Any, inputs: Any, target: Any, key: str) -> Trial:
    """Return the trial of the region of *target* that *function* has on the CPU."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    gemm = next(node for node in graph.graph.nodes if node.target is target)
    region = region_of(gemm, (), has_epilogue=True)
    assert region is not None
    question = GemmQuestion(GemmProblem.of_key(key), "cpu", (), library=LIBRARY)
    return replace(region_trial(question, region, Method(), TOLERANCE, seed=0), device="cpu")


def trial_of_mm(rows: int) -> Trial:
    """Return the trial of an mm with a residual, as `region_child.py` selects kernels on a CPU."""
    factors = torch.randn(rows, 32), torch.randn(48, 32), torch.randn(rows, 48)
    key = f"mm m={rows} n=48 k=32 f32 a=row b=col out=f32 fp32=ieee | epilogue=add(f32[{rows},48])"
    trial = trial_of(lambda x, w, y: torch.mm(x, w.t()) + y, factors, _aten.mm.default, key)
    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,CPP"}
    return replace(trial, options=options)


@pytest.mark.long
def test_regions_are_compiled_ahead_of_their_trials_in_one_child(tmp_path: Path) -> None:
    """A tile that kills the idle child, which compiles ahead, is refused in its own trial only.

    The second child compiles the rest again. A tile that no CPU has is not in the region. The
    caches that a question was asked with may be gone by then.
    """
    names, gone = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"), tmp_path / "gone"
    asked_with = dict.fromkeys(names, str(gone))
    killing, missing = (replace(FUSED, kwargs=(("BLOCK_M", rows),)) for rows in (13, 16))
    trials = []
    for rows, tile in ((2, missing), (4, killing), (6, missing)):
        contenders = Contenders(((replace(tile, fused=None), 1.0),), 2.0, (), 4, fuses=True)
        candidates = tuple(map(Candidate, (LIBRARY, tile)))
        trial = replace(trial_of_mm(rows), contenders=contenders, candidates=candidates)
        trials.append(replace(trial, environment=asked_with))
    process = TrialProcess([sys.executable, str(PROGRAMS / "region_child.py")])
    try:
        process.run(make_trial(environment=asked_with))
        process.prepare(trials)
        deadline = time.monotonic() + 300
        while "Z" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        outcomes = [process.run(trial) for trial in trials]
    finally:
        process.close()
    for number, (library, other) in enumerate(outcomes):
        assert library.time_us is not None, number
        assert library.kernels is not None, number
        reason = Rejection.CRASHED if number == 1 else Rejection.COMPILE
        assert (other.winner, other.rejection) == (trials[number].candidates[1].winner, reason)
    assert not gone.exists()
    assert outcomes[1][1].said == "was killed by SIGKILL"
    assert "is not in the compiled region" in outcomes[0][1].said


def test_a_region_of_an_mm_asks_for_the_mm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch would fold its sum into an addmm; its weights are inputs with a choice, as on a GPU."""
    original = mm.use_cpp_gemm_template

    def use(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "require_constant_mat2": False})

    monkeypatch.setattr(mm, "use_cpp_gemm_template", use)
    trial = trial_of_mm(2)
    sets = RegionSets(trial, CPU, seed=1, most=1)
    with empty_caches():
        compiler = RegionCompiler(trial, CPU)
        (out,) = compiler.make_call(Candidate(LIBRARY), sets)(0)  # type: ignore[misc]  # a tuple
        (expected,) = compiler.make_reference(sets)
    assert torch.allclose(out, expected.float(), rtol=1e-4, atol=1e-4)


def gate(x: Any, up: Any, weight: Any, of_x: Any, of_weight: Any) -> Any:
    """Return a gated product quantized again, and its scales, as the input of the next product."""
    y = torch._scaled_mm(x, weight.t(), of_x, of_weight, out_dtype=torch.bfloat16)
    y = torch.relu(y) * up
    scale = y.abs().amax(-1, keepdim=True).float() / 448
    return (y.float() / scale).clamp(-448, 448).to(FP8), scale


def dequantize(x: Any, up: Any, weight: Any, of_x: Any, of_weight: Any) -> Any:
    """Return an integer product times its scales, quantized again, and the bf16 in between."""
    y = (torch._int_mm(x, weight.t()) * of_x * of_weight).to(torch.bfloat16) * up
    scale = y.abs().amax().float() / 127
    return (y.float() / scale).round().to(torch.int8), y


def test_of_8_bits_only_what_eager_computes_passes() -> None:
    """Each output is within its tolerance of the region in higher precision; 1.25 times fails."""
    for function, dtype, target, op, out in (
        (gate, FP8, _aten._scaled_mm.default, "scaled_mm", "bf16"),
        (dequantize, torch.int8, _aten._int_mm.default, "int_mm", "i32"),
    ):
        up = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
        factors = torch.randn(ROWS, INNER).to(dtype), up, torch.randn(WIDTH, INNER).to(dtype)
        # On the CPU torch 2.11 multiplies in fp8 with one scale for each factor only.
        scales: Any = [(), ()] if dtype is FP8 else [(ROWS, 1), (1, WIDTH)]
        key = f"{op} m={ROWS} n={WIDTH} k={INNER} i8 a=row b=col out={out} | epilogue=none"
        trial = trial_of(function, (*factors, *map(torch.ones, scales)), target, key)
        assert trial.region is not None
        assert trial.tolerance is not None
        sets = RegionSets(trial, CPU, seed=1, most=1)
        outputs = module_of(trial.region, CPU)(*sets.views(0))
        expected = RegionCompiler(trial, CPU).make_reference(sets)
        for made, reference in zip(outputs, expected, strict=True):
            name = str(made.dtype).removeprefix("torch.")
            tolerance = trial.tolerances.get(name, trial.tolerance)
            assert judge_output(made, reference, tolerance)[1] is None, (op, name)
            wrong = (made.float() * 1.25).to(made.dtype)
            assert judge_output(wrong, reference, tolerance)[1] is Rejection.WRONG, (op, name)


# Rows that inductor fuses in their region and not in the model.

APART = replace(FUSED, fused=False)
MODEL = SimpleNamespace(module=torch.nn.Identity())


class _Tuner(Tuner):
    """Measures nothing: a region gives each GEMM a winner with its epilogue."""

    def __init__(self, device: str = "cpu", **changes: Any) -> None:
        super().__init__(SimpleNamespace(type=device), changes.pop("method", Method()), {})  # type: ignore[arg-type]  # no GPU is here
        for name, value in changes.items():
            setattr(self, name, value)

    def __post_init__(self) -> None:
        """Look at no device."""

    def measure_fused_all(
        self, waiting: Iterable[WaitingFused]
    ) -> Iterator[tuple[WaitingFused, Tuned]]:
        for one in waiting:
            yield one, replace(one.bare, row=replace(one.bare.row, winner=FUSED))


KERNEL = ("launch",)


@dataclass(frozen=True, kw_only=True)
class _Served(BucketCompiler):
    """Compiles nothing: each compile is answered by `serve`, which notes it in ``compiled``."""

    compiled: list[str] = field(default_factory=list)

    def _compile(
        self,
        calls: object,
        name: str,
        on_miss: OnMiss = OnMiss.FALLBACK,
        *,
        measures: bool = False,
        ahead: bool = False,
        times_kernels: bool = True,
    ) -> ServedBucket:
        how = "tune" if measures else str(on_miss)
        return self.serve(how, measures=measures, times_kernels=times_kernels)

    def serve(self, how: str, *, measures: bool, times_kernels: bool) -> ServedBucket:
        raise AssertionError(how, measures, times_kernels)


@dataclass(frozen=True, kw_only=True)
class _Compiler(_Served):
    """Compiles nothing: in its model, inductor fuses nothing into the GEMM of ``key``."""

    key: str

    def serve(self, how: str, *, measures: bool, times_kernels: bool) -> ServedBucket:
        self.compiled.append(how)
        if measures and self.progress.must_tune(self.key):
            winner = APART if self.key in self.tuner.apart else FUSED
            self.progress.save(Tuned(self.key, replace(make_row(), winner=winner), ()))
        differs = self.progress.rows[self.key].winner.fused is True
        found = (self.key,) if differs else ()
        return ServedBucket(keys=(self.key,), outputs=[], uncovered={}, differing=found)


def test_a_row_that_is_not_fused_in_the_model_is_measured_again_once(
    make_progress: Callable[..., Progress],
) -> None:
    """The row on disk is not fused then, and the bucket was served from it; so an earlier row."""
    key, unused = make_key(16), dict[str, Any](setup=None, model=MODEL)
    for has_row in (False, True):
        table = make_table({key: replace(make_row(), winner=FUSED)} if has_row else {})
        tuner = _Tuner()
        compiler = _Compiler(progress=make_progress(table), key=key, tuner=tuner, **unused)
        assert compiler.tune_as_is([], "seqlen=16").differing == (), has_row
        assert compiler.compiled == ["tune", "tune", "strict"], has_row
        assert read(compiler.progress.path).rows[key].winner == APART, has_row
        assert [tuned.row.winner for tuned in compiler.progress.measured] == [APART], has_row
    tuner = _Tuner(apart={key})  # measured apart before, and still fused: the build ends
    compiler = _Compiler(progress=make_progress(table), key=key, tuner=tuner, **unused)
    assert compiler.tune_as_is([], "seqlen=16").differing == (key,)
    assert compiler.compiled == ["tune"]


@dataclass(frozen=True, kw_only=True)
class _Bucket(_Served):
    """A bucket of a GPU with a GEMM for each of ``times_us``, and with a generated kernel."""

    times_us: Mapping[str, float]
    missed: tuple[str, ...] = ()

    def serve(self, how: str, *, measures: bool, times_kernels: bool) -> ServedBucket:
        self.compiled.append(f"{how} {times_kernels}")
        for key, time_us in self.times_us.items():
            if not measures or not self.progress.must_tune(key):
                continue
            evidence = replace(make_row().evidence, time_us=time_us, library_us=time_us)
            bare = Tuned(key, Row(FUSED.choice, evidence), ())
            question = GemmQuestion(GemmProblem.of_key(key), "cuda", (), region=REGION)
            self.tuner.fused[key] = WaitingFused(question, bare)
            self.progress.save(alone(bare))
        return ServedBucket(
            keys=tuple(self.times_us),
            outputs=[],
            uncovered={},
            missing=self.missed if times_kernels else KERNEL,
            cost=CallCost(host_us=1.0, device_us=1000.0),
            counts=dict.fromkeys(self.times_us, 2),
        )


def test_gemms_are_measured_with_their_regions_where_the_shares_are_worth_it(
    make_progress: Callable[..., Progress],
) -> None:
    """A build that was killed before goes on with the rows that it has measured alone.

    Where its start is packed, no bucket is compiled once more to show that no row is missing.
    """
    keys, unused = [make_key(m) for m in (16, 32, 64)], dict[str, Any](setup=None, model=MODEL)
    times_us = dict(zip(keys, (400.0, 3.0, 2.0), strict=True))  # of 1000 us, each twice
    for effort, fused in ((Effort.SHARE, keys[:2]), (Effort.FULL, keys)):
        progress = make_progress(make_table({}), effort=effort)
        compiler = _Bucket(progress=progress, tuner=_Tuner("cuda"), times_us=times_us, **unused)
        compiler.tune_as_is([], "batch=1")
        assert compiler.compiled == ["tune False", "tune True", "strict True"], effort
        rows = read(progress.path).rows
        assert [key for key in keys if rows[key].winner == FUSED] == fused, effort
        assert not any(Flag.OPEN in row.evidence.flags for row in rows.values()), effort
        assert all(rows[key].winner == APART for key in keys if key not in fused), effort
    for missed, given_up, strict in (
        ((), "", []),
        (KERNEL, "launch", []),
        (KERNEL, "", ["strict True"]),
    ):
        tuner = _Tuner("cuda", rows=SimpleNamespace(not_tuned={given_up: "it failed"}))
        packed = dict[str, Any](progress=make_progress(make_table({})), tuner=tuner, **unused)
        bucket = _Bucket(times_us={keys[0]: 400.0}, missed=missed, unshown=set(), **packed)
        bucket.tune_as_is([], "batch=1")
        assert bucket.compiled == ["tune False", "tune True", *strict], (missed, given_up)
        assert bucket.unshown == (set() if strict else {"batch=1"}), (missed, given_up)
    killed = {key: alone(compiler.tuner.fused[key].bare).row for key in keys}
    progress = make_progress(make_table(killed))
    assert all(map(progress.must_tune, keys))


def test_a_budget_ends_with_cheap_answers_and_the_next_build_goes_on(
    make_progress: Callable[..., Progress],
) -> None:
    """The most valuable regions come first, as long as time is left for what serving needs."""
    keys, unused = [make_key(m) for m in (16, 32, 64)], dict[str, Any](setup=None, model=MODEL)
    times_us = dict(zip(keys, (30.0, 400.0, 2.0), strict=True))  # of 1000 us, each twice
    for ends, fused in ((0.0, []), (30.0, keys[1:2]), (50.0, keys[:2]), (math.inf, keys[:2])):
        seconds = itertools.count(0.0, 10.0)  # each look at the clock takes ten
        estimate = BuildEstimate(now=partial(next, seconds), ends=ends)
        progress, tuner = make_progress(make_table({})), _Tuner("cuda", estimate=estimate)
        compiler = _Bucket(progress=progress, tuner=tuner, times_us=times_us, **unused)
        compiler.tune_as_is([], "batch=1")
        rows = read(progress.path).rows
        left = [key for key in keys[:2] if key not in fused]
        assert compiler.compiled == ["tune False", "tune True", "strict True"], ends
        assert [key for key in keys if rows[key].winner == FUSED] == sorted(fused), ends
        assert [key for key in keys if Flag.OPEN in rows[key].evidence.flags] == left, ends
        shares = {key: times_us[key] * 2 / 1000 for key in left}
        assert estimate.postponed == pytest.approx(shares), ends
        assert [key for key in keys if make_progress(make_table(rows)).must_tune(key)] == left, ends
    bare = tuner.fused[keys[0]].bare  # of a build without a budget nothing waits for the next one
    assert tuner.postponed(bare) is bare


# Pad decisions and split reductions, which are made by the compiled region.

PAD = "pad mm m=8 n=96 k=63 f32 a=row b=col free=a fp32=ieee"
GEMM = "packed_linear m=8 n=96 k=64 f32 a=row b=packed out=f32 fp32=ieee | epilogue=relu"
SPLIT = "split sum x=8 r=4096 f32 out=f32 reads=f32 hint=inner rule=4 input=again"
SPEC = TensorSpec((8, 8), (8, 1), 0, "float32")
REGION = Region((SPEC,), (), (), (1,))
OWN_CALLS = [make_outcome(AS_IS, 10.0), make_outcome(PADDED, 20.0)]


def question(region: Region | None, reason: str = "") -> RegionQuestion:
    calls = {way: (lambda _number: None) for way in (AS_IS, PADDED)}
    own, least = frozenset({PAD}), {PADDED: lambda _number: None}
    return RegionQuestion(ProblemOfKey(PAD), (AS_IS, PADDED), region, own, reason, calls, least)


def test_operands_are_positive_where_the_result_would_not_be_finite() -> None:
    """The region of a GEMM on a logarithm has no finite result for normally distributed values."""
    for function, fill in (("log", Fill.POSITIVE), ("exp", Fill.NORMAL)):
        steps = (
            Step(f"aten.{function}.default", ({"input": 0},), {}),
            Step("aten.mm.default", ({"step": 0}, {"input": 1}), {}),
            Step("prims.convert_element_type.default", ({"step": 1}, {"dtype": "bfloat16"}), {}),
        )
        asked = question(Region((SPEC, SPEC), steps, (1,), (1,)))
        policy = {"f32": 1e-5, "bf16": 1e-2}
        trial = variants_trial(asked, CPU, Method(), policy, seed=0)
        assert {spec.fill for spec in _with_finite_result(trial).operands} == {fill}, function
        # A result is as exact as the bf16 that it passed through, also where it is int8.
        assert trial.tolerance == 1e-5
        assert trial.tolerances["int8"] == trial.tolerances["bfloat16"] == 1e-2


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Tuner:
    monkeypatch.setattr("warmup.tuning.tuner.time_calls", lambda *_: OWN_CALLS)
    return Tuner(CPU, Method(), {}, region_questions=RegionQuestions(is_thorough=True))


def _next_of(times: list[list[Outcome]], *_: object) -> list[Outcome]:
    return times.pop(0)


def test_a_pad_decision_waits_for_its_region_where_free_copies_may_win(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding costs at least the product on padded operands; a gain within the band is none."""
    tuner.region_questions = RegionQuestions(is_used=True)
    for own_us, products_us, waits, *disturbed in (
        ((10.0, 12.0), (10.0, 10.0), False),  # only rows are padded: the same product
        ((10.0, 12.0), (10.0, 9.8), False),
        ((10.0, 12.0), (10.0, 9.0), True),  # the copies cost more than the product gains
        ((10.0, 12.0), (10.0, 11.0), False),
        ((10.0, 12.0), (10.0, 11.0), True, "by other processes"),
        ((10.0, 12.0), (10.0, None), True),  # the product alone did not run
        ((10.0, 9.0), (), True),  # padding wins with its copies
        ((10.0, None), (), True),
        ((None, 9.0), (), True),
    ):
        times = [
            [make_outcome(way, us) for way, us in zip((AS_IS, PADDED), both, strict=True)]
            for both in (own_us, products_us)
            if both
        ]
        monkeypatch.setattr("warmup.tuning.tuner.time_calls", partial(_next_of, times))
        measuring = partial(nullcontext, partial(bool, disturbed))
        monkeypatch.setattr(tuner.watch, "measuring", measuring)
        tuned = tuner.measure(question(REGION))
        case = own_us, products_us
        assert (PAD in tuner.region_questions.waiting, tuned is None) == (waits, waits), case
        assert times == [], case
        if tuned is not None:
            assert (tuned.row.winner, tuned.row.evidence.runner_up_us) == (AS_IS, own_us[1]), case
            assert "without any copy as_is 10.0 us, padded" in tuner.rows.not_fused[PAD], case
        tuner.region_questions.forget()
        tuner.rows.forget(PAD)


def test_a_question_waits_once_for_its_region(tuner: Tuner) -> None:
    """Equal layers ask the same; a region's own questions are not kept, and calls are dropped."""
    tuner.region_questions.is_used = True
    for _ in range(2):
        assert tuner.measure(question(REGION)) is None
    with tuner.region_questions.measuring() as waiting:
        assert tuner.measure(question(REGION)) is None
        ((key, calls),) = [(one.question.key, one.question.calls) for one in waiting]
    assert (key, dict(calls), tuner.region_questions.waiting) == (PAD, {}, {})


def test_without_a_region_or_a_second_compile_inductors_own_calls_decide(
    tuner: Tuner, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, and the reason is kept and logged; a split without such calls has no row."""
    caplog.set_level("INFO", "warmup")
    for region, is_used, said in (
        (None, True, "inductor's own calls decided: a range"),
        (REGION, False, "inductor's own calls decided: it was asked while serving"),
    ):
        tuner.region_questions.is_used = is_used
        tuned = tuner.measure(question(region, "" if region else "a range"))
        assert tuned is not None
        assert (tuned.row.winner, tuned.row.evidence.scope) == (AS_IS, Scope.BARE)
        assert tuner.rows.not_fused[PAD].startswith(said)
        assert f"{PAD}: {tuner.rows.not_fused[PAD]}" in caplog.messages
    parts = split_into(4), split_into(1)
    assert tuner.measure(RegionQuestion(ProblemOfKey(SPLIT), parts, REGION)) is None
    assert tuner.rows.not_tuned[SPLIT].startswith("it was asked while serving")
    assert tuner.rows.library_rows[SPLIT].winner == split_into(4)


def test_a_region_without_a_time_as_it_is_decides_nothing(tuner: Tuner) -> None:
    """Then the times of inductor's own calls are the row, and why is kept; padded may fail."""
    waiting = WaitingQuestion(question(REGION), OWN_CALLS, is_disturbed=False)
    for way, time_us, why in (
        (AS_IS, 10.0, {PAD: "inductor's own calls decided: it failed"}),
        (PADDED, 30.0, {}),
    ):
        timed = [
            make_outcome(winner, None if winner == way else us, said="it failed")
            for winner, us in ((AS_IS, 30.0), (PADDED, 40.0))
        ]
        tuned = tuner.rows.variants_row(waiting, timed, failure="", is_disturbed=False)
        assert tuned is not None
        assert (tuned.row.evidence.time_us, tuner.rows.not_fused) == (time_us, why)


def test_what_is_like_a_rule_far_behind_is_not_compiled() -> None:
    """One part is so much faster than the rule's four that two and eight are not; and not else."""
    for rule_us, one_us, is_behind in (
        (10.2, 5.7, True),
        (10.2, 9.9, False),
        (15.8, 75.0, False),
        (10.2, None, False),
        (None, 5.7, False),
    ):
        outcomes = [make_outcome(split_into(4), rule_us), make_outcome(split_into(1), one_us)]
        assert is_far_behind(split_into(4), outcomes) is is_behind, (rule_us, one_us)


def test_a_failure_of_inductors_own_calls_rejects_nothing() -> None:
    """They are evidence only: the region decides, and no way of it counts as rejected."""
    failed = [make_outcome(way, rejection=Rejection.CRASHED) for way in (AS_IS, PADDED)]
    timed = [make_outcome(AS_IS, 20.0), make_outcome(PADDED, 10.0)]
    tuned = make_variants_row(PAD, timed, failed, AS_IS, Method())
    assert isinstance(tuned, Tuned)
    evidence = tuned.row.evidence
    assert (tuned.row.winner, evidence.scope, evidence.bare_us) == (PADDED, Scope.FUSED, None)
    assert (evidence.tried, evidence.rejected, ranked(evidence.bare_ranking)) == (2, (), ())
    assert ranking_of(tuned) == "10 padded; 20 as_is"


MODELS = """
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(63, 96, bias=False)

    def forward(self, hidden_states):
        return torch.relu(self.up(hidden_states * 0.5))


class Norm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def example_inputs(seqlen):
    return (torch.randn(seqlen, 4096),)
"""


def run(run_once: Any, folder: Path, model: str, faster: str) -> dict[str, Any]:
    """Return what `build_regions.py` printed: a build, what was served, and a build once more."""
    path = folder / "region_models.py"
    path.write_text(MODELS if model == "Norm" else MODELS.partition("\n\ndef ex")[0])
    words = (str(PROGRAMS / "build_regions.py"), f"{path}:{model}", "table.json", faster)
    found: dict[str, Any] = json.loads(run_once(f"regions-{model}", *words)[1])
    ways = found["first"]["ways"]
    assert all(one["rejection"] is None and one["error"] < 1e-5 for one in ways), ways
    assert found["served"]["error"] < 1e-6
    # A later build of the bucket compiles it, and no region; nothing is tuned.
    again = found["again"]
    assert (again["ways"], again["tuned"], again["rows"]) == ([], [], found["first"]["rows"])
    return found


@pytest.mark.long
def test_a_build_pads_as_the_region_decides(run_once: Any, tmp_path: Path) -> None:
    """Both ways were compiled, called and checked; the GEMM of the loser has no row."""
    built = run(run_once, tmp_path, "Gate", "padded")
    first, served = built["first"], built["served"]
    row = first["rows"][PAD]
    assert [one["way"] for one in first["ways"]] == ["as_is", "padded"]
    assert (row["winner"], row["scope"]) == ("padded", "fused")
    assert (row["time_us"], row["library_us"], row["bare_us"]) == (10.0, 20.0, 20.0)
    assert (row["ranking"], row["bare_ranking"]) == ("10 padded; 20 as_is", "10 as_is; 20 padded")
    keys = sorted([PAD, GEMM])
    assert sorted(first["asked"]) == sorted(first["rows"]) == sorted(first["tuned"]) == keys
    assert (first["not_fused"], first["not_tuned"]) == ({}, {})
    assert (served["hits"], served["misses"], served["unused"]) == (keys, {}, [])


@pytest.mark.long
def test_a_build_splits_into_the_fastest_number_of_parts(run_once: Any, tmp_path: Path) -> None:
    """Each was run against a reference in higher precision; the rule's number is the control."""
    built = run(run_once, tmp_path, "Norm", "2")
    first, served = built["first"], built["served"]
    tried = [f"split(parts={parts})" for parts in (4, 1, 4, 1, 2, 8)]
    assert [one["way"] for one in first["ways"]] == tried
    assert (first["asked"], first["tuned"], first["not_tuned"]) == ([SPLIT], [SPLIT], {})
    row = {"winner": "split(parts=2)", "scope": "fused", "tried": 4, "library_us": 20.0}
    assert row.items() <= first["rows"][SPLIT].items()
    assert (served["hits"], served["parts"]) == ([SPLIT], [2])
