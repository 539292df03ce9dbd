"""`warmup profile`: a trace of torch's profiler by kernel, with the rows behind the kernels."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warmup.cli import options
from warmup.cli.output import print_report, say
from warmup.core.errors import SettingsError
from warmup.core.files import write_output

if TYPE_CHECKING:
    from warmup.core.roofline import Peaks
    from warmup.diagnostics.profile.profile import Profile
    from warmup.table import Table

_COMPARED_TRACES: Final = 2


def profile(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TRACE", help="A trace that torch.profiler exported, .json or .json.gz."
        ),
    ] = None,
    *,
    table: Annotated[
        Path | None, typer.Option(help="The table whose rows chose the kernels.")
    ] = None,
    peaks: options.PeaksOption = None,
    iterations: Annotated[
        int | None,
        typer.Option(min=1, help="Calls of the model in a trace whose calls are not marked."),
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Compare two traces: before, then after.")
    ] = False,
    model: options.OptionalModel = None,
    seqlens: options.Seqlens = None,
    dims: options.Dims = None,
    inputs: options.InputsOption = None,
    dtype: options.Dtype = None,
    device: options.DeviceOption = "auto",
    mode: Annotated[str, typer.Option(help="With --model: the mode of torch.compile.")] = "default",
    calls: Annotated[
        int, typer.Option(min=1, help="With --model: calls of each bucket to record.")
    ] = 10,
    record: Annotated[
        Path | None, typer.Option(help="With --model: the trace to write, .json or .json.gz.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Kernels of a bucket to print.")] = 20,
    trace_out: Annotated[
        Path | None,
        typer.Option(help="Write the trace again, with the figures in each event's arguments."),
    ] = None,
    misses_out: Annotated[
        Path | None, typer.Option(help="Write the problems without a row, for build --problems.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what each kernel of a trace costs, what limits it, and which row chose it."""
    from warmup.cli import profile_render
    from warmup.diagnostics.profile.difference import differences_of
    from warmup.diagnostics.review import peaks_in
    from warmup.table.codec import digest_of
    from warmup.table.store import read

    given = list(traces or ())
    tuned = None if table is None else read(table)
    if model is not None:
        if given:
            raise SettingsError("a trace and --model", "name the trace, or --model to record one")
        if record is None:
            raise SettingsError(
                "--model records a trace, and has no file for it",
                "name one: --record trace.json.gz",
            )
        from warmup.serving.record_trace import Recording, record_trace

        asked = Recording(
            model=model,
            table=tuned,
            seqlens=seqlens,
            dims=dims,
            inputs=tuple(inputs or ()),
            device=device,
            dtype=dtype,
            mode=mode,
            calls=calls,
        )
        record_trace(asked, record)
        say(f"{record}: {calls} calls of each bucket")
        given = [record]
    if len(given) != (_COMPARED_TRACES if diff else 1):
        raise SettingsError(
            f"{len(given)} traces, and {'--diff takes two' if diff else 'one is profiled'}",
            "name the trace before and the trace after" if diff else "name one trace, or --diff",
        )
    own = None if peaks is None else peaks_in(peaks)
    digest = None if tuned is None else digest_of(tuned)
    found = [_profile(path, tuned, own, iterations, digest) for path in given]
    if diff:
        print_report(
            differences_of(*found),
            partial(profile_render.spell_differences, top=top),
            profile_render.differences_document,
            as_json=as_json,
        )
        return
    _write(given[0], found[0], trace_out=trace_out, misses_out=misses_out)
    print_report(
        found[0],
        partial(profile_render.spell, top=top),
        profile_render.document,
        as_json=as_json,
    )


def _profile(
    path: Path, table: Table | None, peaks: Peaks | None, iterations: int | None, digest: str | None
) -> Profile:
    from warmup.diagnostics.profile.profile import profile_trace
    from warmup.diagnostics.profile.trace import read_trace
    from warmup.diagnostics.profile.trace_file import TraceFile

    trace = read_trace(TraceFile(path))
    return profile_trace(trace, table, peaks=peaks, iterations=iterations, digest=digest)


def _write(
    path: Path,
    profiled: Profile,
    *,
    trace_out: Path | None,
    misses_out: Path | None,
) -> None:
    if trace_out is not None:
        from warmup.diagnostics.profile.augmented import augmented_trace
        from warmup.diagnostics.profile.trace_file import TraceFile

        if trace_out.exists() and trace_out.samefile(path):
            raise SettingsError(f"--trace-out {trace_out} is the trace itself", "name another file")
        raw = b"".join(augmented_trace(TraceFile(path), profiled))
        packed = gzip.compress(raw, mtime=0) if trace_out.suffix == ".gz" else raw
        write_output(trace_out, packed, "--trace-out")
    if misses_out is not None:
        from warmup.diagnostics.misses import encode_problems
        from warmup.diagnostics.profile.findings import missed_counts

        digests = [] if profiled.digest is None else [profiled.digest]
        write_output(misses_out, encode_problems(missed_counts(profiled), digests), "--misses-out")
