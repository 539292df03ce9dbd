"""`examine_tables`: what is unserved, lacking, drifted or damaged among many rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from warmup.core.counted import counted
from warmup.core.runtime import Runtime, minor_of
from warmup.diagnostics.doctor import Diagnosis, Finding, FindingState
from warmup.diagnostics.logs import Run, read_logs
from warmup.diagnostics.profile.attribution import row_us
from warmup.diagnostics.profile.profile import DRIFT
from warmup.diagnostics.tables.held_rows import HeldRows, UnreadTable, hold
from warmup.diagnostics.tables.profiled_times import ProfiledTime, read_profiles
from warmup.diagnostics.tables.served_versions import ServedVersions, parse_served
from warmup.keys.registry import kind_of

_SHOWN_DRIFTS: Final = 10
_SAME_US: Final = 1e-3  # as a share: documents have the row's own number


def examine_tables(
    places: Sequence[str],
    *,
    served: Sequence[str] = (),
    logs: Sequence[str | Path] = (),
    profiles: Sequence[Path] = (),
) -> Diagnosis:
    """Return the findings about the rows in *places*: tables and folders of tables.

    *served* names versions that are served, such as ``torch=2.13``, beside those of the servers
    whose audit logs are *logs*. Drift is found by *profiles*, documents of `warmup profile --json`:
    an audit log has no times. Rows of versions that nobody serves are not examined further.

    Raises:
        SettingsError: a place, a version, a log or a profile cannot be used.
    """
    found = list(hold(places))
    held = [each for each in found if isinstance(each, HeldRows)]
    runs = list(read_logs(logs).runs.values())
    versions = _served_by(runs, parse_served(served))
    current = [each for each in held if not versions.unserved(each.runtime)]
    findings = [
        *_unread([each for each in found if isinstance(each, UnreadTable)]),
        *_unserved(held, versions),
        *_lacking(current),
        *_unheld(current, runs),
        *_drifted(current, read_profiles(profiles)),
    ]
    return Diagnosis(tuple(findings))


def _served_by(runs: Iterable[Run], named: ServedVersions) -> ServedVersions:
    """Return the versions in *named* and those that *runs* were served with."""
    torch = {minor for run in runs if (minor := minor_of(run.torch)) is not None}
    triton = {minor for run in runs if (minor := minor_of(run.triton)) is not None}
    return ServedVersions(named.torch | torch, named.triton | triton)


def _unread(unread: Sequence[UnreadTable]) -> Iterator[Finding]:
    for each in unread:
        fix = "restore it or build it again"
        yield Finding("damaged", FindingState.FAIL, f"{each.name}: {each.problem}", fix)


def _unserved(held: Sequence[HeldRows], served: ServedVersions) -> Iterator[Finding]:
    name = "versions"
    if not (served.torch or served.triton):
        text = "not examined: nobody said which versions are served"
        fix = "name them with --served torch=2.13, or the servers' logs with --audit"
        yield Finding(name, FindingState.WARN, text, fix)
        return
    old = [(each, versions) for each in held if (versions := served.unserved(each.runtime))]
    for each, versions in old:
        text = f"{counted(len(each.rows), 'row')} of {' and '.join(versions)}, served: {served}"
        fix = "remove the table"
        yield Finding(name, FindingState.WARN, f"{each.name}: {text}", fix)
    if not old:
        rows = counted(sum(len(each.rows) for each in held), "row")
        yield Finding(name, FindingState.OK, f"{rows}, all of versions that are served ({served})")


def _lacking(held: Sequence[HeldRows]) -> Iterator[Finding]:
    """Yield for each device the problems that have a row on another device of its type only.

    Compared are keys that mean the same on every device: those that can be rebuilt from their text.
    """
    keys: dict[str, set[str]] = defaultdict(set)
    types: dict[str, str] = {}
    for each in held:
        device = _device_name(each.runtime)
        types[device] = each.runtime.device.type
        keys[device] |= {key for key in each.rows if kind_of(key).rebuild is not None}
    name, is_complete = "devices", True
    for device, own in sorted(keys.items()):
        for other, theirs in sorted(keys.items()):
            lacking = theirs - own
            if other == device or types[other] != types[device] or not lacking:
                continue
            is_complete = False
            text = f"{device} has no row for {counted(len(lacking), 'problem')} of {len(theirs)}"
            fix = "build them there: warmup build --problems with these keys"
            example = min(lacking)
            text = f"{text} that {other} has, such as {example}"
            yield Finding(name, FindingState.WARN, text, fix)
    if is_complete and keys:
        text = f"{counted(len(keys), 'device')}, and none lacks a problem that another one has"
        yield Finding(name, FindingState.OK, text)


def _unheld(held: Sequence[HeldRows], runs: Iterable[Run]) -> Iterator[Finding]:
    """Yield the devices that serve, by the logs, and have no row at all."""
    known = {each.runtime.device.name for each in held}
    for device in sorted({run.device for run in runs if run.device} - known):
        text = f"{device} serves, and has no row"
        yield Finding("devices", FindingState.WARN, text, "build a table on it")


def _drifted(held: Sequence[HeldRows], times: Sequence[ProfiledTime]) -> Iterator[Finding]:
    name = "drift"
    if not times:
        text = "not examined: audit logs have no times of kernels"
        fix = "profile a server (docs/how-to/profile.md), and name the documents with --profiles"
        yield Finding(name, FindingState.WARN, text, fix)
        return
    judged, drifted = 0, {}
    for time in times:
        for each in held:
            if each.runtime.device.name != time.device or not _has_row(each, time):
                continue
            judged += 1
            if abs(time.ratio - 1) > DRIFT:
                drifted[each.name, time.key] = time
    for (place, key), time in list(drifted.items())[:_SHOWN_DRIFTS]:
        text = f"{place}: {time.ratio:.2f}x the row's {time.row_us:g} us in {time.profile}: {key}"
        fix = "measure it again: warmup build --problems or --force, without other work there"
        yield Finding(name, FindingState.WARN, text, fix)
    if len(drifted) > _SHOWN_DRIFTS:
        text = f"{len(drifted) - _SHOWN_DRIFTS} more rows"
        yield Finding(name, FindingState.WARN, text, "build their tables again")
    rest = len(times) - judged
    others = f"; {rest} of other rows or devices than these" if rest > 0 else ""
    text = f"{len(drifted)} of {counted(judged, 'profiled row')} drifted by more than 10 %{others}"
    if not drifted:
        yield Finding(name, FindingState.OK, text)


def _has_row(held: HeldRows, time: ProfiledTime) -> bool:
    """Whether *held* has the row that was compared with *time*: its key, winner and own time."""
    row = held.rows.get(time.key)
    return (
        row is not None
        and str(row.winner) == time.winner
        and math.isclose(row_us(row)[0], time.row_us, rel_tol=_SAME_US)
    )


def _device_name(runtime: Runtime) -> str:
    device = runtime.device
    extra = f" MIG {device.mig}" if device.mig is not None else ""
    return f"{device.name or device.arch}{extra}"
