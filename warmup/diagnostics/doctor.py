"""`diagnose`: checks of this machine for building and serving, each with what to do if it fails.

`warmup.inductor.torch_facts` gathers the facts; here they become findings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from warmup.core.device import Device, Runtime, closed_gate, compare_runtimes
from warmup.core.errors import TableError, TableNotFoundError
from warmup.core.text import GIB, counted
from warmup.table.store import discover, find

if TYPE_CHECKING:
    from warmup.inductor.host_facts import Compiler, Folder
    from warmup.inductor.torch_facts import Facts, Load, Target

_IDLE_PERCENT: Final = 5


class FindingState(StrEnum):
    """The result of a check. With a warning builds and servers run, with a failure they do not."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: ``said`` is the result as text, ``fix`` what to do unless it is ok."""

    state: FindingState
    name: str
    said: str
    fix: str = ""


_ok, _warn, _fail = (partial(Finding, state) for state in FindingState)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings about a machine, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(each.name for each in self.findings if each.state is FindingState.FAIL)


def diagnose(device: str = "auto") -> Diagnosis:
    """Return the findings about this machine for *device*; nothing is tuned, and no file is left.

    Raises:
        SettingsError: *device* is not ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
    """
    from warmup.inductor.torch_facts import collect_facts

    facts = collect_facts(device)
    here = facts.target.runtime if facts.target else None
    return Diagnosis((*judge(facts), *(() if here is None else (_tables(here),))))


def judge(facts: Facts) -> Iterator[Finding]:
    """Yield the findings that follow from *facts*; only that about torch if it cannot be used."""
    if facts.torch_error is not None:
        problem, _, advice = facts.torch_error.rpartition("; ")  # an AdapterError ends with advice
        fix = advice if problem else "install torch again, with the libraries that it names"
        yield _fail("torch", problem or facts.torch_error, fix)
        return
    yield _ok("torch", str(facts.torch))
    if facts.on_gpu or facts.requested == "auto":
        yield _driver(facts)
    yield _triton(facts)
    compiler = facts.compiler
    # A compiler cannot be tried without a temporary folder.
    if compiler and not (compiler.command and facts.temporary_error):
        yield _compiler(compiler)
    if facts.temporary_error is None:
        yield _ok("temporary folder", "writable")
    else:
        fix = "mount a writable /tmp, or name a folder in TMPDIR"
        yield _fail("temporary folder", facts.temporary_error, fix)
    for folder in facts.folders:
        yield _cache(folder)
        if folder.error is None:
            text = f"{folder.free_bytes / GIB:.1f} GiB free for the {folder.name}"
            fix = f"free space, or name a larger folder in {folder.setting}"
            is_enough = folder.free_bytes >= GIB
            yield _ok("space", text) if is_enough else _warn("space", text, fix)
    yield from _target(facts.target)


def _target(target: Target | None) -> Iterator[Finding]:
    if target is None:
        text = "not examined: importing inductor needs the folders that failed above"
        yield _warn("device", text, "mend those, then run this again")
        return
    if target.runtime is None:
        fix = "make the device visible and free, or use --device cpu"
        yield _fail("device", target.error or "not there", fix)
        return
    device = target.runtime.device
    if device.type == "cpu":
        yield _ok("device", f"{device.name}, {device.arch}, {device.threads} threads")
    else:
        text = f"{device.arch}, {device.sm_count} SMs, {device.memory_gib} GiB"
        if device.name:
            yield _ok("device", f"{device.name}, {text}")
        else:
            fix = f"keep its tables in tables/{device.slug}, or name one in WARMUP_TABLE"
            yield _warn("device", f"the driver gives no name; {text}", fix)
        yield _gate(device)
    if target.memory is not None:
        free, total = target.memory
        text = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
        fix = "stop what else runs on this GPU; tuning may run out of memory"
        is_enough = 2 * free >= total
        yield _ok("device memory", text) if is_enough else _warn("device memory", text, fix)
    if target.load is not None:
        yield _load(target.load)
        text = f"on: {', '.join(target.online)}; tunes at run time, outside inductor"
        fix = "set torch.backends.cudnn.benchmark = False and PYTORCH_TUNABLEOP_TUNING=0"
        none = _ok("online tuning", "none beside inductor's")
        yield _warn("online tuning", text, fix) if target.online else none


def _driver(facts: Facts) -> Finding:
    name, cuda = "driver", facts.cuda
    if cuda.hip is not None:
        return _ok(name, f"torch for ROCm {cuda.hip}, driver not checked")
    if not (cuda.sees_device or cuda.has_driver_folder or cuda.driver):
        if facts.requested == "auto":
            return _ok(name, "no NVIDIA driver here")
        fix = "install the NVIDIA driver, or use --device cpu"
        return _fail(name, "no NVIDIA driver here", fix)
    if cuda.torch is None:
        text = "an NVIDIA driver is here, but torch is a CPU build"
        return _fail(name, text, "install torch for CUDA, or use --device cpu")
    if cuda.driver is not None and _major(cuda.driver) < _major(cuda.torch):
        text = f"torch is built for CUDA {cuda.torch}, the driver runs CUDA {cuda.driver}"
        fix = f"update the driver, or install torch for CUDA {_major(cuda.driver)}"
        return _fail(name, text, fix)
    if cuda.sees_device:
        version = "of unknown version" if cuda.driver is None else f"for CUDA {cuda.driver}"
        return _ok(name, f"torch built for CUDA {cuda.torch}, driver {version}")
    if cuda.visible_devices is not None:
        text = f"torch sees no device, CUDA_VISIBLE_DEVICES is {cuda.visible_devices!r}"
        fix = "name a device in CUDA_VISIBLE_DEVICES or unset it, or use --device cpu"
        return _fail(name, text, fix)
    reason = cuda.message or "no reason given"
    text = f"an NVIDIA driver is here, but torch sees no device: {reason}"
    fix = "give this container a GPU (docker run --gpus all), or use --device cpu"
    return _fail(name, text, fix)


def _gate(device: Device) -> Finding:
    name, gate = "GEMM autotune", closed_gate(device)
    if gate is None:
        return _ok(name, f"{device.arch} is large enough for templates")
    fix = "use a larger GPU, or serve without a table: no table can choose a template here"
    if device.mig is not None:
        fix = f"use the whole GPU or a larger MIG profile than {device.mig}"
    reason = f"{gate.found}, needs {gate.expected}"
    if device.vendor != "amd":
        reason = f"{gate.found} < {gate.expected.removeprefix('at least ')}"
    return _fail(name, f"GEMM autotune unavailable: {reason}", fix)


def _triton(facts: Facts) -> Finding:
    name, version, wanted = "triton", facts.triton, facts.triton_wanted
    fix = f"pip install 'triton{wanted or ''}'"
    if version is None and facts.on_gpu:
        return _fail(name, "not installed, and inductor needs it on a GPU", fix)
    if version is None:
        return _ok(name, "not installed, not needed on CPU")
    if wanted is None:
        return _ok(name, f"{version} (torch names no version)")
    if _satisfies(version, wanted):
        return _ok(name, f"{version} (torch wants {wanted})")
    return _warn(name, f"{version}, but torch wants {wanted}", fix)


def _compiler(compiler: Compiler) -> Finding:
    name, user, variable, packages = "compiler", "Triton", "CC", "gcc"
    if compiler.language == "C++":
        user, variable, packages = "inductor", "CXX", "g++"
    if compiler.command is None:
        text = f"no {compiler.language} compiler, which {user} needs"
        return _fail(name, text, f"install {packages}, or name a compiler in {variable}")
    if compiler.error is None:
        return _ok(name, f"{compiler.command} compiles {compiler.language} with Python.h")
    fix = f"install {packages} with the C library's headers, or name another in {variable}"
    for header, package in (("Python.h", "python3-dev"), ("omp.h", "libomp-dev")):
        if header in compiler.error:
            fix = f"install the package with {header} for this Python or compiler ({package})"
    return _fail(name, f"{compiler.command}: {compiler.error}", fix)


def _cache(folder: Folder) -> Finding:
    fix = f"name a writable folder in {folder.setting}"
    if folder.path is None:
        return _fail(folder.name, f"torch finds no default: {folder.error}", fix)
    if folder.error is not None:
        return _fail(folder.name, f"{folder.path}: {folder.error}", fix)
    if not folder.is_executable:
        text = f"{folder.path}: nothing in it may run (noexec mount)"
        return _fail(
            folder.name, text, f"name a folder on a mount without noexec in {folder.setting}"
        )
    return _ok(folder.name, f"{folder.path} (writable, executable)")


def _load(load: Load) -> Finding:
    name = "other work"
    if load.unknown is not None:
        text = f"not checked whether others use the device: {load.unknown}"
        fix = "see for yourself that the GPU is idle; `pip install nvidia-ml-py` helps on NVIDIA"
        return _warn(name, text, fix)
    busy = load.busy_percent or 0
    if not load.pids and busy <= _IDLE_PERCENT:
        return _ok(name, "no other process on the device")
    users = f"pid {', '.join(map(str, load.pids))}" if load.pids else "unseen processes"
    fix = "build on an idle GPU: measured times are off otherwise"
    return _warn(name, f"{busy}% busy, used by {users}", fix)


def _tables(here: Runtime) -> Finding:
    name, fix = "tables", "build one with `warmup build`, or name one in WARMUP_TABLE"
    try:
        found = find(None, os.environ) if os.environ.get("WARMUP_TABLE") else discover(here)
    except TableNotFoundError as error:
        left_out = [text for text in error.searched if ".json" in text]
        return _warn(name, "; ".join((error.wanted, *left_out)), fix)
    except TableError as error:
        return _warn(name, str(error), fix)
    mismatches = compare_runtimes(found.table.provenance.runtime, here)
    if hard := [str(mismatch) for mismatch in mismatches if mismatch.is_hard]:
        return _warn(name, f"{found.origin} is for another machine: {'; '.join(hard)}", fix)
    return _ok(name, f"{counted(len(found.table.rows), 'row')} in {found.origin}")


def _satisfies(version: str, wanted: str) -> bool:
    public, operator, number = version.partition("+")[0], wanted[:2], wanted[2:].strip()
    if operator == "==":
        return public == number.partition("+")[0]
    return operator != "~=" or public.startswith(number.rpartition(".")[0] + ".")


def _major(version: str) -> int:
    return int(version.partition(".")[0])
