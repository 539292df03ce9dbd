"""`run_queue`: gives each runner problem after problem, and a lost problem to another device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Final, Protocol

from warmup.tuning.devices.messages import FinishedProblem, ProblemTask
from warmup.tuning.devices.problem_queue import ProblemQueue
from warmup.tuning.devices.runner import ReadyWorker, Runner, RunnerGoneError, RunnerLostError

MOST_LOSSES_IN_A_ROW: Final = 3  # of one worker: then the device is to blame, not a problem
_Calls = dict[Future[Any], tuple[Runner, str | None]]  # under way; no key while a worker starts


class DispatchListener(Protocol):
    """Receives what happens to the problems of a queue, in the thread that calls `run_queue`."""

    def task_for(self, runner: Runner, key: str) -> ProblemTask:
        """Return the task to send to *runner* for the problem *key*."""

    def finished(self, runner: Runner, finished: FinishedProblem) -> None:
        """Keep what came of a problem."""

    def lost(self, runner: Runner, key: str, reason: str, *, goes_on: bool) -> None:
        """The worker of *runner* was lost with *key*, and has no rows any more."""


def start_all(
    runners: Sequence[Runner], pool: ThreadPoolExecutor
) -> tuple[dict[str, ReadyWorker], dict[str, str]]:
    """Start all workers at once; return those that are ready, and why others are not, by name."""
    ready, gone = {}, {}
    starts = {runner.name: pool.submit(runner.start) for runner in runners}
    for name, start in starts.items():
        try:
            ready[name] = start.result()
        except RunnerGoneError as error:
            gone[name] = str(error)
    return ready, gone


def run_queue(
    queue: ProblemQueue,
    runners: Sequence[Runner],
    pool: ThreadPoolExecutor,
    listener: DispatchListener,
) -> Mapping[str, str]:
    """Run every problem of *queue* on *runners*, which have started; *pool* has a thread for each.

    Return, by the runner's name, why it was given up. Problems that no runner was left for are in
    ``queue.failed``. Whatever *listener* raises ends the loop, and calls may still be under way.
    """
    idle, under_way = list(runners), _Calls()
    in_a_row, gone = Counter[str](), dict[str, str]()
    while True:
        _assign(queue, idle, under_way, pool, listener.task_for)
        is_needed = len(queue) > 0 or any(key is not None for _, key in under_way.values())
        if not under_way or not is_needed:  # a worker may start again, for nothing
            break
        for call in wait(under_way, return_when=FIRST_COMPLETED).done:
            runner, key = under_way.pop(call)
            try:
                answer = call.result()
            except RunnerGoneError as error:
                gone[runner.name] = f"did not start again: {error}"
                continue
            except RunnerLostError as error:
                assert key is not None
                in_a_row[runner.name] += 1
                goes_on = queue.lose(key, runner.device, str(error))
                listener.lost(runner, key, str(error), goes_on=goes_on)
                if in_a_row[runner.name] >= MOST_LOSSES_IN_A_ROW:
                    gone[runner.name] = f"lost {in_a_row[runner.name]} problems in a row: {error}"
                elif len(queue):
                    under_way[pool.submit(runner.start)] = runner, None
                continue
            if key is not None:
                in_a_row[runner.name] = 0
                listener.finished(runner, answer)
            idle.append(runner)
    if len(queue):
        queue.fail_rest("no device is left")
    return gone


def _assign(
    queue: ProblemQueue,
    idle: list[Runner],
    under_way: _Calls,
    pool: ThreadPoolExecutor,
    task_for: Callable[[Runner, str], ProblemTask],
) -> None:
    """Give each runner in *idle* a problem that it may take, if there is one."""
    in_use = [*idle, *(runner for runner, _ in under_way.values())]
    for runner in tuple(idle):
        others = {each.device for each in in_use if each is not runner}
        key = queue.take(runner.device, others)
        if key is not None:
            idle.remove(runner)
            under_way[pool.submit(runner.run, task_for(runner, key))] = runner, key
