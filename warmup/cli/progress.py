"""Progress of long commands on stderr: a live line on a terminal, a line for each finished unit.

`BuildProgress` and `CompareProgress` are the observers of `warmup build` and `warmup compare`.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
from rich.table import Column
from rich.text import Text

from warmup.bench.compare import CompareObserver, Start, Variant
from warmup.cli.options import is_quiet
from warmup.cli.output import say, spell_cost
from warmup.core.buckets import Bucket, describe_count
from warmup.core.rows import Tuned
from warmup.core.text import counted, printable
from warmup.tuning.output_check import most_trials
from warmup.tuning.report import BucketResult, Observer, name_of

if TYPE_CHECKING:
    from warmup.serving.run import RunReport
    from warmup.tuning.report import CheckedOutput


_MOST_OF_BUCKET: Final = 0.95  # that tuned problems are: the output is judged after the last
_SILENT_S: Final = 60.0  # without a line on a stream that is no terminal


class StepColumn(ProgressColumn):
    """The step, cut where the terminal has no room: the columns behind it are whole."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class DoneColumn(ProgressColumn):
    """``1 of 4 buckets, 0:00:21 so far, about 0:01:03 left``.

    The time left is that of the units, by those done since the field ``since`` of the task, when
    ``base`` of them were: what a command did before says nothing of the next.
    """

    def __init__(self, units: str) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._units = units

    def render(self, task: Task) -> Text:
        """Return the text; the time left is told once a part of a unit is done."""
        elapsed, done, total = task.elapsed or 0.0, task.completed, task.total
        words = [] if total is None else [f"{int(done)} of {total:.0f} {self._units}"]
        words.append(f"{_clock(elapsed)} so far")
        since, base = task.fields.get("since", 0.0), task.fields.get("base", 0.0)
        if total is not None and base < done < total:
            each = (elapsed - since) / (done - base)
            words.append(f"about {_clock(each * (total - done))} left")
        return Text(", ".join(words))


def _clock(seconds: float) -> str:
    return str(dt.timedelta(seconds=int(seconds)))


class LiveLine(AbstractContextManager["LiveLine"]):
    """The live line of a command: its step, the *units* done, the time so far and the time left.

    On a stream that is no terminal the lines of `print_above` appear, and after a minute without
    one what the live line would show: the log of a container says that the command goes on.
    """

    def __init__(self, units: str) -> None:
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            StepColumn(),
            BarColumn(bar_width=16),
            DoneColumn(units),
            console=self._console,
            transient=True,
            disable=is_quiet() or not self._console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None)
        self._column, self._printed_at = DoneColumn(units), time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(
        self, step: str | None = None, *, done: float | None = None, total: int | None = None
    ) -> None:
        """Show the current step and how many units are done; what is not given stays."""
        self._progress.update(self._task, description=step, completed=done, total=total)
        is_silent = time.monotonic() - self._printed_at >= _SILENT_S
        if is_silent and not self._console.is_terminal:
            task = self._progress.tasks[self._task]
            self.print_above(f"{task.description}: {self._column.render(task).plain}")

    def begin_units(self, base: float = 0.0, since: float | None = None) -> float:
        """Count the time of the units from *since*, default now, when *base* are done."""
        begun = self._progress.tasks[self._task].elapsed or 0.0 if since is None else since
        self._progress.update(self._task, since=begun, base=base)
        return begun

    def print_above(self, line: str) -> None:
        """Print *line* above the live line, unless the command was told to be quiet."""
        self._printed_at = time.monotonic()
        if not is_quiet():
            self._console.print(printable(line), soft_wrap=True)


class BuildProgress(LiveLine, Observer):
    """Progress of a build.

    A problem that is tuned is a part of its bucket. How many a bucket has is taken from the buckets
    before it, and for the first from the different weights of the model. Until the first bucket is
    done, the time left is that of its problems. Buckets with padded weights count from 0 again.
    """

    def __init__(self, *, of_program: bool = False) -> None:
        super().__init__("buckets")
        self._of_program = of_program
        self._problems = self._buckets = self._before_bucket = self._expected = self._before = 0
        self._bucket, self._begun = "starting", 0.0

    def __enter__(self) -> Self:
        return self if self._of_program else super().__enter__()

    def program_ended(self, run: RunReport, left: int, again: int) -> None:
        then = [f"{counted(left, 'problem')} left to tune"] if left else []
        then += [f"{counted(again, 'unstable row')} to measure again"] if again else []
        words = ", ".join(then) or "nothing left to tune"
        say(f"warmup build: the program ended with code {run.exit_code}; {words}")
        if then:  # the terminal was the program's until now
            super().__enter__()

    def problems_expected(self, count: int) -> None:
        self._expected = count

    def model_loaded(self, assumptions: Sequence[object]) -> None:
        for assumption in assumptions:
            self.print_above(str(assumption))

    def buckets_counted(self, buckets: Sequence[Bucket]) -> None:
        if len(buckets) > 1:
            self.print_above(describe_count(buckets))

    def bucket_started(
        self, bucket: Bucket, index: int, total: int, *, weights_padded: bool
    ) -> None:
        self._bucket = name_of(bucket, weights_padded=weights_padded)
        self._before_bucket = self._problems
        if index == 0:  # the model is loaded, or its weights are padded now
            self._begun = self.begin_units()
            self._buckets, self._before = 0, self._problems
        self.show(self._bucket, done=index, total=total)

    def device_looked_at(self, remarks: Sequence[str]) -> None:
        for remark in remarks:
            self.print_above(f"device: {remark}")

    def waiting_started(self, reason: str, seconds: float) -> None:
        self.print_above(
            f"{reason}: waiting up to {seconds:.0f} s for quiet (--set wait_for_quiet=0 does not)"
        )

    def devices_ready(self, names: Sequence[str], control_us: Mapping[str, float]) -> None:
        times = ", ".join(f"{name} {control_us[name]:.1f} us" for name in names)
        self.print_above(f"devices that time: {times} for the control problem")

    def device_left_out(self, name: str, reason: str) -> None:
        self.print_above(f"{name} is left out: {reason}")

    def problem_given(self, key: str, device: str, total: int) -> None:
        self._bucket = device
        self.show(f"{device}: {key.partition(' ')[0]}", total=total)

    def problem_lost(self, key: str, device: str, reason: str, *, goes_on: bool) -> None:
        then = "another worker takes over" if goes_on else "given up"
        self.print_above(f"the worker on {device} {reason}; {then}: {key}")

    def candidates_compiled(self, done: int, total: int) -> None:
        self.show(f"{self._bucket}: {done} of {counted(total, 'candidate')} compiled")

    def problem_finished(self, tuned: Tuned) -> None:  # noqa: ARG002  an observer's parameter
        self._problems += 1
        of_bucket = self._problems - self._before_bucket
        part = min(of_bucket / self._expected, _MOST_OF_BUCKET) if self._expected else 0.0
        step = f"{self._bucket}: {counted(self._problems, 'problem')} tuned"
        self.show(step, done=self._buckets + part)
        if not self._buckets and of_bucket == 1:  # after compiling and, it may be, waiting
            self.begin_units(part)

    def bucket_finished(self, result: BucketResult) -> None:
        self._buckets += 1
        self._before_bucket = self._problems
        self._expected = max(1, round((self._problems - self._before) / self._buckets))
        self.begin_units(since=self._begun)
        self.show(done=self._buckets)
        left_out = counted(result.left_out, "repeated layer")
        known = len(result.keys) - result.tuned
        counts = f"{result.tuned} tuned, {known} in the table already"
        self.print_above(
            f"{result.name}: {counts if result.keys else 'nothing tuned, no row served'}, "
            f"{result.judgement.brief}, {result.seconds:.1f} s"
            + (f", without {left_out}" if result.left_out else "")
            + (f"; {spell_cost(result.cost)}" if result.cost is not None else "")
        )

    def output_wrong(self, name: str, rows: int, judgement: CheckedOutput) -> None:
        most = most_trials(rows)
        self.print_above(
            f"{name}: the output is wrong, {judgement}; looking for the row to blame among {rows}, "
            f"in at most {most} compiles"
        )

    def rows_tried(self, name: str, rows: int, judgement: CheckedOutput) -> None:
        verdict = "right" if judgement.is_right else "wrong"
        self.print_above(f"{name}: {verdict} with {counted(rows, 'row')}: {judgement.error:.2e}")

    def rows_rejected(self, line: str) -> None:
        self.print_above(line)

    def host_preferred(self, line: str) -> None:
        self.print_above(line)

    def packing_started(self) -> None:
        self.show("packing the bundle")

    def interrupted(self) -> None:
        """End the live line and say that finished problems are kept."""
        self.__exit__(None, None, None)
        say(
            f"interrupted: {counted(self._problems, 'problem')} tuned now, kept in the table; "
            "run the same command again to tune the rest"
        )


class CompareProgress(LiveLine, CompareObserver):
    """Progress of a comparison."""

    def __init__(self) -> None:
        super().__init__("rounds")

    def variant_started(self, variant: Variant) -> None:
        self.show(f"{variant.name}: first outputs")

    def variant_ready(self, variant: Variant, start: Start) -> None:
        self.begin_units()  # the rounds begin when the last variant is ready
        self.print_above(
            f"{variant.name}: first outputs after {start['process_seconds']:.1f} s, "
            f"{start['benchmarks']} benchmarks"
        )

    def variant_failed(self, variant: Variant, reason: str) -> None:
        self.print_above(f"{variant.name}: failed: {reason}")

    def round_finished(self, number: int, total: int) -> None:
        self.show("timing", done=number, total=total)
