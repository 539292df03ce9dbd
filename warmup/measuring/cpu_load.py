"""`CpuReading`: CPU seconds used on this machine, and how much of it other processes took.

Read from Linux's ``/proc`` and ``/sys/fs/cgroup`` (proc(5); the kernel's documentation of cgroup v1
and v2). Containers see the processes of the whole host in ``/proc/stat``, and may use only as much
as the quota of their cgroup.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_US: Final = 1e6
_NS: Final = 1e9
_IDLE: Final = (3, 4)  # columns of idle and iowait in a line of /proc/stat
_TIMES: Final = 8  # columns of times; those after them, of guests, are counted before
_PARENT: Final = 1  # columns of /proc/PID/stat after the command
_PROCESS_TIMES: Final = slice(11, 15)  # utime, stime, cutime, cstime


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds used until a moment ``at``, of `time.monotonic`.

    ``cpus`` CPUs may be used by this process, on which all processes of the machine used ``all_s``;
    this process and its descendants used ``own_s``. ``quota`` is the number of CPUs that its cgroup
    may use at a time, infinite without a limit, and all processes in that cgroup used ``group_s``.
    """

    at: float
    cpus: int
    all_s: float
    own_s: float
    quota: float = math.inf
    group_s: float = 0.0

    @property
    def usable(self) -> float:
        """The CPUs that this process can use at a time when nothing else runs."""
        return min(self.cpus, self.quota)


def read_cpus(root: Path = Path("/")) -> CpuReading | None:
    """Return the CPU seconds used until now; None where the machine does not say.

    *root* is the folder that holds ``proc`` and ``sys``.
    """
    try:
        allowed = os.sched_getaffinity(0)
        all_s = _busy_seconds((root / "proc/stat").read_text(), allowed)
        own_s = _own_seconds(root / "proc")
    except (AttributeError, OSError, ValueError, IndexError):
        return None  # not Linux, or a sandbox without /proc
    quota, group_s = _quota(root)
    return CpuReading(time.monotonic(), len(allowed), all_s, own_s, quota, group_s)


def others_share(before: CpuReading, after: CpuReading) -> float:
    """Return the share of the usable CPUs that other processes took between two readings, 0 to 1.

    Other processes take CPUs of the machine, or, in the same cgroup, a part of its quota. CPUs that
    the quota forbids to use are nobody's loss.
    """
    seconds = after.at - before.at
    if seconds <= 0:
        return 0.0
    own = (after.own_s - before.own_s) / seconds
    on_cpus = max((after.all_s - before.all_s) / seconds - own, 0.0)
    free = after.cpus - on_cpus
    if after.quota < math.inf:
        in_group = max((after.group_s - before.group_s) / seconds - own, 0.0)
        free = min(free, after.quota - in_group)
    return min(max(1 - free / after.usable, 0.0), 1.0)


def _busy_seconds(stat: str, allowed: set[int]) -> float:
    """Return the seconds that the CPUs in *allowed* were not idle, of the text of /proc/stat."""
    ticks, seen = 0, 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed:
            times = [int(column) for column in columns[:_TIMES]]
            ticks += sum(times) - sum(times[column] for column in _IDLE)
            seen += 1
    if seen < len(allowed) or not ticks:
        raise ValueError("no times of these CPUs")
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds(proc: Path) -> float:
    """Return the CPU seconds of this process and its descendants, the ended ones included."""
    ended, family = os.times(), family_of(os.getpid(), proc)
    ticks = sum(family.values()) - family[os.getpid()]
    own_s = ended.user + ended.system + ended.children_user + ended.children_system
    return own_s + ticks / os.sysconf("SC_CLK_TCK")


def family_of(pid: int, proc: Path) -> dict[int, int]:
    """Return the ticks of *pid* and of all processes that descend from it, by ID.

    Raises:
        OSError, ValueError, IndexError: *proc* cannot be read, or is of another form.
    """
    children, ticks = defaultdict[int, list[int]](list), {pid: 0}
    for each, parent, used in _processes(proc):
        children[parent].append(each)
        ticks[each] = used
    family, ahead = [pid], [pid]
    while ahead:
        fresh = [child for child in children[ahead.pop()] if child not in family]
        family += fresh
        ahead += fresh
    return {each: ticks[each] for each in family}


def _processes(proc: Path) -> Iterator[tuple[int, int, int]]:
    """Yield each running process: its ID, its parent's, and its and its ended children's ticks."""
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue  # it has ended meanwhile
        columns = text.rpartition(")")[2].split()  # the command may contain anything
        yield int(folder.name), int(columns[_PARENT]), sum(map(int, columns[_PROCESS_TIMES]))


def _quota(root: Path) -> tuple[float, float]:
    """Return how many CPUs the cgroup may use, and the seconds it has used; infinite and 0 without.

    The narrowest limit counts, of the cgroup itself or of one that it is in.
    """
    narrowest = math.inf, 0.0
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return narrowest
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("" if not controllers else "cpu")
        own = base / path.lstrip("/")
        for folder in (own, *(above for above in own.parents if above.is_relative_to(base))):
            limit = (_limit_v1 if controllers else _limit_v2)(folder)
            narrowest = min(narrowest, limit)
    return narrowest


def _limit_v2(folder: Path) -> tuple[float, float]:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        used = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
        return int(quota) / int(period), int(used["usage_usec"]) / _US
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return math.inf, 0.0  # "max", or the root, which has no limit


def _limit_v1(folder: Path) -> tuple[float, float]:
    accounts = Path(str(folder).replace("/cgroup/cpu", "/cgroup/cpuacct", 1))
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        used_s = int((accounts / "cpuacct.usage").read_text()) / _NS
    except (OSError, ValueError):
        return math.inf, 0.0
    return (quota / period, used_s) if quota > 0 < period else (math.inf, 0.0)
