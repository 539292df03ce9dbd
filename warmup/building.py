"""`build`: tune every bucket ahead of time and write the table. Floor 2."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warmup.bucket import Bucket, InputSpec, parse_buckets, parse_inputs
from warmup.choice import Row, Tuned
from warmup.destination import open_table, out_path
from warmup.errors import (
    BuildError,
    MissError,
    ModelError,
    NothingRecordedError,
    OutputMismatchError,
    warmup_error_in,
)
from warmup.events import Emitter, Event, EventName
from warmup.lookup import Lookup, OnMiss
from warmup.outcome import SILENT, BucketResult, BuildReport, Observer
from warmup.policies import choose_policy
from warmup.table import Policy, Table
from warmup.table.codec import digest_of
from warmup.table.store import (
    add_rows,
    check_writable,
    read,
    remove_rows,
    write,
)

if TYPE_CHECKING:
    import torch

    from warmup.inductor.live import Inductor
    from warmup.models import Inputs, LoadedModel
    from warmup.tuner import Tuner

DEFAULT_MODE: Final = "max-autotune-gemm"


def build(
    model: str,
    *,
    seqlens: str | Sequence[int] | None = None,
    dims: str | Sequence[str] | None = None,
    inputs: Sequence[str] = (),
    device: str = "auto",
    dtype: str | None = None,
    mode: str = DEFAULT_MODE,
    backends: str | None = None,
    out: str | Path | None = None,
    tolerance: float | None = None,
    launch: str | None = None,
    l2: str | None = None,
    force: bool = False,
    observer: Observer | None = None,
) -> BuildReport:
    """Tune every GEMM of *model* for every bucket, and write the winners to a table.

    Arguments are spelled as on the command line; *dims* may be several such texts, whose buckets
    follow each other. A table that exists is completed: only problems it lacks are tuned, unless
    *force* tunes all of them again. Each finished problem is on disk before the next one starts.
    For every bucket the model, compiled from the table alone, is compared with eager.

    Raises:
        SettingsError, ModelError: the arguments or the model cannot be used; nothing was written.
        TableError: the table exists and is damaged, belongs to another device, runtime or policy,
            or cannot be written.
        OutputMismatchError: a bucket's output disagrees with eager; its new rows were removed.
        NothingRecordedError: no bucket asked for a GEMM choice.
    """
    started = time.monotonic()
    sizes = (
        ",".join(map(str, seqlens))
        if seqlens is not None and not isinstance(seqlens, str)
        else seqlens
    )
    groups = [dims] if dims is None or isinstance(dims, str) else dims
    found = (bucket for group in groups for bucket in parse_buckets(sizes, group))
    buckets = tuple(dict.fromkeys(found))
    specs = parse_inputs(inputs)
    from warmup.inductor import connect
    from warmup.inductor.machine import check_compiler, resolve_device
    from warmup.models import load_model, parse_dtype
    from warmup.tuner import make_tuner

    inductor = connect()
    torch_device = resolve_device(device)
    check_compiler(torch_device)
    runtime = inductor.runtime(str(torch_device))
    cast = parse_dtype(dtype, "--dtype") if dtype is not None else None
    policy = choose_policy(
        mode,
        backends,
        torch_device.type,
        tolerance,
        inductor.quiet_switches(),
        launch=launch,
        l2=l2,
    )
    with make_tuner(policy, torch_device) as tuner:
        loaded = load_model(model)
        path = out_path(out, runtime, loaded, cast)
        check_writable(path)
        table, replaces = open_table(path, runtime, policy, force=force)
        work = Build(
            inductor,
            loaded,
            specs,
            torch_device,
            cast,
            path,
            table,
            force,
            replaces,
            observer or SILENT,
            tuner,
        )
        work.observer.device_looked_at(tuner.look())
        results = tuple(
            work.run_bucket(bucket, i, len(buckets)) for i, bucket in enumerate(buckets)
        )
        work.observer.device_looked_at(tuner.look(again=True))
    if not any(result.keys for result in results):
        raise NothingRecordedError(
            "the model asked inductor for no GEMM choice in any bucket",
            "it has no mm-like op with several candidates under these backends on this device",
        )
    final = read(path)
    return BuildReport(
        path,
        final,
        digest_of(final),
        results,
        tuple(work.tuned),
        time.monotonic() - started,
        not_tuned=dict(tuner.not_tuned),
        peaks=tuner.known_peaks,
    )


@dataclass
class Build:
    """One build under way."""

    inductor: Inductor
    model: LoadedModel
    specs: tuple[InputSpec, ...]
    device: torch.device
    dtype: torch.dtype | None
    path: Path
    table: Table
    force: bool
    replaces: bool
    observer: Observer
    tuner: Tuner
    tuned: list[Tuned] = field(default_factory=list)
    uncovered: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.model.module.to(device=self.device, dtype=self.dtype)

    def run_bucket(self, bucket: Bucket, index: int, total: int) -> BucketResult:
        """Tune one bucket, then serve it from the table and compare with eager."""
        import torch

        from warmup.agreement import worst_error
        from warmup.models import make_inputs

        self.observer.bucket_started(bucket, index, total)
        started = time.monotonic()
        before = len(self.tuned)
        torch.manual_seed(self.table.policy.seed)
        inputs = make_inputs(self.model, self.specs, bucket, self.device, self.dtype)
        with torch.no_grad():
            expected = self._eager(inputs, bucket)
            keys, found = self._compiled(inputs, bucket, OnMiss.TUNE)
            if len(self.tuned) > before:  # else that run was served from rows alone already
                keys, found = self._compiled(inputs, bucket, OnMiss.STRICT)
            error, limit = worst_error(expected, found, self.tolerance)
        if not error <= limit:
            fresh = {tuned.key for tuned in self.tuned[before:]}
            self.table = remove_rows(self.path, fresh) if fresh else self.table
            raise OutputMismatchError(
                f"bucket {bucket}: the compiled output is {error:.2e} away from eager "
                f"(relative L2), more than {limit:.0e}",
                f"{len(fresh)} rows tuned for it were removed; report this with the model",
            )
        result = BucketResult(
            bucket=bucket,
            keys=keys,
            tuned=len(self.tuned) - before,
            error=error,
            seconds=time.monotonic() - started,
            uncovered=dict(self.uncovered),
        )
        self.observer.bucket_finished(result)
        return result

    @property
    def tolerance(self) -> Mapping[str, float]:
        """The largest error against eager that is accepted, by dtype of the output."""
        return self.table.policy.tolerance

    def lookup(self, rows: Mapping[str, Row], on_miss: OnMiss, emitter: Emitter) -> Lookup:
        """Return what answers inductor while a bucket is compiled."""
        return Lookup(rows, on_miss, emitter, tuner=self.tuner, on_tuned=self.save)

    def _eager(self, inputs: Inputs, bucket: Bucket) -> Any:
        try:
            return self.model.module(*inputs.args, **inputs.kwargs)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(
                f"bucket {bucket}: the model failed in eager mode ({reason})"
            ) from error

    def _compiled(
        self, inputs: Inputs, bucket: Bucket, on_miss: OnMiss
    ) -> tuple[tuple[str, ...], Any]:
        """Return the keys asked for, each once, and the output of one call.

        ``uncovered`` then counts what this call measured without a row.
        """
        from warmup.inductor.live import compile_model, empty_caches

        asked: dict[str, None] = {}
        self.uncovered.clear()

        def note(event: Event) -> None:
            if event.name in (EventName.HIT, EventName.TUNED):
                asked[str(event.fields["key"])] = None
            elif event.name is EventName.UNCOVERED:
                self.uncovered[str(event.fields["site"])] += 1

        done = {tuned.key for tuned in self.tuned}
        rows = self.table.rows
        if self.force and on_miss is OnMiss.TUNE:
            rows = {key: row for key, row in rows.items() if key in done}
        if on_miss is OnMiss.STRICT:  # what could not be tuned is served by the library's kernel
            rows = {**rows, **self.tuner.library_rows}
        lookup = self.lookup(rows, on_miss, Emitter([note]))
        policy = self.table.policy
        with self._attached(lookup, policy, on_miss), empty_caches():
            try:
                compiled = compile_model(self.model.module)
                output = compiled(*inputs.args, **inputs.kwargs)
            except Exception as error:
                own = warmup_error_in(error)
                if own is not None and not isinstance(own, MissError):
                    raise own from error
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                raise BuildError(f"bucket {bucket}: compiling failed ({reason})") from error
        return tuple(key for key in asked if key not in self.tuner.library_rows), output

    @contextlib.contextmanager
    def _attached(self, lookup: Lookup, policy: Policy, on_miss: OnMiss) -> Iterator[None]:
        tag = f"warmup-build-{on_miss}"
        attachment = self.inductor.attach(lookup, policy.options, tag, quiet=True)
        try:
            yield
        finally:
            attachment.detach()

    def save(self, tuned: Tuned) -> None:
        """Put a finished problem on disk."""
        table = self.table
        rows: Mapping[str, Row] = {tuned.key: tuned.row}
        if (
            self.replaces
        ):  # --force over another device's table: it goes when its successor has a row
            self.table, self.replaces = replace(table, rows=rows), False
            write(self.path, self.table)
        else:
            self.table = add_rows(self.path, table.provenance, table.policy, rows, redo=self.force)
        self.tuned.append(tuned)
        self.observer.problem_finished(tuned)
