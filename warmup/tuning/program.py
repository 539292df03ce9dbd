"""`build_from_program`: a table of what a user's own program asks, without a model file.

The program runs once, with `warmup.tuning.recorder` in each of its processes. What they could not
measure, or with ``after`` all that they asked, is tuned from its key when the program has ended.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from warmup.core.errors import BuildError, NothingRecordedError, SettingsError
from warmup.core.events import selections
from warmup.core.method import Search
from warmup.core.processes import RECORDING_VARIABLE, RecordingOrder
from warmup.core.rows import Row
from warmup.core.text import remedy_for
from warmup.keys.registry import kind_of
from warmup.serving.audit import MissedProblem
from warmup.serving.run import RunReport, run_with
from warmup.table.schema import PolicyOptions, Table
from warmup.table.store import read, read_folded
from warmup.tuning.problems import build_problems
from warmup.tuning.progress import parse_budget
from warmup.tuning.recorder import read_regions
from warmup.tuning.report import BuildReport, Observer
from warmup.tuning.setup import check_out, seconds_to_wait

# The variable of an engine's own cache of graphs. Graphs from a cache ask nothing.
_CACHE_OF_ENGINE: Final = "VLLM_CACHE_ROOT"


@dataclass(frozen=True, slots=True)
class ProgramBuild:
    """A program that ran and was recorded, and the build of what was left when it ended.

    ``before`` are the keys that had a row before the program began, and ``rows`` the rows when it
    had ended. ``rest`` is None where nothing was left to tune. ``collected``: the program measured
    nothing, and all that it asked was left.
    """

    run: RunReport
    path: Path
    before: frozenset[str]
    rows: Mapping[str, Row]
    problems: tuple[MissedProblem, ...]
    rest: BuildReport | None = None
    collected: bool = False

    @property
    def tuned_in_program(self) -> AbstractSet[str]:
        """The keys that the processes of the program measured."""
        return self.rows.keys() - self.before

    @property
    def changed_afterwards(self) -> list[str]:
        """The keys whose winner another measurement changed when the program had ended.

        Another kernel follows from such a winner, whose launch config no process has asked for yet.
        """
        final = {} if self.rest is None else self.rest.table.rows
        return sorted(
            key
            for key, row in self.rows.items()
            if key in final and final[key].winner != row.winner
        )

    @property
    def is_complete(self) -> bool:
        """Whether every question of the program that was asked has a row that serving uses."""
        rest = self.rest
        left = rest and (rest.not_rebuilt or rest.not_tuned or rest.distrusted)
        audit = self.run.audit
        return not (left or audit.failed or audit.damaged or self.run.unread)


def build_from_program(
    command: Sequence[str],
    *,
    out: str | Path,
    after: bool = False,
    device: str = "auto",
    search: str = Search.DEFAULT,
    wait_for_quiet: float | None = None,
    freezing: bool | None = None,
    stdout_to_stderr: bool = False,
    observer: Observer | None = None,
    ended: Callable[[RunReport, int, int], None] = lambda _run, _left, _again: None,
    **policy: Any,
) -> ProgramBuild:
    """Run *command* once, and add a row for everything that its processes ask to the table *out*.

    A question is measured when it is asked, in the process that asks; with *after* the program
    runs as it would without a row, and its questions are tuned when it has ended. Rows of *out*
    are used and kept. Each row is on disk before the next question is measured, so that a program
    that is killed loses nothing that was measured. When it has ended, rows that it asked for and
    whose times do not carry a decision are measured again, where that needs no program. *ended* is
    called then, with the number of problems left and that of rows to measure again.

    Weights are frozen where the program does so, or with *freezing* as by `warmup.install`. Signals
    are passed on to the command, as by `warmup.serving.run.run`. *stdout_to_stderr* is as in
    `run_with`, and the other arguments are those of `warmup.tuning.build.build`.

    Raises:
        SettingsError: an argument cannot be used, or the command cannot be started.
        TableError: *out* is damaged or cannot be written, or, found when the command has ended, is
            for another device, runtime or policy.
        BuildError: this torch is not supported, or *out* does not fit, so that no process of the
            command could be recorded.
        NothingRecordedError: the command ended well, and no process of it asked for a choice.
    """
    path = Path(out)
    check_out(path)
    seconds_to_wait(wait_for_quiet)
    before = frozenset(read(path).rows) if path.exists() else frozenset()
    how: dict[str, Any] = {
        "device": device,
        "search": str(parse_budget(search, None).search),
        "wait_for_quiet": wait_for_quiet,
    }
    with _folder() as folder:
        order = RecordingOrder(
            out=str(path.absolute()),
            folder=folder,
            session=secrets.token_hex(8),
            after=after,
            options=asdict(PolicyOptions(**policy)),
            **how,
        )
        settings = {
            _CACHE_OF_ENGINE: str(Path(folder) / "engine"),
            RECORDING_VARIABLE: order.to_json(),
        }
        if freezing is not None:
            settings["WARMUP_FREEZING"] = str(int(freezing))
        ran = run_with(command, settings, stdout_to_stderr=stdout_to_stderr)
        origin = read(order.origin) if order.origin.exists() else None
        regions = () if origin is None else read_regions(order.regions)
    rows = read_folded(path).rows if path.exists() else {}
    asked_for = {*ran.audit.hits, *ran.audit.tuned}
    again = [
        key
        for key, row in rows.items()
        if key in asked_for and row.evidence.is_unstable and kind_of(key).rebuild is not None
    ]
    problems = tuple(
        MissedProblem(miss.key, kind_of(miss.key).name, miss.reason, miss.count)
        for miss in ran.audit.misses
        if miss.key not in rows or rows[miss.key].untrusted is not None
    )
    ended(ran, len(problems), len(again))
    if ran.audit.mismatch and not ran.audit.runs:
        raise BuildError(
            f"nothing was recorded, and nothing was written to {path}",
            "the line `no table in process` above says why, and what to do",
        )
    if not (ran.audit.hits or ran.audit.tuned or problems or ran.exit_code):
        if uncovered := selections(ran.audit.uncovered):
            raise NothingRecordedError.of_uncovered(uncovered)
        raise NothingRecordedError(
            "no process of the command asked inductor for a choice",
            "see that it compiles with torch.compile; a CPU's linears ask only where their weights "
            "are frozen: --freezing, under torch.no_grad()",
        )
    rest = None
    if (problems or again or regions) and origin is not None:
        with _threads_of(origin):
            try:
                rest = build_problems(
                    problems,
                    out=path,
                    again=again,
                    regions=regions,
                    observer=observer,
                    **policy,
                    **how,
                )
            except NothingRecordedError as error:
                if not after:
                    raise
                raise NothingRecordedError(
                    str(error), "give the command without --set after=yes"
                ) from error
    return ProgramBuild(ran, path, before, rows, problems, rest, collected=after)


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """Make a folder that the processes of the program share; it is removed afterwards."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="warmup-build-", ignore_cleanup_errors=True)
    except OSError as error:
        raise SettingsError(
            f"no temporary folder can be made: {error.strerror}",
            remedy_for(error, "set TMPDIR to a writable folder"),
        ) from error
    with folder as name:
        yield name


@contextlib.contextmanager
def _threads_of(origin: Table) -> Iterator[None]:
    """Compute with as many threads as the program did: on a CPU they are part of the device."""
    import torch

    own, threads = torch.get_num_threads(), origin.provenance.runtime.device.threads
    torch.set_num_threads(threads or own)
    try:
        yield
    finally:
        torch.set_num_threads(own)
