"""`compare`: start a model in several variants, time each, and return a `Comparison`.

Each variant has its own process with empty caches, and only one process works at a time. First the
variants compute their first outputs, one after the other; then they are timed in rounds. A round
times every bucket once in every variant, and each round begins with another variant.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from warmup.bench.compare.comparison import FEWEST_ROUNDS, Comparison, How, Origin, parse_variants
from warmup.bench.compare.race import CompareObserver, Race
from warmup.buckets.bucket import parse_buckets, parse_inputs
from warmup.core.errors import SettingsError
from warmup.core.method import L2, SEED, Launch
from warmup.core.runtime import Runtime, compare_runtimes
from warmup.core.version import __version__
from warmup.models.padding.prepare import paddings
from warmup.table.codec import digest_of
from warmup.table.discovery import FoundTable, discover, find
from warmup.table.store import write

DEFAULT_ROUNDS: Final = 30
DEFAULT_TIMEOUT_S: Final = 1800.0


def compare(
    model: str,
    *,
    seqlens: str | Sequence[int] | None = None,
    dims: str | Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    device: str = "auto",
    dtype: str | None = None,
    table: str | os.PathLike[str] | None = None,
    variants: str | None = None,
    also: Sequence[str] = (),
    rounds: int = DEFAULT_ROUNDS,
    launch: str = Launch.EAGER,
    l2: str = L2.WARM,
    out: str | os.PathLike[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    observer: CompareObserver | None = None,
) -> Comparison:
    """Return how *model* starts and runs in every bucket, in each of *variants* and *also*.

    Arguments have the text form of the command line. Without *variants* all are compared; the
    variant with padded weights only if the table pads weights on this device. Two variants always
    run: eager, whose outputs are the reference, and default, the baseline of the speed-ups. A
    variant that fails, dies, or does not answer within *timeout_s* seconds has its failure in the
    result, and the other variants go on. The log of each process is written to the folder *out*,
    which is created if missing.

    Raises:
        SettingsError: an argument cannot be used, or a variant needs padded weights and the table
            pads none on this device.
        ModelError: the model cannot be loaded, or fails in eager mode.
        TableError: a variant serves from a table that is missing or damaged.
        AdapterError: this torch is not supported.
    """
    (report,) = compare_launches(
        model,
        launches=(launch,),
        seqlens=seqlens,
        dims=dims,
        inputs=inputs,
        device=device,
        dtype=dtype,
        table=table,
        variants=variants,
        also=also,
        rounds=rounds,
        l2=l2,
        out=out,
        timeout_s=timeout_s,
        observer=observer,
    )
    return report


def compare_launches(
    model: str,
    *,
    launches: Sequence[str],
    seqlens: str | Sequence[int] | None = None,
    dims: str | Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    device: str = "auto",
    dtype: str | None = None,
    table: str | os.PathLike[str] | None = None,
    variants: str | None = None,
    also: Sequence[str] = (),
    rounds: int = DEFAULT_ROUNDS,
    l2: str = L2.WARM,
    out: str | os.PathLike[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    observer: CompareObserver | None = None,
) -> tuple[Comparison, ...]:
    """Return what `compare` returns, for each of *launches*: every variant starts once for all.

    Raises:
        SettingsError, ModelError, TableError, AdapterError: as in `compare`.
    """
    buckets = parse_buckets(seqlens, dims)
    parse_inputs(inputs)
    chosen = parse_variants(variants, also, model)
    _check_method(rounds, launches, l2)
    needs_table = any(variant.how.is_served for variant in chosen)
    named = table if table is not None else os.environ.get("WARMUP_TABLE")
    found = find(named, {}) if needs_table and named else None
    runtime, device = _describe(device, dtype, launches)
    if needs_table and found is None:
        found = discover(runtime)
    if found is not None:
        pads = _pads(found, runtime)
        chosen = parse_variants(variants, also, model, pads=pads)
        padded = [variant.name for variant in chosen if variant.how is How.TABLE_PADDED]
        if padded and not pads:
            raise SettingsError(
                f"{', '.join(padded)}: {found.origin} pads no weights on this device",
                "build it with --pad-weights, or leave that variant out",
            )
    with _folders(out) as (scratch, logs):
        copy = None
        if found is not None:
            copy = scratch / "table.json"
            write(copy, found.table)
        case = {
            "table": None if copy is None else str(copy),
            "buckets": [bucket.sizes for bucket in buckets],
            "inputs": tuple(inputs),
            "device": device,
            "dtype": dtype,
            "seed": SEED,
        }
        keeps_logs = out is not None
        with contextlib.ExitStack() as processes:
            race = Race(scratch, logs, case, timeout_s, observer or CompareObserver(), processes)
            for variant in chosen:
                race.start(variant)
            race.allow_rounding()
            reports = []
            for launch in launches:
                race.prepare(launch, l2)
                race.run(rounds, len(buckets))
                origin = Origin(
                    model=model,
                    inputs=tuple(inputs),
                    device=device,
                    dtype=race.dtype,
                    launch=Launch(launch),
                    l2=L2(l2),
                    rounds=rounds,
                    seed=SEED,
                    created=_now(),
                    warmup=__version__,
                    runtime=runtime,
                    table=None if found is None else found.origin,
                    digest=None if found is None else digest_of(found.table),
                )
                remarks = (
                    *_remarks(found, runtime, origin.launch),
                    *race.remarks,
                    *_idle(race, device),
                )
                results = tuple(entrant.result(keeps_logs) for entrant in race.entrants)
                demands = tuple(race.demands)
                reports.append(
                    Comparison(
                        origin=origin,
                        buckets=buckets,
                        results=results,
                        demands=demands,
                        peaks=race.peaks,
                        remarks=tuple(dict.fromkeys(remarks)),
                    )
                )
        return tuple(reports)


def _check_method(rounds: int, launches: Sequence[str], l2: str) -> None:
    if rounds < FEWEST_ROUNDS:
        raise SettingsError(
            f"--rounds {rounds} is too few for an interval of 95 %", f"give {FEWEST_ROUNDS} or more"
        )
    for launch in launches:
        if launch not in set(Launch):
            raise SettingsError(f"--launch {launch!r}", f"use one of {', '.join(Launch)}")
    if l2 not in set(L2):
        raise SettingsError(f"--l2 {l2!r}", f"use one of {', '.join(L2)}")


def _describe(device: str, dtype: str | None, launches: Sequence[str]) -> tuple[Runtime, str]:
    """Return the runtime of this machine, and torch's name of the device."""
    from warmup.inductor import connect
    from warmup.inductor.machine import check_compiler, resolve_device
    from warmup.models.loading import parse_cast

    inductor = connect()
    resolved = resolve_device(device)
    check_compiler(resolved)
    parse_cast(dtype)
    if Launch.CUDAGRAPH in launches and resolved.type == "cpu":
        raise SettingsError("--launch cudagraph needs a GPU", "use --launch eager on the CPU")
    return inductor.runtime(str(resolved)), str(resolved)


def _pads(found: FoundTable, here: Runtime) -> bool:
    return bool(paddings(found.table, compare_runtimes(found.table.provenance.runtime, here)))


def _remarks(found: FoundTable | None, here: Runtime, launch: Launch) -> Iterator[str]:
    if found is None:
        return
    yield from found.remarks
    for mismatch in compare_runtimes(found.table.provenance.runtime, here):
        yield f"{mismatch}{': every row is a miss' if mismatch.is_hard else ''}"
    built = found.table.policy.timing.launch
    if built is not launch:
        yield f"the table was built with --launch {built}, and these times are for {launch}"


def _idle(race: Race, device: str) -> Iterator[str]:
    """Yield a remark for each variant of max-autotune that had nothing to tune."""
    cause = (
        ": on a CPU it tunes frozen weights only, and only a table's variant freezes them"
        if device == "cpu"
        else ""
    )
    for entrant in race.entrants:
        start = entrant.start
        is_autotuned = entrant.variant.how is How.MAX_AUTOTUNE
        if is_autotuned and start is not None and start.benchmarks == 0:
            yield f"{entrant.variant.name} measured nothing{cause}"


def _now() -> str:
    return dt.datetime.now(dt.UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")


@contextlib.contextmanager
def _folders(out: str | os.PathLike[str] | None) -> Iterator[tuple[Path, Path]]:
    """Yield a temporary folder, removed at the exit, and the folder for logs."""
    with tempfile.TemporaryDirectory(prefix="warmup-", ignore_cleanup_errors=True) as name:
        logs = Path(name) if out is None else Path(out)
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"--out {out}: {error.strerror}", "name a folder") from error
        yield Path(name), logs
