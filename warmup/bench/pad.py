"""`bench_pad`: random unaligned GEMMs, each timed compiled as it is and padded, as JSON lines.

A sample is measured as a build measures a pad row. The samples are data to learn from when padding
pays, which inductor's pad_mm pass decides for each GEMM. A finished sample is on disk before the
next one begins, and is not measured again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Self

import msgspec

from warmup.core.device import Runtime
from warmup.core.errors import BuildError, NothingRecordedError, ProblemError, SettingsError
from warmup.core.files import locked, open_regular, temporary_folder
from warmup.core.roofline import item_bytes
from warmup.core.rows import Flag, Launch, Method
from warmup.core.text import counted, remedy_for, shown
from warmup.core.trial import Tuned
from warmup.keys.gemm import Dim, Layout
from warmup.keys.pad import AS_IS, PAD, PADDED, PadProblem
from warmup.keys.registry import kind_of
from warmup.keys.weight import ALIGNED_BYTES
from warmup.serving.audit import MissedProblem
from warmup.tuning.build import BuildOptions, BuildRequest, ThisProcess, build
from warmup.tuning.problems import ProblemsSource
from warmup.tuning.report import NOT_BEGUN, BuildReport, Observer

SAMPLED_DTYPES: Final = ("f16", "bf16", "f32")
SAMPLED_OPS: Final = ("mm", "addmm", "bmm")
# Of one sample: some 3 ms on an H100, where float32 may be multiplied without tensor cores. Without
# a limit a sample takes minutes, since dozens of candidates are timed.
_MOST_OPERATIONS: Final = {"f16": 2e12, "bf16": 2e12, "f32": 1.5e11}
_MOST_BYTES: Final = 8 * 2**30  # of the operands and the result
_LARGEST_SIZE: Final = 65536
_LARGEST_POWER: Final = 16
_LARGEST_BATCH_POWER: Final = 6
_BETWEEN: Final = 0.25
_FREE: Final = 0.2
_TF32: Final = 0.5
_MOST_DRAWS: Final = 100_000  # of a GEMM that is thrown away, or was drawn before
_SEED: Final = 1  # another one draws other samples
_DRAWN: Final = "drawn"  # the reason of a problem that nobody missed
_LOCK_S: Final = 1.0
_LONGEST_LINE: Final = 64 * 1024
_NOT_BOTH: Final = "not timed both ways as they run"
_FIRST_LETTERS: Final = b'{"schema":1,'  # of every line


class PadSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of a file of samples: a GEMM, the times of both ways, and where they were measured.

    Times are medians in microseconds, ``own`` ones those of the library calls that inductor's pass
    compares. ``free`` names the operands whose padding costs nothing, since the kernel that makes
    them can write them padded. With ``is_unstable`` other work disturbed the measurement.
    """

    schema: Literal[1]
    key: str
    op: str
    batch: int | None
    m: int
    n: int
    k: int
    dtype: str
    a: str
    b: str
    bias: str | None
    free: str
    fp32: str | None
    as_is_us: float
    padded_us: float
    own_as_is_us: float | None
    own_padded_us: float | None
    is_unstable: bool
    clock_mhz: int | None
    device: str
    sm_count: int | None
    arch: str
    torch: str
    triton: str | None
    launch: str
    l2: str


class PadRun(msgspec.Struct, frozen=True):
    """What became of ``count`` samples: ``known`` before, ``measured`` now; ``failed`` says why.

    The others are left: the time was over before they were begun.
    """

    count: int
    known: int
    measured: int
    failed: Mapping[str, str]

    @property
    def left(self) -> int:
        return self.count - self.known - self.measured - len(self.failed)


def bench_pad(
    count: int,
    out: Path,
    *,
    dtypes: str = ",".join(SAMPLED_DTYPES),
    device: str = "auto",
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> PadRun:
    """Measure those of the first *count* samples that the file *out* lacks, into it.

    Only GEMMs about which inductor asks on *device* are samples. No sample is begun once *seconds*
    have passed.
    """
    from warmup.inductor import start_workers
    from warmup.inductor.internals import PAD_SAMPLE_INTERNALS, check_internals
    from warmup.inductor.machine import resolve_device

    drawn = draw_pad_keys(_SEED, parse_dtypes(dtypes))
    start_workers(device, for_build=True)  # before this process uses the device
    check_internals(PAD_SAMPLE_INTERNALS)
    from warmup.inductor.pad_mm import pads_asked_on

    keys = [*itertools.islice(filter(pads_asked_on(resolve_device(device)), drawn), count)]
    options = BuildOptions(device=device, budget=seconds, effort="full")

    def build_samples(problems: Sequence[MissedProblem], out: Path, file: Observer) -> BuildReport:
        source, runner = ProblemsSource(problems), ThisProcess()
        return build(BuildRequest(source=source, runner=runner, out=out, options=options), file)

    with SampleFile(out, say) as file:
        return measure_samples(keys, file, build_samples)


def measure_samples(
    keys: Sequence[str], file: SampleFile, build: Callable[..., BuildReport]
) -> PadRun:
    wanted = [key for key in keys if key not in file.samples]
    failed: dict[str, str] = {}
    if wanted:
        file.say(f"{counted(len(wanted), 'sample')} of {len(keys)} to measure")
        problems = [MissedProblem(key, PAD.name, _DRAWN, 1) for key in wanted]
        with temporary_folder("warmup-pad-") as folder:
            try:
                report = build(problems, folder / "pad.json", file)
                failed = {
                    **dict.fromkeys((one.key for one in report.timings), _NOT_BOTH),
                    **report.not_fused,
                    **report.not_rebuilt,
                    **report.not_tuned,
                    **report.distrusted,
                }
            except NothingRecordedError as error:  # of the first samples, or the time was over
                if reasons := error.args[1]:
                    raise BuildError("no sample could be measured", reasons) from error
    left = [key for key in wanted if key not in file.samples]
    failed = {key: failed[key] for key in left if failed.get(key, NOT_BEGUN) != NOT_BEGUN}
    return PadRun(len(keys), len(keys) - len(wanted), len(wanted) - len(left), failed)


class SampleFile(Observer):
    """The file of samples at *path*, which one process at a time opens, as a build's observer.

    A last line that a killed run cut is removed; *say* takes a sentence about that, and about each
    sample that is added. A file with another line is refused.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path, self.say = path, say
        self.samples: dict[str, PadSample] = {}
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._origin: dict[str, Any] = {}

    def __enter__(self) -> Self:
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(locked(self.path.absolute(), _LOCK_S))
                whole = self._read() if self.path.exists() else 0
                self._file = stack.enter_context(self.path.open("ab"))
                self._file.truncate(whole)
                self._stack = stack.pop_all()
        except SettingsError:
            raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise SettingsError(
                f"--out {shown(self.path)}: cannot be read and written: {reason}",
                remedy_for(error, "name another file"),
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _read(self) -> int:
        whole = 0
        with open_regular(self.path) as file:
            while line := file.readline(_LONGEST_LINE):
                is_last = not line.endswith(b"\n") and len(line) < _LONGEST_LINE
                if is_last and line.startswith(_FIRST_LETTERS[: len(line)]):
                    self.say(f"{shown(self.path)}: the last line was cut, and is dropped")
                    break
                if (sample := _read_line(line.removesuffix(b"\n"))) is None:
                    number = len(self.samples) + 1
                    raise SettingsError(
                        f"--out {shown(self.path)}, line {number}: no sample of `warmup bench pad`",
                        "name another file; this one is left as it is",
                    )
                self.samples[sample.key] = sample
                whole += len(line)
        return whole

    def measuring_on(self, here: Runtime, method: Method) -> None:
        of_device = {name: getattr(here.device, name) for name in ("sm_count", "arch")}
        versions = {"torch": here.torch, "triton": here.triton}
        how = {"launch": Launch.EAGER.value, "l2": method.l2.value}
        self._origin = {"device": here.device.name, **of_device, **versions, **how}
        for sample in self.samples.values():
            for name, now in self._origin.items():
                if (before := getattr(sample, name)) != now:
                    raise SettingsError(
                        f"--out {shown(self.path)} has samples of {name} {before}, here {now}",
                        "name another file",
                    )

    def waiting_started(self, reason: str, seconds: float) -> None:
        self.say(f"{reason}: waiting up to {seconds:.0f} s for quiet")

    def problem_finished(self, tuned: Tuned) -> None:
        """Append the sample of *tuned*, so that it survives a kill; nothing without both times."""
        assert self._file is not None
        if kind_of(tuned.key) is not PAD or tuned.key in self.samples:
            return
        if (sample := _sample_of(tuned, self._origin)) is not None:
            self._file.write(msgspec.json.encode(sample) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self.samples[sample.key] = sample
            times = f"as it is {sample.as_is_us:.2f} us, padded {sample.padded_us:.2f} us"
            self.say(f"{sample.key}: {times}")


def draw_pad_keys(seed: int, dtypes: Sequence[str]) -> Iterator[str]:
    """Yield different pad keys without end: those of fewer samples are the first of more samples.

    Half of the GEMMs have sizes drawn uniformly from 1 to 65536. In the other half each size is a
    power of two or, with probability 0.25, a number between two such powers. A GEMM that needs no
    padding, or is too large, is thrown away. A contiguous operand is free, made by an operation
    before the GEMM, with probability 0.2.
    """
    chance = random.Random(seed)  # noqa: S311  no secret
    drawn: set[str] = set()
    while True:
        is_uniform = chance.random() < 1 / 2  # of a sample, however often it is drawn again
        for _ in range(_MOST_DRAWS):
            key = _draw(chance, dtypes, is_uniform=is_uniform)
            if key is not None and key not in drawn:
                break
        else:
            raise SettingsError("no further GEMM is small enough", "take fewer --samples")
        drawn.add(key)
        yield key


def parse_dtypes(text: str) -> tuple[str, ...]:
    dtypes = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if unknown := [word for word in dtypes if word not in SAMPLED_DTYPES]:
        raise SettingsError(
            f"--dtype: {', '.join(map(repr, unknown))} is not sampled",
            f"use any of {','.join(SAMPLED_DTYPES)}",
        )
    return dtypes


def _draw(chance: random.Random, dtypes: Sequence[str], *, is_uniform: bool) -> str | None:
    op, dtype = chance.choice(SAMPLED_OPS), chance.choice(dtypes)
    m, n, k = (_draw_size(chance, is_uniform=is_uniform) for _ in range(3))
    batch = 1 << chance.randint(1, _LARGEST_BATCH_POWER) if op == "bmm" else 1
    size = item_bytes(dtype)
    is_aligned = all(each * size % ALIGNED_BYTES == 0 for each in (m, n, k))
    is_large = 2 * batch * m * n * k > _MOST_OPERATIONS[dtype]
    if is_aligned or is_large or batch * (m * k + k * n + m * n) * size > _MOST_BYTES:
        return None
    transposed = [chance.random() < 1 / 2 for _ in range(2)]
    # Where a side is 1 rows and columns are the same, and a key says rows.
    orders = {
        letter: "col" if is_transposed and 1 not in sides else "row"
        for letter, is_transposed, sides in zip("ab", transposed, ((m, k), (k, n)), strict=True)
    }
    free = "".join(
        each for each, order in orders.items() if order == "row" and chance.random() < _FREE
    )
    precision = ("tf32" if chance.random() < _TF32 else "ieee") if dtype == "f32" else None
    return PadProblem(
        op=op,
        batch=Dim.of(batch) if op == "bmm" else None,
        m=Dim.of(m),
        n=Dim.of(n),
        k=Dim.of(k),
        dtype=dtype,
        a=Layout(orders["a"]),
        b=Layout(orders["b"]),
        bias="1d" if op == "addmm" else None,
        free=free,
        fp32=precision,
    ).key


def _draw_size(chance: random.Random, *, is_uniform: bool) -> int:
    if is_uniform:
        return chance.randint(1, _LARGEST_SIZE)
    power = chance.randint(1, _LARGEST_POWER)
    if chance.random() >= _BETWEEN or power == 1:
        return 1 << power
    return chance.randint(2 ** (power - 1) + 1, 2**power - 1)


def _sample_of(tuned: Tuned, origin: Mapping[str, Any]) -> PadSample | None:
    times = {one.winner: (one.fused_us, one.time_us) for one in tuned.timings}
    as_is_us, own_as_is_us = times.get(AS_IS, (None, None))
    padded_us, own_padded_us = times.get(PADDED, (None, None))
    if as_is_us is None or padded_us is None:
        return None
    problem, evidence = PadProblem.of_key(tuned.key), tuned.row.evidence
    return PadSample(
        schema=1,
        key=tuned.key,
        **{name: getattr(problem, name) for name in ("op", "dtype", "bias", "free", "fp32")},
        batch=None if problem.batch is None else problem.batch.low,
        **{name: getattr(problem, name).low for name in "mnk"},
        a=str(problem.a),
        b=str(problem.b),
        as_is_us=as_is_us,
        padded_us=padded_us,
        own_as_is_us=own_as_is_us,
        own_padded_us=own_padded_us,
        is_unstable=Flag.UNSTABLE in evidence.flags,
        clock_mhz=evidence.clock_mhz,
        **origin,
    )


def _read_line(line: bytes) -> PadSample | None:
    """Return the sample in *line*, which is not trusted; None where it is none."""
    try:
        sample = msgspec.json.decode(line, type=PadSample)
        PadProblem.of_key(sample.key)
    except (msgspec.MsgspecError, ProblemError, RecursionError, UnicodeDecodeError):
        return None
    return sample if msgspec.json.encode(sample) == line else None
