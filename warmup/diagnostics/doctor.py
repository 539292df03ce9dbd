"""`diagnose`: is this machine fit for building and serving, and what to do where not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from warmup.core.errors import TableError, TableNotFoundError
from warmup.core.runtime import Device, Runtime, closed_gate, compare_runtimes
from warmup.core.units import GIB
from warmup.table.store import discover, find

if TYPE_CHECKING:
    from warmup.inductor.host_facts import Compiler, Folder
    from warmup.inductor.torch_facts import Facts, Load, Target

_IDLE_PERCENT: Final = 5


class FindingState(StrEnum):
    """How a check ended: a warning lets a build or server run, a failure does not."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found and, unless it is ok, what to do."""

    name: str
    state: FindingState
    said: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings about one machine, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(found.name for found in self.findings if found.state is FindingState.FAIL)


def diagnose(device: str = "auto") -> Diagnosis:
    """Return what was found about this machine for *device*; nothing is tuned, no file stays.

    Raises:
        SettingsError: *device* is not ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
    """
    from warmup.inductor.torch_facts import collect_facts

    facts = collect_facts(device)
    here = facts.target.runtime if facts.target else None
    return Diagnosis((*judge(facts), *(() if here is None else (_tables(here),))))


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Return the findings that *facts* amount to; torch alone when torch cannot be used."""
    findings = [_torch(facts)]
    if facts.torch_error is not None:
        return tuple(findings)
    if facts.on_gpu or facts.requested == "auto":
        findings.append(_driver(facts))
    findings.append(_triton(facts))
    compiler = facts.compiler
    if compiler and not (compiler.command and facts.temporary_error):  # there none compiles
        findings.append(_compiler(compiler))
    findings.append(_temporary(facts.temporary_error))
    for folder in facts.folders:
        findings.append(_cache(folder))
        if folder.error is None:
            findings.append(_space(folder))
    return (*findings, *_target(facts.target))


def _torch(facts: Facts) -> Finding:
    if facts.torch_error is None:
        return Finding("torch", FindingState.OK, str(facts.torch))
    said, _, advice = facts.torch_error.rpartition("; ")  # an AdapterError ends with its advice
    fix = advice if said else "install torch again, with the libraries that it names"
    return Finding("torch", FindingState.FAIL, said or facts.torch_error, fix)


def _target(target: Target | None) -> list[Finding]:
    if target is None:
        said = "not examined: importing inductor needs the folders that failed above"
        return [Finding("device", FindingState.WARN, said, "mend those, then run this again")]
    if target.runtime is None:
        fix = "make the device visible and free, or use --device cpu"
        return [Finding("device", FindingState.FAIL, target.error or "not there", fix)]
    device = target.runtime.device
    findings = [_device(device)]
    if device.type != "cpu":
        findings.append(_gate(device))
    if target.memory is not None:
        findings.append(_memory(*target.memory))
    if target.load is not None:
        findings += [_load(target.load), _online(target.online)]
    return findings


def _device(device: Device) -> Finding:
    name = "device"
    if device.type == "cpu":
        said = f"{device.name}, {device.arch}, {device.threads} threads"
        return Finding(name, FindingState.OK, said)
    said = f"{device.arch}, {device.sm_count} SMs, {device.memory_gib} GiB"
    if not device.name:
        fix = f"keep its tables in tables/{device.slug}, or name one in WARMUP_TABLE"
        return Finding(name, FindingState.WARN, f"the driver gives no name; {said}", fix)
    return Finding(name, FindingState.OK, f"{device.name}, {said}")


def _driver(facts: Facts) -> Finding:
    name, cuda = "driver", facts.cuda
    if cuda.hip is not None:
        return Finding(name, FindingState.OK, f"torch for ROCm {cuda.hip}, driver not checked")
    if not (cuda.sees_device or cuda.has_driver_folder or cuda.driver):
        if facts.requested == "auto":
            return Finding(name, FindingState.OK, "no NVIDIA driver here")
        fix = "install the NVIDIA driver, or use --device cpu"
        return Finding(name, FindingState.FAIL, "no NVIDIA driver here", fix)
    if cuda.torch is None:
        said = "an NVIDIA driver is here, but torch is a CPU build"
        return Finding(name, FindingState.FAIL, said, "install torch for CUDA, or use --device cpu")
    if cuda.driver is not None and _major(cuda.driver) < _major(cuda.torch):
        said = f"torch is built for CUDA {cuda.torch}, the driver runs CUDA {cuda.driver}"
        fix = f"update the driver, or install torch for CUDA {_major(cuda.driver)}"
        return Finding(name, FindingState.FAIL, said, fix)
    if cuda.sees_device:
        runs = "of unknown version" if cuda.driver is None else f"for CUDA {cuda.driver}"
        return Finding(name, FindingState.OK, f"torch built for CUDA {cuda.torch}, driver {runs}")
    if cuda.visible_devices is not None:
        said = f"torch sees no device, CUDA_VISIBLE_DEVICES is {cuda.visible_devices!r}"
        fix = "name a device in CUDA_VISIBLE_DEVICES or unset it, or use --device cpu"
        return Finding(name, FindingState.FAIL, said, fix)
    reason = cuda.message or "no reason given"
    said = f"an NVIDIA driver is here, but torch sees no device: {reason}"
    fix = "give this container a GPU (docker run --gpus all), or use --device cpu"
    return Finding(name, FindingState.FAIL, said, fix)


def _gate(device: Device) -> Finding:
    name, gate = "GEMM autotune", closed_gate(device)
    if gate is None:
        return Finding(name, FindingState.OK, f"{device.arch} is large enough for templates")
    fix = "use a larger GPU, or serve without a table: here none can choose a template"
    if device.mig is not None:
        fix = f"use the whole GPU or a larger MIG profile than {device.mig}"
    said = f"{gate.found}, needs {gate.expected}"
    if device.vendor != "amd":
        said = f"{gate.found} < {gate.expected.removeprefix('at least ')}"
    return Finding(name, FindingState.FAIL, f"GEMM autotune unavailable: {said}", fix)


def _triton(facts: Facts) -> Finding:
    name, found, wanted = "triton", facts.triton, facts.triton_wanted
    fix = f"pip install 'triton{wanted or ''}'"
    if found is None and facts.on_gpu:
        return Finding(
            name, FindingState.FAIL, "not installed, and inductor needs it on a GPU", fix
        )
    if found is None:
        return Finding(name, FindingState.OK, "not installed, not needed on CPU")
    if wanted is None:
        return Finding(name, FindingState.OK, f"{found} (torch names no version)")
    if _satisfies(found, wanted):
        return Finding(name, FindingState.OK, f"{found} (torch wants {wanted})")
    return Finding(name, FindingState.WARN, f"{found}, but torch wants {wanted}", fix)


def _compiler(compiler: Compiler) -> Finding:
    name, user, variable, packages = "compiler", "Triton", "CC", "gcc"
    if compiler.language == "C++":
        user, variable, packages = "inductor", "CXX", "g++"
    if compiler.command is None:
        said = f"no {compiler.language} compiler, which {user} needs"
        fix = f"install {packages}, or name a compiler in {variable}"
        return Finding(name, FindingState.FAIL, said, fix)
    if compiler.error is None:
        said = f"{compiler.command} compiles {compiler.language} with Python.h"
        return Finding(name, FindingState.OK, said)
    fix = f"install {packages} with the C library's headers, or name another in {variable}"
    for header, package in (("Python.h", "python3-dev"), ("omp.h", "libomp-dev")):
        if header in compiler.error:
            fix = f"install the package with {header} for this Python or compiler ({package})"
    return Finding(name, FindingState.FAIL, f"{compiler.command}: {compiler.error}", fix)


def _temporary(error: str | None) -> Finding:
    name = "temporary folder"
    if error is None:
        return Finding(name, FindingState.OK, "writable")
    return Finding(
        name, FindingState.FAIL, error, "mount a writable /tmp, or name a folder in TMPDIR"
    )


def _cache(folder: Folder) -> Finding:
    fix = f"name a writable folder in {folder.setting}"
    if folder.path is None:
        return Finding(
            folder.name, FindingState.FAIL, f"torch finds no default: {folder.error}", fix
        )
    if folder.error is not None:
        return Finding(folder.name, FindingState.FAIL, f"{folder.path}: {folder.error}", fix)
    if not folder.is_executable:
        said = f"{folder.path}: nothing in it may run (noexec mount)"
        fix = f"name a folder on a mount without noexec in {folder.setting}"
        return Finding(folder.name, FindingState.FAIL, said, fix)
    return Finding(folder.name, FindingState.OK, f"{folder.path} (writable, executable)")


def _space(folder: Folder) -> Finding:
    said = f"{folder.free_bytes / GIB:.1f} GiB free for the {folder.name}"
    if folder.free_bytes >= GIB:
        return Finding("space", FindingState.OK, said)
    fix = f"free space, or name a larger folder in {folder.setting}"
    return Finding("space", FindingState.WARN, said, fix)


def _memory(free: int, total: int) -> Finding:
    said = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if 2 * free >= total:
        return Finding("device memory", FindingState.OK, said)
    fix = "stop what else runs on this GPU; tuning may run out of memory"
    return Finding("device memory", FindingState.WARN, said, fix)


def _load(load: Load) -> Finding:
    name = "other work"
    if load.unknown is not None:
        said = f"not checked whether others use the device: {load.unknown}"
        fix = "see for yourself that the GPU is idle; `pip install nvidia-ml-py` helps on NVIDIA"
        return Finding(name, FindingState.WARN, said, fix)
    busy = load.busy_percent or 0
    if not load.pids and busy <= _IDLE_PERCENT:
        return Finding(name, FindingState.OK, "no other process on the device")
    users = f"pid {', '.join(map(str, load.pids))}" if load.pids else "unseen processes"
    said = f"{busy}% busy, used by {users}"
    return Finding(
        name, FindingState.WARN, said, "build on an idle GPU: measured times are off otherwise"
    )


def _online(tuners: tuple[str, ...]) -> Finding:
    if not tuners:
        return Finding("online tuning", FindingState.OK, "none beside inductor's")
    said = f"on: {', '.join(tuners)}; tunes at run time, outside inductor"
    fix = "set torch.backends.cudnn.benchmark = False and PYTORCH_TUNABLEOP_TUNING=0"
    return Finding("online tuning", FindingState.WARN, said, fix)


def _tables(here: Runtime) -> Finding:
    """Look where `warmup.install()` would look."""
    name, fix = "tables", "build one with `warmup build`, or name one in WARMUP_TABLE"
    try:
        found = find(None, os.environ) if os.environ.get("WARMUP_TABLE") else discover(here)
    except TableNotFoundError as error:
        left_out = [place for place in error.searched if ".json" in place]
        return Finding(name, FindingState.WARN, "; ".join((error.wanted, *left_out)), fix)
    except TableError as error:
        return Finding(name, FindingState.WARN, str(error), fix)
    wrong = [
        str(each) for each in compare_runtimes(found.table.provenance.runtime, here) if each.is_hard
    ]
    if wrong:
        said = f"{found.origin} is for another machine: {'; '.join(wrong)}"
        return Finding(name, FindingState.WARN, said, fix)
    return Finding(name, FindingState.OK, f"{len(found.table.rows)} rows in {found.origin}")


def _satisfies(version: str, wanted: str) -> bool:
    """Compare as pip would for the two forms that torch has used; other forms pass."""
    public, operator, number = version.partition("+")[0], wanted[:2], wanted[2:].strip()
    if operator == "==":
        return public == number.partition("+")[0]
    if operator == "~=":
        return public.startswith(number.rpartition(".")[0] + ".")
    return True


def _major(version: str) -> int:
    return int(version.partition(".")[0])
