"""`collect_pads`: measures random pad decisions, each as a build measures a row.

Samples become lines in a file of timings. A sample with a line of both ways is not measured again,
so that a second run goes on where the first was stopped.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warmup.core.errors import BuildError, NothingRecordedError, SettingsError
from warmup.core.method import Method
from warmup.core.runtime import Runtime
from warmup.diagnostics.misses import MissedProblem
from warmup.prediction.pad.samples import TimedPadding, read_paddings
from warmup.prediction.pad.sampling import MOST_OPERATIONS, draw_pad_keys
from warmup.prediction.timing_lines import MeasuredOn
from warmup.prediction.training import RANDOM
from warmup.tuning.from_misses import build_problems
from warmup.tuning.report import NOT_BEGUN, BuildReport, Observer

_DRAWN: Final = "drawn"  # the reason of a problem that nobody missed
_MOST_CUT_BYTES: Final = 2**20
_NOT_BOTH: Final = "not timed both ways as they will run"
_FIRST_LETTERS: Final = b'{"key": "'  # of every line


@dataclass(frozen=True, slots=True)
class PadCollection:
    """What became of the samples that were asked for.

    ``known`` had a line of both ways before, ``measured`` have one now, ``failed`` says by key why
    a sample has none. The others are left: the budget was spent.
    """

    asked: int
    known: int
    measured: int
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """How many samples were not begun."""
        return self.asked - self.known - self.measured - len(self.failed)


def check_method(path: Path, here: Runtime, method: Method) -> None:
    """Check that samples measured *here* by *method* may stand beside those in the file *path*.

    Raises:
        SettingsError: the earlier samples are of another device, version or method.
    """
    before = next(iter(read_known(path)), None)
    if before is None:
        return
    found, words = MeasuredOn.of(here), f"{method.launch} {method.l2}"
    if before.on != found or before.method != words:
        device = "an unknown device" if before.on is None else before.on.device
        raise SettingsError(
            f"{path} has samples of another machine, version or method ({device}, {before.method}) "
            f"than {found.device}, {words}",
            "name another file with --out",
        )


def read_known(path: Path) -> tuple[TimedPadding, ...]:
    """Return the drawn samples in the file *path*; none where there is no file.

    Raises:
        SettingsError: the file has a line that is no line of timings.
    """
    if not path.exists():
        return ()
    return tuple(one for one in read_paddings([path]) if one.source == RANDOM)


def drop_cut_line(path: Path) -> bool:
    """Remove the last line of the file *path* if a killed run did not finish it.

    Returns whether a line was removed.

    Raises:
        SettingsError: the file cannot be read or written, or its last line is no line of timings.
    """
    if not path.exists():
        return False
    try:
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            start = max(0, size - _MOST_CUT_BYTES)
            file.seek(start)
            tail = file.read()
            if not tail or tail.endswith(b"\n"):
                return False
            whole = tail.rfind(b"\n") + 1
            if not tail[whole:].startswith(_FIRST_LETTERS[: len(tail) - whole]):
                raise SettingsError(
                    f"--out {path}: is no file of samples", "name another file, and it is kept"
                )
            file.truncate(start + whole)
    except OSError as error:
        raise SettingsError(
            f"--out {path}: cannot be read and written: {error.strerror}", "name another file"
        ) from error
    return True


def draw_samples(
    count: int, seed: int, dtypes: Sequence[str], device: str = "auto", *, is_measured: bool = True
) -> tuple[str, ...]:
    """Return the keys of the first *count* samples of *seed* about which inductor asks on *device*.

    With *is_measured* this process measures them later, so that its compile workers start first.

    Raises:
        SettingsError: inductor pads nothing on *device*.
        UnsupportedTorchError: this torch is not supported.
        InductorChangedError: an internal of torch is not as it was.
    """
    from warmup.inductor import start_workers
    from warmup.inductor.internals import PAD_SAMPLE_INTERNALS, check_internals
    from warmup.inductor.machine import resolve_device

    if is_measured:
        start_workers(device, for_build=True)  # before this process uses the device
    check_internals(PAD_SAMPLE_INTERNALS)
    from warmup.inductor.pad_mm.asked import pads_asked_on

    is_asked = pads_asked_on(resolve_device(device))
    drawn = draw_pad_keys(seed, dtypes, most_operations=MOST_OPERATIONS)
    return tuple(itertools.islice(filter(is_asked, drawn), count))


def collect_pads(
    keys: Sequence[str],
    *,
    out: Path,
    build: Callable[..., BuildReport] = build_problems,
    launch: str | None = None,
    l2: str | None = None,
    seconds: float | None = None,
    wait_for_quiet: float | None = None,
    observer: Observer | None = None,
) -> PadCollection:
    """Measure those of the samples *keys* that have no line of both ways in the file *out*.

    *build* is `build_problems`, or `build_on_devices` with its devices. *observer* writes the line
    of each. No sample is begun once *seconds* have passed.

    Raises:
        SettingsError: an argument cannot be used.
        BuildError: no sample could be measured.
        AdapterError: this torch is not supported.
    """
    known = _measured(read_known(out))
    wanted = [key for key in keys if key not in known]
    report: BuildReport | None = None
    if wanted:
        problems = [MissedProblem(key, "pad", _DRAWN, 1, source=RANDOM) for key in wanted]
        with tempfile.TemporaryDirectory(prefix="warmup-pad-") as folder:
            try:
                report = build(
                    problems,
                    out=Path(folder) / "samples.json",
                    launch=launch,
                    l2=l2,
                    wait_for_quiet=wait_for_quiet,
                    seconds=seconds,
                    observer=observer,
                )
            except NothingRecordedError as error:  # of the first samples, or the budget was spent
                reasons = error.args[1]
                if not all(one.endswith(NOT_BEGUN) for one in reasons.split("; ") if one):
                    raise BuildError("no sample could be measured", reasons) from error
    lines = read_known(out)
    failed = {} if report is None else _failures(report, lines)
    measured = _measured(lines).intersection(wanted)
    done = {*measured, *(key for key, why in failed.items() if why == NOT_BEGUN)}
    failed = {key: why for key, why in failed.items() if key in wanted and key not in done}
    return PadCollection(len(keys), len(keys) - len(wanted), len(measured), failed)


def _measured(lines: Iterable[TimedPadding]) -> set[str]:
    """Return the keys of *lines* of which both ways have a time."""
    return {one.key for one in lines if one.has_both_ways}


def _failures(report: BuildReport, lines: Iterable[TimedPadding]) -> dict[str, str]:
    """Return why keys may have no line of both ways, with the reason of the build where it has one.

    A key of ``not_fused`` has a line, of inductor's own calls alone.
    """
    return {
        **{one.key: _NOT_BOTH for one in lines},
        **report.not_fused,
        **report.not_rebuilt,
        **report.not_tuned,
        **report.distrusted,
    }
