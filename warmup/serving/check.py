"""`check`: whether a table is intact, the expected one, and usable on this machine."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from warmup.core.buckets import Bucket
from warmup.core.device import Mismatch, Runtime, closed_gate, compare_runtimes
from warmup.core.errors import AdapterError, SettingsError, TableError
from warmup.core.phases import Phase, PhaseClock, PhaseSeconds, added
from warmup.core.rows import Family
from warmup.core.text import first_line
from warmup.keys.registry import kind_of
from warmup.serving.bundle import BundleName, UnpackedBundle, name_of, take
from warmup.table.codec import digest_of
from warmup.table.invariance import Invariance, invariance_of
from warmup.table.schema import Table
from warmup.table.store import find

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# Most often torch._dynamo fails to import for want of a temporary folder or of a user name.
_REMEDY: Final = (
    "see `warmup doctor`, or name writable folders in TMPDIR and TORCHINDUCTOR_CACHE_DIR"
)


class Readiness(StrEnum):
    """The state of a table on a machine."""

    READY = "ready"
    MISMATCH = "mismatch"
    PARTLY = "partly"
    INVALID = "invalid"

    @property
    def exit_code(self) -> int:
        return {"ready": 0, "mismatch": 10, "partly": 11, "invalid": 12}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimedBucket:
    """A bucket that was compiled and called; ``problem`` is why it is not ready.

    ``misses`` are keys without a usable row, ``uncovered`` the sites of decisions of no kind,
    ``cached`` counts the decisions of graphs from inductor's caches, ``cached_misses`` those of
    them without a row.
    """

    bucket: Bucket
    hits: int
    cached: int
    cached_misses: int
    misses: tuple[str, ...]
    uncovered: tuple[str, ...]
    phases: PhaseSeconds
    problem: str | None

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """A checked table. ``problems`` keep it from being ready; ``remarks`` do not.

    ``table`` and ``digest`` are None when the file is invalid, ``here`` when this machine could
    not be described, ``bundle`` when there is none. ``phases_before`` are the phases
    before the first bucket.
    """

    state: Readiness
    path: Path
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    table: Table | None = None
    digest: str | None = None
    here: Runtime | None = None
    mismatches: tuple[Mismatch, ...] = ()
    phases_before: PhaseSeconds = field(default_factory=dict)
    buckets: tuple[PrimedBucket, ...] = ()
    bundle: UnpackedBundle | None = None

    @property
    def phases(self) -> PhaseSeconds:
        return added((self.phases_before, *(bucket.phases for bucket in self.buckets)))

    @property
    def rows(self) -> Mapping[str, int]:
        return Counter(kind_of(key).name for key in self.table.rows) if self.table else {}

    @property
    def unstable(self) -> tuple[str, ...]:
        """The keys of rows whose times do not carry a decision, sorted."""
        rows = self.table.rows if self.table else {}
        return tuple(sorted(key for key, row in rows.items() if row.evidence.is_unstable))

    @property
    def without_unstable_rows(self) -> CheckReport:
        """This report, which is not ready where the table has unstable rows."""
        if not self.unstable or self.state is not Readiness.READY:
            return self
        problem = (
            f"{len(self.unstable)} of {sum(self.rows.values())} rows are unstable: measure them "
            "again with `warmup build ... --retry unstable`"
        )
        said = "" if self.table is None else _unstable(self.table)  # now a problem
        remarks = tuple(remark for remark in self.remarks if remark != said)
        return replace(self, remarks=remarks).with_problems(Readiness.PARTLY, problem)

    @property
    def invariance(self) -> Invariance | None:
        return None if self.table is None else invariance_of(self.table)

    @property
    def with_variant_rows(self) -> CheckReport:
        """This report, which is not ready where a row's bits may depend on the number of rows."""
        promise = self.invariance
        if self.table is None or (promise is not None and not promise.broken):
            return self
        reason = "the table was not built with --invariant" if promise is None else str(promise)
        return self.with_problems(
            Readiness.PARTLY, f"not invariant: {reason}; build the table again with --invariant"
        )

    def with_problems(self, state: Readiness, *problems: str) -> CheckReport:
        """Return this report with *problems* added, in *state*; without problems, unchanged."""
        if not problems:
            return self
        return replace(self, state=state, problems=(*self.problems, *problems))

    def with_bundle(self, bundle: UnpackedBundle | None) -> CheckReport:
        """Return this report with *bundle*; one that is named and not used is a problem."""
        report = replace(self, bundle=bundle)
        if bundle is None or bundle.refused is None:
            return report
        if bundle.named:
            return report.with_problems(Readiness.PARTLY, f"bundle {bundle}")
        return replace(report, remarks=(*self.remarks, f"bundle {bundle}"))


def check(
    table: str | os.PathLike[str],
    *,
    device: str = "auto",
    expect_digest: str | None = None,
    here: Runtime | None = None,
    bundle: BundleName = None,
) -> CheckReport:
    """Return whether the file *table* is intact, the expected one, and usable on this machine.

    The *bundle* is as in `warmup.install`; nothing is unpacked, and one that is named must fit.
    With *here*, the table is checked for that machine instead of this one, and torch is not
    imported. A SettingsError where *expect_digest* is no SHA-256 digest.
    """
    path, clock = Path(table), PhaseClock()
    if expect_digest is not None and _DIGEST.fullmatch(expect_digest.lower()) is None:
        raise SettingsError(
            f"--expect-digest {expect_digest!r} is not a SHA-256 digest",
            "give 64 hex digits, as `warmup check` prints them",
        )
    try:
        file = find(path, {})
    except TableError as error:
        return CheckReport(state=Readiness.INVALID, path=path, problems=(str(error),))
    table_digest = digest_of(file.table)
    report = CheckReport(
        state=Readiness.READY,
        path=path,
        remarks=(*file.remarks, *filter(None, (_untrusted(file.table), _unstable(file.table)))),
        table=file.table,
        digest=table_digest,
        here=here,
    )
    if expect_digest is not None and table_digest != expect_digest.lower():
        other = Mismatch("digest", expect_digest.lower(), table_digest, is_hard=True)
        report = replace(report, state=Readiness.MISMATCH, mismatches=(other,))
    report = _describe_here(report, file.table, device, clock) if here is None else report
    report = _compare_machines(report, file.table)
    if report.state is Readiness.READY and report.here is not None:
        report = report.with_bundle(take(name_of(bundle), (path,), table_digest, report.here))
    return replace(report, phases_before=clock.take())


def _untrusted(table: Table) -> str:
    count = sum(row.untrusted is not None for row in table.rows.values())
    if not count:
        return ""
    return (
        f"rows not trusted: {count} of {len(table.rows)}; each is a miss at serving: "
        "`warmup show` names them, `warmup build` measures their keys again"
    )


def _unstable(table: Table) -> str:
    count = sum(row.evidence.is_unstable for row in table.rows.values())
    if not count:
        return ""
    kept = "a kernel of the weight's digest" if table.policy.invariant else "the library's kernel"
    return (
        f"{count} of {len(table.rows)} rows are unstable, and have {kept} for want of better "
        "times: `warmup show` marks them, `warmup build ... --retry unstable` measures them again"
    )


def _compare_machines(report: CheckReport, table: Table) -> CheckReport:
    if report.here is None:
        return report
    mismatches = [*report.mismatches, *compare_runtimes(table.provenance.runtime, report.here)]
    remarks = list(report.remarks)
    gate = closed_gate(report.here.device)
    if gate is not None:
        templates = sum(row.winner.family is Family.TEMPLATE for row in table.rows.values())
        remarks.append(
            f"inductor offers no GEMM templates on this device ({gate.found}, it needs "
            f"{gate.expected}); {templates} rows name one"
        )
        mismatches += [gate] if templates else []
    state = Readiness.MISMATCH if any(mismatch.is_hard for mismatch in mismatches) else report.state
    return replace(report, state=state, mismatches=tuple(mismatches), remarks=tuple(remarks))


def _describe_here(
    report: CheckReport, table: Table, device: str, clock: PhaseClock
) -> CheckReport:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with clock.phase(Phase.IMPORT):
                from warmup.inductor import connect
                from warmup.inductor.machine import check_compiler, describe_runtime, resolve_device

            wanted = resolve_device(device)
            report = replace(report, here=describe_runtime(wanted))
            with clock.phase(Phase.IMPORT):
                connect()
        except (AdapterError, SettingsError) as error:
            return report.with_problems(Readiness.MISMATCH, str(error))
        except (ImportError, OSError, KeyError, RuntimeError) as error:
            reason = f"torch cannot be used here: {first_line(error)}; {_REMEDY}"
            return report.with_problems(Readiness.MISMATCH, reason)
    try:
        from warmup.inductor.options import check_options

        check_options(table.policy.options)
    except SettingsError as error:
        return report.with_problems(Readiness.INVALID, str(error))
    # Such as an old driver.
    warned = [first_line(each.message) for each in caught if "CUDA" in str(each.message)]
    try:
        check_compiler(wanted)
    except SettingsError as error:
        warned.append(str(error))
    return replace(report, remarks=(*report.remarks, *warned))
