"""`run_trial` on a CPU: wrong candidates are rejected, the others timed, the winner confirmed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from sample_trials import dense, make_trial

from warmup.core.rows import L2, Flag, Method, Rejection, Winner
from warmup.core.trial import Candidate, Operands, Outcome, Trial, Tuned, ViewSpec
from warmup.measuring import trial as screening
from warmup.measuring.reference import OperandSets
from warmup.measuring.selection import make_row, select_winner
from warmup.measuring.trial import FINAL_ROUNDS, PAUSES_S, SCREENING_ROUNDS, run_trial

Kernel = Callable[..., object]  # takes the views and `out`
LONG_US = 1e5
CPU = torch.device("cpu")


@dataclass
class Call:
    """Calls ``kernel`` on one set after another."""

    uid: str
    kernel: Kernel
    sets: Operands

    def __call__(self, number: int) -> object:
        return self.kernel(*self.sets.views(number), out=self.sets.out(number, at_offset=True))


@dataclass
class Bench:
    """Runs trials of ``kernels``; records the stages reported and the operand sets made."""

    kernels: dict[str, Kernel]
    reported: list[tuple[str, str]] = field(default_factory=list)
    made: list[OperandSets] = field(default_factory=list)

    def make_sets(self, seed: int, most: int) -> OperandSets:
        self.made.append(OperandSets(self.trial, CPU, seed, most))
        return self.made[-1]

    def make_call(self, candidate: Candidate, sets: Operands) -> Call:
        """Return the call of the kernel that *candidate* is named after."""
        name = candidate.winner.uid.removeprefix("aten::")
        return Call(name, self.kernels[name], sets)

    def at(self, winner: Winner, stage: str) -> None:
        self.reported.append((winner.uid.removeprefix("aten::"), stage))

    def run(self, trial: Trial, **options: Any) -> dict[str, Outcome]:
        """Return the outcomes by name; they come in the order of the candidates."""
        self.trial = trial
        outcomes = run_trial(trial, self.make_sets, self.make_call, on_stage=self.at, **options)
        assert [one.winner for one in outcomes] == [one.winner for one in trial.candidates]
        return {one.winner.uid.removeprefix("aten::"): one for one in outcomes}

    def stages(self, name: str) -> list[str]:
        """Return each stage that *name* went through once, in order."""
        return list(dict.fromkeys(stage for reported, stage in self.reported if reported == name))


def winner_of(trial: Trial, outcomes: Iterable[Outcome]) -> str | None:
    tuned: Tuned | None = make_row(trial.key, tuple(outcomes), trial.library, trial.method)
    return None if tuned is None else tuned.row.winner.uid.removeprefix("aten::")


def zeros(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.zero_()


def half(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    rows = a.shape[0] // 2
    out[:rows] = a[:rows] @ b


def nothing(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    return None


def infinite(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)
    out[3, 3] = float("inf")


def one_tile(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)
    out[:2, :2] = 0


def rounded(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    out.copy_((a.bfloat16() @ b.bfloat16()).float())


def own_output(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


def failing(error: BaseException) -> Kernel:
    def fail(*_: torch.Tensor, out: torch.Tensor) -> None:
        raise error

    return fail


class CompilationError(Exception):
    """As Triton's, by its name."""


class OutOfResources(Exception):  # noqa: N818  as Triton's
    """As Triton's, by its name."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of a product that wait for each other on a busy machine take seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ran(*kernels: Kernel, **more: Kernel) -> Bench:
    return Bench({"mm": torch.mm, **{kernel.__name__: kernel for kernel in kernels}, **more})


def test_what_misbehaves_is_rejected_for_what_it_does(fake_clock: Any) -> None:
    """A misbehaving candidate is never timed and cannot win, although it would be the fastest."""
    fake_clock.times = {"bad": 1.0}
    trial = make_trial(["mm", "bad"])
    for kernel, reason in (
        *((kernel, Rejection.WRONG) for kernel in (zeros, one_tile, infinite)),
        *((kernel, Rejection.UNWRITTEN) for kernel in (half, nothing)),
        (failing(RuntimeError("no")), Rejection.CRASHED),
        (failing(RuntimeError("out of resource: shared memory")), Rejection.LAUNCH),
        (failing(RuntimeError("CUDA error: invalid argument")), Rejection.LAUNCH),
        (failing(OutOfResources()), Rejection.LAUNCH),
        (failing(CompilationError()), Rejection.COMPILE),
        (failing(MemoryError()), Rejection.OUT_OF_MEMORY),
        (failing(torch.OutOfMemoryError("CUDA out of memory")), Rejection.OUT_OF_MEMORY),
    ):
        outcomes = ran(bad=kernel).run(trial)
        assert (outcomes["bad"].rejection, outcomes["bad"].samples) == (reason, None), kernel
        assert (fake_clock.taken["bad"], winner_of(trial, outcomes.values())) == (0, "mm"), kernel


def int_trial(*names: str) -> Trial:
    a, b = dense(64, 32, dtype="int8"), dense(32, 16, dtype="int8")
    views = (ViewSpec(0, a.sizes, a.strides, 0), ViewSpec(1, b.sizes, b.strides, 0))
    out = dense(64, 16, dtype="int32")
    return make_trial(names, op="int_mm", operands=(a, b), views=views, out=out)


def int_mm(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    out.copy_(a.int() @ b.int())


def int_half(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    out[:32] = a[:32].int() @ b.int()


def test_integers_are_poisoned_and_compared_exactly(fake_clock: Any) -> None:
    """An int8 matmul has no error; half an int8 result is found unwritten without NaN."""
    trial = int_trial("int_mm", "int_half")
    outcomes = ran(int_mm, int_half).run(trial)
    assert (outcomes["int_mm"].rejection, outcomes["int_mm"].error) == (None, 0.0)
    assert outcomes["int_half"].rejection is Rejection.UNWRITTEN


def test_where_no_reference_is_known_the_control_is(fake_clock: Any) -> None:
    """Candidates must agree with the library default; where that fails, there is no row."""
    trial = make_trial(["mm", "zeros", "half", "own_output"], op="unheard_of")
    for control in (torch.mm, own_output):
        outcomes = ran(zeros, half, own_output, mm=control).run(trial)
        assert {name: one.rejection for name, one in outcomes.items()} == {
            "mm": None,
            "zeros": Rejection.WRONG,
            "half": Rejection.UNWRITTEN,
            "own_output": None,
        }, control
    fake_clock.taken.clear()
    trial = make_trial(["mm", "own_output"], op="unheard_of")
    outcomes = ran(own_output, mm=failing(RuntimeError("no kernel"))).run(trial)
    assert outcomes["own_output"].rejection is Rejection.WRONG
    assert outcomes["own_output"].said == "nothing to compare with: the control failed"
    assert fake_clock.taken["own_output"] == 0
    assert select_winner(list(outcomes.values()), trial.library, trial.method) is None


def test_a_wrong_control_loses_where_the_reference_is_known(fake_clock: Any) -> None:
    """A wrong library default is rejected like any candidate, and another candidate wins."""
    trial = make_trial(["mm", "own_output"])
    outcomes = ran(own_output, mm=zeros).run(trial)
    assert outcomes["mm"].rejection is Rejection.WRONG
    assert winner_of(trial, outcomes.values()) == "own_output"


def test_a_result_at_an_offset_is_looked_for_there(fake_clock: Any) -> None:
    def at_offset(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
        torch.mm(a, b, out=out)

    trial = make_trial(["mm", "at_offset"], out=dense(256, 128, offset=64))
    assert ran(at_offset).run(trial)["at_offset"].rejection is None


def memorizing() -> Kernel:
    """Return a matmul that computes its first result and returns it ever after."""
    memory: list[torch.Tensor] = []

    def memorized(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
        if not memory:
            memory.append(a @ b)
        out.copy_(memory[0])

    return memorized


def test_a_winner_is_confirmed_on_fresh_data(fake_clock: Any) -> None:
    """A call that returns its first result passes the first check and is rejected later."""
    fake_clock.times = {"memo": LONG_US / 2}
    bench = ran(memo=memorizing())
    trial = make_trial(["mm", "memo"])
    outcomes = bench.run(trial)
    assert bench.stages("memo") == ["check", "prepare", "time", "confirm"]
    assert outcomes["memo"].rejection is Rejection.WRONG
    assert outcomes["memo"].samples is not None
    assert (winner_of(trial, outcomes.values()), bench.stages("mm")[-1]) == ("mm", "confirm")


def test_who_is_next_after_a_rejection_was_timed_to_the_end(fake_clock: Any) -> None:
    fake_clock.times = {"memo": LONG_US / 100, "fast": LONG_US / 2}
    trial = make_trial(["mm", "memo", "fast"])
    outcomes = ran(memo=memorizing(), fast=torch.mm).run(trial)
    assert outcomes["memo"].rejection is Rejection.WRONG
    assert outcomes["fast"].is_final
    assert winner_of(trial, outcomes.values()) == "fast"


def test_a_time_below_the_floor_is_measured_again(fake_clock: Any) -> None:
    fake_clock.times = {"liar": LONG_US / 3}
    trial = make_trial(["mm", "liar"], floor_us=LONG_US / 2)
    outcomes = ran(liar=torch.mm).run(trial)
    assert outcomes["liar"].rejection is Rejection.IMPLAUSIBLE
    assert fake_clock.taken["liar"] == SCREENING_ROUNDS + 2 * FINAL_ROUNDS * (1 + len(PAUSES_S))
    assert winner_of(trial, outcomes.values()) == "mm"
    assert "the measured peaks allow 50000.00 us" in outcomes["liar"].said


def test_who_wins_after_a_second_look_was_confirmed(fake_clock: Any) -> None:
    """If a winner is slower when measured again, the next winner is confirmed too."""
    fast = itertools.repeat(LONG_US / 10, SCREENING_ROUNDS + FINAL_ROUNDS)
    fake_clock.times = {"lucky": itertools.chain(fast, itertools.repeat(LONG_US * 10))}
    bench = ran(lucky=torch.mm, mm=memorizing())
    trial = make_trial(["mm", "lucky"], floor_us=LONG_US / 2)
    outcomes = bench.run(trial)
    winner = winner_of(trial, outcomes.values())
    assert winner is not None
    assert (winner, "confirm") in bench.reported
    assert outcomes["mm"].rejection is Rejection.WRONG


def slow_product(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
    deadline = time.perf_counter() + 0.001
    while time.perf_counter() < deadline:
        pass
    torch.mm(a, b, out=out)


def test_a_lying_clock_is_contradicted_by_the_wall_clock(fake_clock: Any) -> None:
    """A call of a millisecond with a reported time of ten microseconds is implausible."""
    fake_clock.times = {"liar": 10.0}
    trial = make_trial(["mm", "liar"])
    outcomes = ran(liar=slow_product).run(trial)
    assert outcomes["liar"].rejection is Rejection.IMPLAUSIBLE
    assert "while the wall clock says" in outcomes["liar"].said
    assert winner_of(trial, outcomes.values()) == "mm"


def test_a_refused_control_is_measured_again(fake_clock: Any) -> None:
    """A library time that the wall clock contradicts once is dropped; the times after it count."""
    refused = itertools.repeat(10.0, SCREENING_ROUNDS + FINAL_ROUNDS)
    fake_clock.times = {"mm": itertools.chain(refused, itertools.repeat(LONG_US))}
    trial = make_trial(["mm", "own_output"])
    outcomes = ran(own_output, mm=slow_product).run(trial)
    assert (outcomes["mm"].rejection, outcomes["mm"].time_us) == (None, LONG_US)
    assert outcomes["mm"].samples is not None
    assert set(outcomes["mm"].samples.times_us) == {LONG_US}
    assert winner_of(trial, outcomes.values()) == "mm"


def test_nothing_wins_over_a_control_that_stays_refused(
    fake_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is measured again after each pause, and keeps its row, which is unstable."""
    waited: list[float] = []
    monkeypatch.setattr(screening, "PAUSES_S", PAUSES_S)
    monkeypatch.setattr(screening.time, "sleep", waited.append)
    fake_clock.times = {"mm": 10.0}
    trial = make_trial(["mm", "own_output"])
    outcomes = ran(own_output, mm=slow_product).run(trial)
    assert outcomes["mm"].rejection is Rejection.IMPLAUSIBLE
    assert fake_clock.taken["mm"] == SCREENING_ROUNDS + FINAL_ROUNDS * (1 + len(PAUSES_S))
    tuned = make_row(trial.key, tuple(outcomes.values()), trial.library, trial.method)
    assert tuned is not None
    assert (tuned.row.winner, tuned.row.evidence.flags) == (trial.library, (Flag.UNSTABLE,))
    assert waited == list(PAUSES_S)


def test_a_control_that_lacks_memory_is_tried_again(fake_clock: Any) -> None:
    """Another process may hold the memory for a moment; any other candidate is rejected at once."""
    held = {"mm": 2, "bad": 2}

    def lacking(name: str) -> Kernel:
        def product(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
            held[name] -= 1
            if held[name] >= 0:
                raise torch.OutOfMemoryError
            torch.mm(a, b, out=out)

        return product

    outcomes = ran(mm=lacking("mm"), bad=lacking("bad")).run(make_trial(["mm", "bad"]))
    assert outcomes["mm"].time_us == LONG_US
    assert (outcomes["bad"].rejection, held["bad"]) == (Rejection.OUT_OF_MEMORY, 1)


def test_what_fails_while_it_is_timed_is_out_and_the_rest_goes_on(fake_clock: Any) -> None:
    """The others are timed as often as without the failing candidate."""
    failing_later: Iterator[float | Exception] = iter([1.0, 1.0, RuntimeError("gone")])
    fake_clock.times = {"bad": failing_later}
    trial = make_trial(["mm", "bad", "own_output"])
    outcomes = ran(own_output, bad=torch.mm).run(trial)
    assert outcomes["bad"].rejection is Rejection.CRASHED
    for name in ("mm", "own_output"):
        samples = outcomes[name].samples
        assert samples is not None
        assert len(samples.times_us) == FINAL_ROUNDS


def test_finalists_are_timed_until_they_are_steady(fake_clock: Any) -> None:
    """At most three times, the control always; what is clearly slower is screened only."""
    for control, rounds in (
        (itertools.repeat(LONG_US * 2), FINAL_ROUNDS),
        (itertools.cycle([LONG_US, LONG_US * 2]), 3 * FINAL_ROUNDS),
    ):
        fake_clock.times = {"slow": LONG_US * 2, "mm": control}
        outcomes = ran(own_output, slow=torch.mm).run(make_trial(["mm", "slow", "own_output"]))
        found = {
            name: (one.is_final, len(one.samples.times_us))
            for name, one in outcomes.items()
            if one.samples is not None
        }
        assert found == {
            "mm": (True, rounds),
            "slow": (False, SCREENING_ROUNDS),
            "own_output": (True, rounds),
        }, rounds


def test_what_was_rejected_before_is_not_run(fake_clock: Any) -> None:
    """A candidate rejected before has no stage, its kernel is not called, its outcome is kept."""
    trial = make_trial(["mm", "bad"])
    before = Outcome(
        winner=trial.candidates[1].winner, rejection=Rejection.CRASHED, said="took the process down"
    )
    bench = ran(bad=failing(AssertionError("it ran")))
    assert (bench.run(trial, rejected=[before])["bad"], bench.stages("bad")) == (before, [])


def test_an_error_that_loses_the_device_is_raised(fake_clock: Any) -> None:
    error = RuntimeError("an illegal memory access was encountered")
    for stage, kernel in (("check", failing(error)), ("time", torch.mm)):
        fake_clock.times = {"bad": iter([error])}
        bench = ran(bad=kernel)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            bench.run(make_trial(["mm", "bad", "own_output"]), is_lost=lambda found: found is error)
        assert bench.reported[-1] == ("bad", stage)


def test_the_real_clock_times_every_honest_call() -> None:
    """With a cold cache calls have operand sets of their own; a call may make its output."""
    for l2 in L2:
        trial = make_trial(["mm", "own_output"], method=Method(l2=l2, max_spread=1e9, near_tie=0.5))
        bench = ran(own_output)
        outcomes = bench.run(trial)
        assert (bench.made[0].count > 1) == (l2 is L2.COLD), l2
        control = outcomes["mm"].samples
        assert control is not None, l2
        assert len(control.times_us) % FINAL_ROUNDS == 0, l2
        assert min(control.times_us) > 0, l2
        assert all((one.error or 0.0) < 1e-4 for one in outcomes.values()), l2
