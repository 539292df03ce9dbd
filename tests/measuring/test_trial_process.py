"""`TrialProcess` with real children on a CPU, whose candidates crash, hang, lie or pretend to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sample_trials import make_trial

from warmup.core.errors import BuildError
from warmup.core.rows import L2, Method, Rejection
from warmup.core.trial import Outcome, TensorSpec
from warmup.measuring.selection import make_row
from warmup.measuring.trial_process import TrialNotRunError, TrialProcess, own_command

pytestmark = pytest.mark.long

Start = Callable[..., TrialProcess]
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
REASONS = {
    "bad_zeros": Rejection.WRONG,
    "bad_half": Rejection.UNWRITTEN,
    "bad_tile": Rejection.WRONG,
    "bad_fault": Rejection.CRASHED,
    "bad_hang": Rejection.TIMED_OUT,
    "bad_exit": Rejection.CRASHED,
    "bad_shared_memory": Rejection.LAUNCH,
    "bad_memory": Rejection.OUT_OF_MEMORY,
    "bad_clock": Rejection.IMPLAUSIBLE,
}


def program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / name), *arguments]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """``start([program, ...])``: a child for trials, ended after the test. Each uses one thread."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started: list[TrialProcess] = []

    def make(command: list[str], limit_s: float = 5) -> TrialProcess:
        with tempfile.TemporaryFile() as log:
            copy = os.fdopen(os.dup(log.fileno()), "w+b")
        started.append(TrialProcess(command, limit_s=limit_s, log=copy))
        return started[-1]

    yield make
    for process in started:
        process.close()
        assert process.log is not None
        process.log.close()


def named(outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    return {one.winner.uid.removeprefix("aten::"): one for one in outcomes}


def is_running(pid: int | None) -> bool:
    """Return whether *pid* is a running process; a zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def has_ended(pid: int | None, limit_s: float = 15) -> bool:
    deadline = time.monotonic() + limit_s
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(pid)


def test_every_bad_candidate_is_rejected_and_a_good_one_wins(start: Start) -> None:
    """In a trial with nine candidates that are wrong, crash, hang or lie; the next trial runs."""
    noisy = Method(l2=L2.WARM, max_spread=1e3)  # however busy this machine is, the liar leads
    trial = make_trial(["mm", "good", *REASONS], method=noisy)
    process = start(program("bad_candidates.py"))
    outcomes = process.run(trial)
    found = named(outcomes)
    assert {name: found[name].rejection for name in REASONS} == REASONS
    tuned = make_row(trial.key, outcomes, trial.library, trial.method)
    assert tuned is not None
    assert tuned.row.winner.uid in {"aten::mm", "aten::good"}
    assert [one.winner for one in outcomes] == [one.winner for one in trial.candidates]
    assert found["bad_fault"].said == "was killed by SIGSEGV"
    assert found["bad_hang"].said == "said nothing for 5 s"
    assert found["bad_exit"].said == "ended with exit code 9"
    second = process.pid
    assert all(one.samples for one in process.run(make_trial(["mm", "good"])))
    assert process.pid == second


def test_warmups_own_program_runs_a_trial_after_one_that_does_not_fit(start: Start) -> None:
    """``python -m warmup.tuning.worker`` multiplies, checks and times; a CPU has no SM clock."""
    process = start(own_command(), 60)
    huge = TensorSpec((2**50,), (1,), 0, "float32")
    with pytest.raises(TrialNotRunError, match="memory"):
        process.run(make_trial(["mm"], out=huge))
    first = process.pid
    (outcome,) = process.run(make_trial(["mm"]))
    assert outcome.samples is not None
    assert outcome.error is not None
    assert outcome.error < 1e-5
    assert (outcome.is_final, outcome.clock_mhz, process.pid) == (True, None, first)


def test_a_child_that_does_not_start_fails_the_build(start: Start) -> None:
    """The error names the process, how it ended, and its last words."""
    for code, said in (
        ("raise SystemExit('no module named torch')", "exit code 1 (no module named torch)"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("pass", "ended with exit code 0"),
    ):
        process = start([sys.executable, "-c", code])
        with pytest.raises(BuildError) as caught:
            process.run(make_trial(["mm"]))
        assert "the process that measures candidates" in str(caught.value)
        assert said in str(caught.value)
        assert process.pid is None


def test_each_death_costs_one_candidate_and_sixteen_the_trial(start: Start) -> None:
    process = start(program("fake_measurer.py", "dies"))
    outcomes = process.run(make_trial(["mm", "a", "b"]))
    said = "ended with exit code 7 (these are my last words)"
    assert [(one.rejection, one.said) for one in outcomes] == [(Rejection.CRASHED, said)] * 3
    with pytest.raises(TrialNotRunError, match="16 candidates"):
        process.run(make_trial(["mm", *(f"other{number}" for number in range(20))]))
    assert process.pid is None


def test_a_candidate_compiled_ahead_costs_its_own_trial_only(start: Start) -> None:
    """It takes the child down while another trial is next; its own trial has the reason later."""
    said = "ended with exit code 7 (these are my last words)"
    for mode, reason in (("dies", Rejection.CRASHED), ("hangs", Rejection.TIMED_OUT)):
        process = start(program("fake_measurer.py", f"ahead={mode}"), 1)
        trials = [make_trial(["mm"]), make_trial(["mm", "bad", "other"]), make_trial(["other"])]
        process.prepare(trials)
        first, second, third = (named(process.run(trial)) for trial in trials)
        assert (first["mm"].time_us, third["other"].time_us) == (2.0, 2.0), mode
        assert {name: one.time_us for name, one in second.items()} == {
            "mm": 2.0,
            "bad": None,
            "other": 2.0,
        }, mode
        assert second["bad"].rejection is reason, mode
        assert (second["bad"].said == said) is (mode == "dies")


def test_the_control_may_die_once(start: Start, tmp_path: Path) -> None:
    """If the child dies in the library's kernel, the trial runs again with every candidate."""
    process = start(program("fake_measurer.py", f"dies_unless={tmp_path / 'died'}"))
    outcomes = process.run(make_trial(["mm", "other"]))
    assert (tmp_path / "died").exists()
    assert [one.time_us for one in outcomes] == [2.0, 2.0]


def test_a_hang_is_ended_with_its_process(start: Start) -> None:
    process = start(program("fake_measurer.py", "hangs"), 1)
    process.start()
    first = process.pid
    assert named(process.run(make_trial(["mm"])))["mm"].rejection is Rejection.TIMED_OUT
    assert not is_running(first)


def test_a_child_that_died_between_trials_is_replaced(start: Start) -> None:
    """What a child prints is no answer: results use a file descriptor of their own."""
    process = start(program("fake_measurer.py", "works"))
    (outcome,) = process.run(make_trial(["mm"]))
    assert (outcome.time_us, outcome.clock_mhz) == (2.0, 1500)
    assert process.log is not None
    process.log.seek(0)
    assert process.log.read() == b"this is no answer\n"
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert has_ended(process.pid)
    assert process.run(make_trial(["mm"]))[0].time_us == 2.0


def test_close_leaves_no_process_and_a_fork_leaves_it_to_its_parent(start: Start) -> None:
    """A server that forks its workers may end one of them while it measures itself."""
    process = start(program("fake_measurer.py", "works"))
    process.start()
    first = process.pid
    if (forked := os.fork()) == 0:
        process.close()
        os._exit(0)
    os.waitpid(forked, 0)
    assert is_running(first)
    process.close()
    process.run(make_trial(["mm"]))
    second = process.pid
    process.close()
    process.close()
    assert [is_running(first), is_running(second), process.pid] == [False, False, None]


@pytest.mark.parametrize(("verb", "mode"), [("start", "works"), ("run", "hangs")])
def test_the_parents_death_leaves_no_process(verb: str, mode: str) -> None:
    """When the process that measures is killed its child ends too, idle or in a candidate."""
    with subprocess.Popen(
        program("start_measurer.py", verb, mode), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    try:
        assert has_ended(child)
    finally:
        if is_running(child):
            os.kill(child, signal.SIGKILL)
