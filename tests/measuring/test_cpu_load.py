"""The load of other processes, read from a made-up machine in a folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from warmup.measuring.machine import CpuReading, others_share, read_cpus

TICKS = os.sysconf("SC_CLK_TCK")
CPUS = len(os.sched_getaffinity(0))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine whose usable CPUs were each busy for 30 of 100 s, without other processes."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/\n")
    line = " ".join(str(value * TICKS) for value in (10, 5, 8, 60, 10, 2, 3, 2, 7, 7))
    cpus = "".join(f"cpu{number} {line}\n" for number in range(max(os.sched_getaffinity(0)) + 1))
    (proc / "stat").write_text(f"cpu  {line}\n{cpus}intr 5 0 0\n")
    return tmp_path


def process(machine: Path, pid: int, parent: int, *seconds: int, name: str = "x") -> None:
    """Add a process with user, system, and its children's user and system seconds."""
    folder = machine / "proc" / str(pid)
    folder.mkdir()
    times = " ".join(str(value * TICKS) for value in seconds)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 {times} 20 0\n")


def reading(machine: Path) -> CpuReading:
    found = read_cpus(machine)
    assert found is not None
    return found


def test_a_reading_has_the_busy_seconds_and_ones_own(machine: Path) -> None:
    """Neither idle, nor for a disk, guests once; own ones are those of all descendants."""
    assert reading(machine).all_s == pytest.approx(30.0 * CPUS)
    before = reading(machine).own_s
    process(machine, 900001, os.getpid(), 1, 2, 3, 4)
    process(machine, 900002, 900001, 10, 0, 0, 0, name="a) S 1 (b")
    process(machine, 900003, 1, 100, 100, 0, 0)
    assert reading(machine).own_s == pytest.approx(before + 20.0, abs=0.5)


def test_a_machine_that_says_nothing_has_no_reading(machine: Path) -> None:
    """Without times of the usable CPUs there is no reading, and no error."""
    path = machine / "proc" / "stat"
    for stat in ("", "cpu  1 2 3", "cpu0 a b c", None):
        path.unlink() if stat is None else path.write_text(stat)
        assert read_cpus(machine) is None, stat


def test_a_quota_of_cgroup_v2_is_read(machine: Path) -> None:
    """The narrowest limit counts, here that of the group above."""
    inner = machine / "sys" / "fs" / "cgroup" / "pod" / "app"
    inner.mkdir(parents=True)
    (machine / "proc" / "self" / "cgroup").write_text("0::/pod/app\n")
    for folder, limit in ((inner, "max 100000"), (inner.parent, "150000 100000")):
        (folder / "cpu.max").write_text(f"{limit}\n")
        (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    found = reading(machine)
    assert (found.quota, found.group_s) == (1.5, 2.5)
    assert found.usable == min(CPUS, 1.5)


START = CpuReading(at=10.0, cpus=4, all_s=100.0, own_s=50.0)


def test_the_share_is_that_of_others() -> None:
    """Over two seconds on four CPUs, without what this build used; a quota bounds what is lost."""
    for all_s, own_s, share in (
        (0.0, 0.0, 0.0),
        (8.0, 8.0, 0.0),
        (4.0, 2.0, 0.25),
        (1.0, 2.0, 0.0),
    ):
        after = replace(START, at=12.0, all_s=100.0 + all_s, own_s=50.0 + own_s)
        assert others_share(START, after) == pytest.approx(share), (all_s, own_s)
    for all_s, group_s, share in ((5.0, 1.0, 0.0), (8.0, 1.0, 0.5), (2.0, 2.0, 0.5)):
        before = replace(START, quota=1.0, group_s=20.0)
        after = replace(before, at=12.0, all_s=100.0 + all_s, own_s=51.0, group_s=20.0 + group_s)
        assert others_share(before, after) == pytest.approx(share), (all_s, group_s)
