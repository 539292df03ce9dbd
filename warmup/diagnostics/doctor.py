"""`diagnose`: checks of this machine for building and serving, each with what to do if it fails.

`warmup.inductor.torch_facts` gathers the facts; here they become findings.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
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

    name: str
    state: FindingState
    said: str
    fix: str = ""


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


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Return the findings that follow from *facts*; only that about torch if it cannot be used."""
    findings = [_torch(facts)]
    if facts.torch_error is not None:
        return tuple(findings)
    if facts.on_gpu or facts.requested == "auto":
        findings.append(_driver(facts))
    findings.append(_triton(facts))
    compiler = facts.compiler
    # A compiler cannot be tried without a temporary folder.
    if compiler and not (compiler.command and facts.temporary_error):
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
    problem, _, advice = facts.torch_error.rpartition("; ")  # an AdapterError ends with its advice
    fix = advice if problem else "install torch again, with the libraries that it names"
    return Finding("torch", FindingState.FAIL, problem or facts.torch_error, fix)


def _target(target: Target | None) -> list[Finding]:
    if target is None:
        text = "not examined: importing inductor needs the folders that failed above"
        return [Finding("device", FindingState.WARN, text, "mend those, then run this again")]
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
        text = f"{device.name}, {device.arch}, {device.threads} threads"
        return Finding(name, FindingState.OK, text)
    text = f"{device.arch}, {device.sm_count} SMs, {device.memory_gib} GiB"
    if not device.name:
        fix = f"keep its tables in tables/{device.slug}, or name one in WARMUP_TABLE"
        return Finding(name, FindingState.WARN, f"the driver gives no name; {text}", fix)
    return Finding(name, FindingState.OK, f"{device.name}, {text}")


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
        text = "an NVIDIA driver is here, but torch is a CPU build"
        return Finding(name, FindingState.FAIL, text, "install torch for CUDA, or use --device cpu")
    if cuda.driver is not None and _major(cuda.driver) < _major(cuda.torch):
        text = f"torch is built for CUDA {cuda.torch}, the driver runs CUDA {cuda.driver}"
        fix = f"update the driver, or install torch for CUDA {_major(cuda.driver)}"
        return Finding(name, FindingState.FAIL, text, fix)
    if cuda.sees_device:
        version = "of unknown version" if cuda.driver is None else f"for CUDA {cuda.driver}"
        text = f"torch built for CUDA {cuda.torch}, driver {version}"
        return Finding(name, FindingState.OK, text)
    if cuda.visible_devices is not None:
        text = f"torch sees no device, CUDA_VISIBLE_DEVICES is {cuda.visible_devices!r}"
        fix = "name a device in CUDA_VISIBLE_DEVICES or unset it, or use --device cpu"
        return Finding(name, FindingState.FAIL, text, fix)
    text = (
        f"an NVIDIA driver is here, but torch sees no device: {cuda.message or 'no reason given'}"
    )
    fix = "give this container a GPU (docker run --gpus all), or use --device cpu"
    return Finding(name, FindingState.FAIL, text, fix)


def _gate(device: Device) -> Finding:
    name, gate = "GEMM autotune", closed_gate(device)
    if gate is None:
        return Finding(name, FindingState.OK, f"{device.arch} is large enough for templates")
    fix = "use a larger GPU, or serve without a table: no table can choose a template here"
    if device.mig is not None:
        fix = f"use the whole GPU or a larger MIG profile than {device.mig}"
    reason = f"{gate.found}, needs {gate.expected}"
    if device.vendor != "amd":
        reason = f"{gate.found} < {gate.expected.removeprefix('at least ')}"
    return Finding(name, FindingState.FAIL, f"GEMM autotune unavailable: {reason}", fix)


def _triton(facts: Facts) -> Finding:
    name, version, wanted = "triton", facts.triton, facts.triton_wanted
    fix = f"pip install 'triton{wanted or ''}'"
    if version is None and facts.on_gpu:
        return Finding(
            name, FindingState.FAIL, "not installed, and inductor needs it on a GPU", fix
        )
    if version is None:
        return Finding(name, FindingState.OK, "not installed, not needed on CPU")
    if wanted is None:
        return Finding(name, FindingState.OK, f"{version} (torch names no version)")
    if _satisfies(version, wanted):
        return Finding(name, FindingState.OK, f"{version} (torch wants {wanted})")
    return Finding(name, FindingState.WARN, f"{version}, but torch wants {wanted}", fix)


def _compiler(compiler: Compiler) -> Finding:
    name, user, variable, packages = "compiler", "Triton", "CC", "gcc"
    if compiler.language == "C++":
        user, variable, packages = "inductor", "CXX", "g++"
    if compiler.command is None:
        text = f"no {compiler.language} compiler, which {user} needs"
        fix = f"install {packages}, or name a compiler in {variable}"
        return Finding(name, FindingState.FAIL, text, fix)
    if compiler.error is None:
        text = f"{compiler.command} compiles {compiler.language} with Python.h"
        return Finding(name, FindingState.OK, text)
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
        text = f"{folder.path}: nothing in it may run (noexec mount)"
        fix = f"name a folder on a mount without noexec in {folder.setting}"
        return Finding(folder.name, FindingState.FAIL, text, fix)
    return Finding(folder.name, FindingState.OK, f"{folder.path} (writable, executable)")


def _space(folder: Folder) -> Finding:
    text = f"{folder.free_bytes / GIB:.1f} GiB free for the {folder.name}"
    if folder.free_bytes >= GIB:
        return Finding("space", FindingState.OK, text)
    fix = f"free space, or name a larger folder in {folder.setting}"
    return Finding("space", FindingState.WARN, text, fix)


def _memory(free: int, total: int) -> Finding:
    text = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if 2 * free >= total:
        return Finding("device memory", FindingState.OK, text)
    fix = "stop what else runs on this GPU; tuning may run out of memory"
    return Finding("device memory", FindingState.WARN, text, fix)


def _load(load: Load) -> Finding:
    name = "other work"
    if load.unknown is not None:
        text = f"not checked whether others use the device: {load.unknown}"
        fix = "see for yourself that the GPU is idle; `pip install nvidia-ml-py` helps on NVIDIA"
        return Finding(name, FindingState.WARN, text, fix)
    busy = load.busy_percent or 0
    if not load.pids and busy <= _IDLE_PERCENT:
        return Finding(name, FindingState.OK, "no other process on the device")
    users = f"pid {', '.join(map(str, load.pids))}" if load.pids else "unseen processes"
    text = f"{busy}% busy, used by {users}"
    fix = "build on an idle GPU: measured times are off otherwise"
    return Finding(name, FindingState.WARN, text, fix)


def _online(tuners: tuple[str, ...]) -> Finding:
    if not tuners:
        return Finding("online tuning", FindingState.OK, "none beside inductor's")
    text = f"on: {', '.join(tuners)}; tunes at run time, outside inductor"
    fix = "set torch.backends.cudnn.benchmark = False and PYTORCH_TUNABLEOP_TUNING=0"
    return Finding("online tuning", FindingState.WARN, text, fix)


def _tables(here: Runtime) -> Finding:
    """Return whether `warmup.install()` would find a table, without an argument."""
    name, fix = "tables", "build one with `warmup build`, or name one in WARMUP_TABLE"
    try:
        found = find(None, os.environ) if os.environ.get("WARMUP_TABLE") else discover(here)
    except TableNotFoundError as error:
        left_out = [text for text in error.searched if ".json" in text]
        return Finding(name, FindingState.WARN, "; ".join((error.wanted, *left_out)), fix)
    except TableError as error:
        return Finding(name, FindingState.WARN, str(error), fix)
    mismatches = compare_runtimes(found.table.provenance.runtime, here)
    hard = [str(mismatch) for mismatch in mismatches if mismatch.is_hard]
    if hard:
        text = f"{found.origin} is for another machine: {'; '.join(hard)}"
        return Finding(name, FindingState.WARN, text, fix)
    rows = counted(len(found.table.rows), "row")
    return Finding(name, FindingState.OK, f"{rows} in {found.origin}")


def _satisfies(version: str, wanted: str) -> bool:
    """Whether *version* meets the requirement *wanted*, ``==`` or ``~=``; other forms are met."""
    public, operator, number = version.partition("+")[0], wanted[:2], wanted[2:].strip()
    if operator == "==":
        return public == number.partition("+")[0]
    if operator == "~=":
        return public.startswith(number.rpartition(".")[0] + ".")
    return True


def _major(version: str) -> int:
    return int(version.partition(".")[0])
