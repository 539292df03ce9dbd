"""`warmup check`: the deployment hook. Text or JSON on stdout, one line per problem on stderr.

Exit codes, besides those of every command: 0 ready, 10 not for this device, runtime or digest, 11
partly, 12 no valid table.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from warmup.buckets.bucket import Bucket
from warmup.buckets.dims import ShapePolicy
from warmup.cli.arguments import DEVICE, DIMS, DTYPE, INPUTS, JSON, MODEL, SEQLENS
from warmup.core.errors import SettingsError, printable
from warmup.core.files import replace_text
from warmup.core.runtime import Runtime
from warmup.models.padding.prepare import Prepared
from warmup.serving.check import CheckReport, PrimedBucket, Readiness
from warmup.serving.unpack_bundle import UnpackedBundle


def check(
    table: Annotated[Path, typer.Argument(help="The table file.")],
    *,
    device: Annotated[str, DEVICE] = "auto",
    expect_digest: Annotated[
        str | None, typer.Option(help="Fail unless the table has this SHA-256 digest.")
    ] = None,
    prime: Annotated[
        bool, typer.Option("--prime", help="Compile and call every bucket of --model now.")
    ] = False,
    model: Annotated[str | None, MODEL] = None,
    seqlens: Annotated[str | None, SEQLENS] = None,
    dims: Annotated[list[str] | None, DIMS] = None,
    inputs: Annotated[list[str] | None, INPUTS] = None,
    dtype: Annotated[str | None, DTYPE] = None,
    on_miss: Annotated[
        str, typer.Option(help="strict ends a bucket at a miss; fallback compiles it all the same.")
    ] = "strict",
    mode: Annotated[
        str,
        typer.Option(
            help="The server's torch.compile mode: default, reduce-overhead, max-autotune or "
            "max-autotune-no-cudagraphs."
        ),
    ] = "default",
    policy: Annotated[
        ShapePolicy,
        typer.Option(
            help="The server's: buckets serve their sizes alone, or the range down to the next."
        ),
    ] = ShapePolicy.EXACT,
    pad_weights: Annotated[
        bool,
        typer.Option(
            help="Pad weights as install(table, model=model) does; --no-pad-weights for a server "
            "that does not give its model, such as one under `warmup run`."
        ),
    ] = True,
    bundle: Annotated[
        Path | None,
        typer.Option(help="What `warmup build --bundle` wrote: it must fit; --prime unpacks it."),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write this file last, when everything is ready.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, help="Give up after this many seconds, with code 11.")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say whether a table is ready for this machine; with --prime, compile every bucket too."""
    if prime != (model is not None):
        raise SettingsError("--prime and --model belong together", "give both, or neither")
    if on_miss not in ("strict", "fallback"):
        raise SettingsError(f"--on-miss {on_miss!r} cannot be primed", "use strict or fallback")
    if ready_file is not None:
        _remove(ready_file)
    run = _Run(table, as_json=as_json)
    with run.limited(timeout):
        from warmup.serving.check import check as examine

        run.checked(
            examine(
                table,
                device=device,
                expect_digest=expect_digest,
                bundle=None if prime else bundle,  # priming looks at it, and goes on without it
            )
        )
        if model is not None:
            from warmup.serving.prime import prime as compile_all

            with contextlib.redirect_stdout(sys.stderr):  # the user's model may print
                run.report = compile_all(
                    run.report,
                    model,
                    seqlens=seqlens,
                    dims=dims,
                    inputs=tuple(inputs or ()),
                    device=device,
                    dtype=dtype,
                    on_miss=on_miss,
                    mode=mode,
                    policy=policy,
                    pad_weights=pad_weights,
                    bundle=bundle,
                    observer=run,
                )
    if ready_file is not None and run.report.state is Readiness.READY:
        _write(ready_file, f"{run.report.digest}\n")
    run.finish()
    raise typer.Exit(run.report.state.exit_code)


class _Run:
    """What one command knows so far; a `warmup.serving.prime.Observer`."""

    def __init__(self, path: Path, *, as_json: bool) -> None:
        self.report = CheckReport(state=Readiness.PARTLY, path=path)
        self._as_json = as_json
        self._out = sys.stdout
        self._at = "before the first bucket"
        self._groups_padded = 0
        self._done: list[PrimedBucket] = []
        self._ending = threading.Lock()

    def checked(self, report: CheckReport) -> None:
        """Keep and print what the check of the file found."""
        self.report = report
        if not self._as_json and report.table is not None:
            built = report.table.provenance.runtime
            kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.rows.items()))
            self._say(f"digest    {report.digest}")
            self._say(f"rows      {sum(report.rows.values())}{f' ({kinds})' if kinds else ''}")
            self._say(f"tuned on  {_line(built)}")
            self._say(f"here      {_line(report.here) if report.here else 'unknown'}")

    def model_prepared(self, prepared: Prepared) -> None:
        """Keep and print what was padded, and which servers that is for."""
        self._groups_padded = len(prepared.padded)
        if not self._as_json:
            groups = f"groups of weights: {self._groups_padded}"
            self._say(f"padded    {groups}, as by install(table, model=model)")

    def bucket_started(self, bucket: Bucket) -> None:
        """Remember where the run is."""
        self._at = f"in bucket {bucket}"

    def bucket_finished(self, primed: PrimedBucket) -> None:
        """Print one line."""
        self._done.append(primed)
        if not self._as_json:
            self._say(
                f"bucket    {primed.bucket}: {primed.hits} hits, {len(primed.misses)} misses, "
                f"{len(primed.uncovered)} uncovered, {primed.cached} from cache, "
                f"{primed.seconds:.1f} s"
            )

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
            late = f"timeout: {seconds:g} s passed {self._at}"
            report = replace(self.report, buckets=tuple(self._done))
            self.report = report.with_problems(Readiness.PARTLY, late)
            self.finish()
            sys.stderr.flush()
            os._exit(Readiness.PARTLY.exit_code)

    def finish(self) -> None:
        """Print the outcome: problems and remarks on stderr, the rest on stdout."""
        report = self.report
        for line in _problems(report):
            sys.stderr.write(f"{_rank()}error: {printable(' '.join(line.split()))}\n")
        for line in _warnings(report):
            sys.stderr.write(f"{_rank()}warning: {printable(' '.join(line.split()))}\n")
        if self._as_json:
            document = {**_document(report), "groups_padded": self._groups_padded}
            json.dump(document, self._out, indent=2, sort_keys=True)
            self._out.write("\n")
        elif report.table is not None:
            if report.buckets:
                ready = sum(bucket.problem is None for bucket in report.buckets)
                self._say(f"primed    {ready} of {len(report.buckets)} buckets")
            if report.bundle is not None and report.bundle.refused is None:
                besides = len(report.bundle.compiled_besides())
                self._say(f"bundle    {report.bundle}; {besides} kernels compiled besides")
            self._say(f"state     {report.state} ({report.state.exit_code})")
        self._out.flush()

    def _say(self, line: str) -> None:
        self._out.write(printable(line) + "\n")
        self._out.flush()


def _problems(report: CheckReport) -> list[str]:
    hard = [each for each in report.mismatches if each.is_hard]
    return [*report.problems, *(f"{e.field}: expected {e.expected}, found {e.found}" for e in hard)]


def _warnings(report: CheckReport) -> list[str]:
    soft = [each for each in report.mismatches if not each.is_hard]
    return [*report.remarks, *(f"{e.field}: expected {e.expected}, found {e.found}" for e in soft)]


def _document(report: CheckReport) -> dict[str, Any]:
    built = report.table.provenance.runtime if report.table else None
    return {
        "path": str(report.path),
        "state": report.state.value,
        "exit_code": report.state.exit_code,
        "digest": report.digest,
        "rank": os.environ.get("RANK"),
        "rows": dict(report.rows),
        "tuned_on": asdict(built) if built else None,
        "here": asdict(report.here) if report.here else None,
        "problems": _problems(report),
        "mismatches": [
            {"field": m.field, "expected": m.expected, "found": m.found, "hard": m.is_hard}
            for m in report.mismatches
        ],
        "remarks": list(report.remarks),
        "bundle": _bundle_document(report.bundle),
        "buckets": [
            {
                "bucket": dict(primed.bucket.sizes),
                "from": dict(primed.bucket.lows),
                "hits": primed.hits,
                "from_cache": primed.cached,
                "cached_misses": primed.cached_misses,
                "misses": list(primed.misses),
                "uncovered": list(primed.uncovered),
                "seconds": round(primed.seconds, 3),
                "problem": primed.problem,
            }
            for primed in report.buckets
        ],
    }


def _bundle_document(bundle: UnpackedBundle | None) -> dict[str, Any] | None:
    if bundle is None:
        return None
    return {
        "path": str(bundle.path),
        "refused": bundle.refused,
        "kernels": bundle.kernels,
        "graphs": bundle.graphs,
        "placed": bundle.placed,
        "compiled": list(bundle.compiled_besides()),
    }


def _line(runtime: Runtime) -> str:
    device = runtime.device
    size = (
        f"{device.threads} threads"
        if device.type == "cpu"
        else f"{device.sm_count} SMs, {device.memory_gib} GiB, MIG {device.mig or 'off'}"
    )
    versions = ", ".join(
        f"{part} {getattr(runtime, part)}"
        for part in ("torch", "triton", "cuda", "driver", "cublas")
        if getattr(runtime, part) is not None
    )
    return f"{device.name or 'unnamed'} ({device.vendor} {device.arch}, {size}), {versions}"


def _rank() -> str:
    """Name this rank where a launcher numbers its processes, whose lines share one log."""
    rank = os.environ.get("RANK")
    return f"rank {rank}: " if rank is not None else ""


def _remove(ready_file: Path) -> None:
    """Remove what an earlier run left, before anything can fail."""
    try:
        ready_file.parent.stat()
        ready_file.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(
            f"--ready-file {ready_file}: {error.strerror}", "name a file in a writable folder"
        ) from error


def _write(ready_file: Path, text: str) -> None:
    """Put *text* at *ready_file*: a probe sees no file or the whole of it."""
    try:
        replace_text(ready_file, text)
    except OSError as error:
        raise SettingsError(
            f"--ready-file {ready_file}: {error.strerror}", "name a file in a writable folder"
        ) from error
