"""`warmup check`: the check of a table before a server starts, and the priming of its buckets.

Exit codes, besides those of every command: 0 ready, 10 not for this device, runtime or digest, 11
partly, 12 no valid table.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from warmup.cli import options
from warmup.cli.output import (
    PHASES_PAGE,
    complain,
    digits,
    fold,
    meanings,
    print_json,
    print_line,
    record,
    spell_phases,
    versions,
)
from warmup.core.buckets import Bucket, ShapePolicy
from warmup.core.device import Runtime
from warmup.core.errors import SettingsError
from warmup.core.phases import SPARED_BY_CACHES, PhaseSeconds
from warmup.core.text import counted
from warmup.models.padding import Prepared
from warmup.serving.check import CheckReport, PrimedBucket, Readiness
from warmup.serving.prime import PrimeObserver

if TYPE_CHECKING:
    from warmup.tuning.verify import Verification


def check(
    table: options.TableFile,
    *,
    expect_digest: Annotated[
        str | None,
        typer.Option(
            help="The SHA-256 digest that the table must have; another one is exit code 10."
        ),
    ] = None,
    prime: Annotated[
        bool, typer.Option("--prime", help="Compile and call every bucket of --model too.")
    ] = False,
    model: options.ModelOptions,
    on_miss: Annotated[str, typer.Option(help=options.ON_MISS_HELP)] = "strict",
    mode: Annotated[
        str,
        typer.Option(
            help="The server's torch.compile mode: default, reduce-overhead, max-autotune or "
            "max-autotune-no-cudagraphs."
        ),
    ] = "default",
    policy: options.PolicyOption = ShapePolicy.EXACT,
    pad_weights: Annotated[
        bool,
        typer.Option(
            help="Pad weights as install(table, model=model) does; --no-pad-weights for a server "
            "that installs without model=, such as under `warmup run`."
        ),
    ] = True,
    bundle: options.Bundle = None,
    freezing: options.Freezing = None,
    fail_on: Annotated[
        Literal["unstable"] | None,
        typer.Option(help="unstable: end with code 11 if a row is unstable."),
    ] = None,
    invariant: Annotated[
        bool,
        typer.Option(
            "--invariant", help="End with code 11 unless a row has the same bits in all buckets."
        ),
    ] = False,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS",
            help="Time such as 5% or 50 of the rows again, in 60 s or --timeout; code 11 where a "
            "build would pay.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds until the check ends with code 11.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that a table is ready on this machine.

    With --prime, compile and call every bucket of --model from the table too.
    """
    if prime != (model.model is not None):
        raise SettingsError("--prime and --model belong together", "give both, or neither")
    if on_miss not in ("strict", "fallback"):
        raise SettingsError(f"--on-miss {on_miss!r} is not for priming", "use strict or fallback")
    run = CheckRun(table, as_json=as_json)
    with run.limited(timeout):
        from warmup.serving.check import check as check_table

        run.report = check_table(
            table,
            device=model.device,
            expect_digest=expect_digest,
            bundle=False if prime else bundle,  # priming unpacks it, and goes on without it
        )
        run.print(*_spell_file(run.report))
        if model.model is not None:
            from warmup.serving.prime import prime as prime_buckets

            with contextlib.redirect_stdout(sys.stderr):  # the user's model may print
                run.report = prime_buckets(
                    run.report,
                    model.model,
                    **model.words(),
                    on_miss="strict" if on_miss == "strict" else "fallback",
                    mode=mode,
                    policy=policy,
                    pad_weights=pad_weights,
                    bundle=bundle,
                    freezing=freezing,
                    observer=run,
                )
    if verify is not None and run.report.state is Readiness.READY:
        run.verify(verify, model.device, timeout)
    if fail_on is not None:
        run.report = run.report.without_unstable_rows
    if invariant:
        run.report = run.report.with_variant_rows
    run.finish()
    raise typer.Exit(run.report.state.exit_code)


class CheckRun(PrimeObserver):
    """A check under way: its report so far, its time limit, and its output on stdout."""

    def __init__(self, path: Path, *, as_json: bool) -> None:
        self.report = CheckReport(state=Readiness.PARTLY, path=path)
        self._as_json = as_json
        self._stdout = sys.stdout
        self._position = "before the first bucket"
        self._groups_padded = 0
        self._done: list[PrimedBucket] = []
        self._verified: Verification | None = None
        self._ending = threading.Lock()

    def model_loaded(self, assumptions: Sequence[object]) -> None:
        for assumption in assumptions:
            complain(str(assumption))

    def model_prepared(self, prepared: Prepared) -> None:
        self._groups_padded = len(prepared.padded)
        groups = f"groups of weights: {self._groups_padded}"
        self.print(f"padded    {groups}, as install(table, model=model) pads them at serving")

    def buckets_begin(self, before: PhaseSeconds) -> None:
        self.report = replace(self.report, phases_before=before)

    def bucket_started(self, bucket: Bucket) -> None:
        self._position = f"in bucket {bucket}"
        if not self._done:
            page = "docs/how-to/check-before-start.md"
            self.print(*fold(meanings("hits", "misses", "uncovered", page=page), "counts    "))

    def bucket_finished(self, primed: PrimedBucket) -> None:
        self._done.append(primed)
        self.print(
            f"bucket    {primed.bucket}: {counted(primed.hits, 'hit')}, "
            f"{counted(len(primed.misses), 'miss')}, {len(primed.uncovered)} uncovered, "
            f"{primed.cached} from cache, {primed.seconds:.1f} s"
        )

    def verify(self, sample: str, device: str, limit_s: float | None) -> None:
        """Time a *sample* of the rows again, and print what that gave."""
        from warmup.tuning.verify import VERIFY_S, verify

        assert self.report.table is not None
        limit_s = VERIFY_S if limit_s is None else limit_s
        verified = self._verified = verify(
            self.report.table, sample, device=device, limit_s=limit_s
        )
        self.print(*_spell_verified(verified))
        if verified.verdict == "unknown":
            said = "verify: no row of the sample could be timed"
            self.report = self.report.with_problems(Readiness.PARTLY, said)
        elif verified.drifted:
            said = (
                f"verify: {len(verified.drifted)} of {counted(len(verified.timed), 'row')} "
                f"drifted, {verified.lost:.1%} of their time: measure them again with `warmup "
                "build ... --retry FILE`, with this check's --json in FILE"
            )
            if verified.verdict == "rebuild":
                said = f"{said}, and the others with --retry all"
                self.report = self.report.with_problems(Readiness.PARTLY, said)
            else:
                self.report = replace(self.report, remarks=(*self.report.remarks, said))

    @contextlib.contextmanager
    def limited(self, seconds: float | None) -> Iterator[None]:
        """End the process with code 11 when the work inside takes longer than *seconds*.

        A thread does it, since what hangs may be a compiler or a kernel that no exception reaches.
        """
        if seconds is None:
            yield
            return
        timer = threading.Timer(seconds, self._expire, (seconds,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._ending.acquire()  # an expiry under way ends the process meanwhile

    def _expire(self, seconds: float) -> None:
        with self._ending:
            late = f"timeout: {seconds:g} s passed {self._position}"
            report = replace(self.report, buckets=tuple(self._done))
            self.report = report.with_problems(Readiness.PARTLY, late)
            self.finish()
            sys.stderr.flush()
            os._exit(Readiness.PARTLY.exit_code)

    def finish(self) -> None:
        """Print problems and remarks on stderr, and the outcome or the document on stdout.

        A line on stderr is one problem or one remark, under a launcher with the rank before it.
        """
        rank, report = os.environ.get("RANK"), self.report
        prefix = "" if rank is None else f"rank {rank}: "
        problems = [*report.problems, *_mismatches(report, is_hard=True)]
        remarks = [*report.remarks, *_mismatches(report, is_hard=False)]
        lines = [
            *(f"error: {each}" for each in problems),
            *(f"warning: {each}" for each in remarks),
        ]
        for line in lines:
            complain(f"{prefix}{' '.join(line.split())}")
        if self._as_json:
            document = _document(report, rank, problems, self._groups_padded)
            verified = self._verified and record(
                self._verified, "drifted", "lost", "pace", "is_other_clock", "verdict"
            )
            print_json({**document, "verified": verified}, self._stdout)
        else:
            self.print(*_spell_outcome(report))
        self._stdout.flush()

    def print(self, *lines: str) -> None:
        """Print *lines* on stdout, nothing for ``--json``."""
        if not self._as_json:
            for line in lines:
                print_line(line, self._stdout)
            self._stdout.flush()


# The report as lines for stdout, whose first words are fixed for programs, and as JSON.


def _spell_file(report: CheckReport) -> Iterator[str]:
    if report.table is None:
        return
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.rows.items()))
    yield f"digest    {report.digest}"
    yield f"rows      {sum(report.rows.values())}{f' ({kinds})' if kinds else ''}"
    yield f"unstable  {len(report.unstable)}"
    if (promise := report.invariance) is not None:
        yield f"invariant {promise}"
    yield f"tuned on  {_spell_runtime(report.table.provenance.runtime)}"
    yield f"here      {_spell_runtime(report.here) if report.here else 'unknown'}"


def _spell_runtime(runtime: Runtime) -> str:
    device = runtime.device
    size = (
        f"{device.threads} threads"
        if device.type == "cpu"
        else f"{device.sm_count} SMs, {device.memory_gib} GiB, MIG {device.mig or 'off'}"
    )
    parts = {part: getattr(runtime, part) for part in ("cuda", "driver", "cublas")}
    others = "".join(f", {part} {value}" for part, value in parts.items() if value is not None)
    return (
        f"{device.name or 'unnamed'} ({device.vendor} {device.arch}, {size}), "
        f"{versions(runtime.torch, runtime.triton)}{others}"
    )


def _spell_outcome(report: CheckReport) -> Iterator[str]:
    if report.table is None:
        return
    if report.buckets:
        if options.is_verbose():
            yield f"start     what it was made of, in seconds ({PHASES_PAGE}):"
            parts = {"all": report.phases, "before": report.phases_before}
            parts |= {str(primed.bucket): primed.phases for primed in report.buckets}
            for part, seconds in parts.items():
                yield from spell_phases(part, seconds, " " * 10)
        else:
            cold_s = sum(report.phases.get(phase, 0.0) for phase in SPARED_BY_CACHES)
            yield (
                f"start     {sum(report.phases.values()):.1f} s, {cold_s:.1f} of them for kernels "
                "and lowering, which a bundle and warm caches spare; -v says more"
            )
        ready = sum(bucket.problem is None for bucket in report.buckets)
        yield f"primed    {ready} of {len(report.buckets)} buckets"
    if report.bundle is not None and report.bundle.refused is None:
        compiled = f"; {len(report.bundle.compiled_besides())} kernels compiled that it lacks"
        yield f"bundle    {report.bundle}{compiled if report.buckets else ''}"
    yield f"state     {report.state} ({report.state.exit_code})"


def _spell_verified(verified: Verification) -> Iterator[str]:
    taken = f"{len(verified.timed)} of {verified.rows} rows in {verified.seconds:.0f} s"
    left = f"; the time limit left {verified.left} of the sample" if verified.left else ""
    yield f"verified  {taken}{left}"
    for reason, keys in verified.skipped.items():
        yield f"skipped   {counted(len(keys), 'row')}: {reason}"
    for row in verified.drifted:
        yield f"drifted   {row.key}"
        now = "fails now" if row.time_us is None else f"{digits(row.time_us)} us"
        recorded = f"recorded {digits(row.recorded_us)} us"
        rival = "" if row.rival is None else f", {row.rival} {digits(row.rival_us)} us"
        yield f"          {row.winner} {now} ({recorded}){rival}"
    if verified.pace is not None:
        why = "; all alike: the device's clock, not the winners" if verified.is_other_clock else ""
        clocks = verified.clocks_mhz
        seen = f", {clocks[1]:.0f} MHz for {clocks[0]:.0f}" if clocks else ""
        yield f"pace      {verified.pace:.2f} times as long as recorded{seen}{why}"
    if verified.disturbed:
        yield f"disturbed {counted(verified.disturbed, 'measurement')}, by other processes"
    yield f"verdict   {verified.verdict}: {verified.lost:.1%} lost; above 1 % a build pays"


def _mismatches(report: CheckReport, *, is_hard: bool) -> Iterator[str]:
    for each in report.mismatches:
        if each.is_hard is is_hard:
            yield f"{each.field}: expected {each.expected}, found {each.found}"


def _document(
    report: CheckReport, rank: str | None, problems: list[str], groups_padded: int
) -> dict[str, Any]:
    bundle = report.bundle
    compiled = None if bundle is None else {"compiled": list(bundle.compiled_besides())}
    return {
        **record(report, "rows", "unstable", "phases", without=("table", "bundle")),
        "exit_code": report.state.exit_code,
        "rank": rank,
        "tuned_on": record(report.table.provenance.runtime) if report.table else None,
        "problems": problems,
        "groups_padded": groups_padded,
        "bundle": compiled and {**record(bundle), **compiled},
        "buckets": [
            {**record(primed, "seconds"), "from": dict(primed.bucket.lows)}
            for primed in report.buckets
        ],
    }
