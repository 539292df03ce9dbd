"""The findings of `doctor` for given facts; no device is examined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_tables import make_table

from warmup.core.device import Device, Runtime
from warmup.core.errors import UnsupportedTorchError
from warmup.diagnostics.doctor import Diagnosis, Finding, FindingState, diagnose, judge
from warmup.inductor import torch_facts
from warmup.inductor.host_facts import Compiler, Folder
from warmup.inductor.torch_facts import Cuda, Facts, Load, Target
from warmup.table.codec import encode

GIB = 2**30
H200 = Device(
    type="cuda", vendor="nvidia", name="NVIDIA H200", arch="sm_90", sm_count=132, memory_gib=140
)
HERE = Runtime(device=H200, torch="2.13.0+cu130", triton="3.8.0", cuda="13.0", driver="580.65")
TARGET = Target(runtime=HERE, memory=(130 * GIB, 140 * GIB), load=Load((), 0))
CACHE = Folder("cache folder", "TORCHINDUCTOR_CACHE_DIR", "/var/cache/i", free_bytes=9 * GIB)
TRITON = Folder("Triton folder", "TRITON_CACHE_DIR", "/root/.triton/cache", free_bytes=9 * GIB)
GPU = Facts(
    requested="auto",
    torch="2.13.0+cu130",
    on_gpu=True,
    cuda=Cuda("13.0", driver="13.0", has_driver_folder=True, sees_device=True),
    triton="3.8.0",
    triton_wanted="==3.8.0",
    compiler=Compiler("C", "/usr/bin/gcc"),
    folders=(CACHE, TRITON),
    target=TARGET,
)
EPYC = Device(type="cpu", vendor="amd", name="AMD EPYC", arch="x86_64 AVX512", threads=2)
CPU = Facts(
    requested="auto",
    torch="2.13.0+cpu",
    compiler=Compiler("C++", "g++"),
    folders=(CACHE,),
    target=Target(runtime=Runtime(device=EPYC, torch="2.13.0+cpu")),
)
BLIND = Cuda("13.0", driver="13.0", has_driver_folder=True)


def on(device: Device) -> Facts:
    return replace(GPU, target=replace(TARGET, runtime=replace(HERE, device=device)))


def with_cache(**changes: object) -> Facts:
    return replace(GPU, folders=(replace(CACHE, **changes),))  # type: ignore[arg-type]


def with_target(**changes: object) -> Facts:
    return replace(GPU, target=replace(TARGET, **changes))  # type: ignore[arg-type]


FAIL, WARN = FindingState.FAIL, FindingState.WARN
NO_TEMPORARY = "No usable temporary directory"
FOLDER = "TORCHINDUCTOR_CACHE_DIR"
# By check: the facts of a machine, the state, and a part of what is said and of its fix.
TROUBLES: dict[str, list[tuple[Facts, FindingState, str, str]]] = {
    "GEMM autotune": [
        (on(replace(H200, sm_count=66)), FAIL, "unavailable: 66 SMs < 68", "larger GPU"),
        (on(replace(H200, sm_count=60, mig="3g.71gb")), FAIL, "60 SMs < 68", "larger MIG profile"),
        (
            on(replace(H200, vendor="amd", arch="gfx1030", sm_count=80)),
            *(FAIL, "unavailable: gfx1030", "larger GPU"),
        ),
    ],
    "device": [
        (on(replace(H200, name="")), WARN, "gives no name; sm_90, 132 SMs", "tables/cuda-sm-90"),
        (
            replace(GPU, target=Target(error="--device cuda:9: there are 1 CUDA devices here")),
            *(FAIL, "there are 1 CUDA devices", "make the device visible"),
        ),
        (replace(GPU, target=None), WARN, "not examined", "run this again"),
    ],
    "driver": [
        (
            replace(GPU, cuda=Cuda("13.0", driver="12.8", has_driver_folder=True)),
            *(FAIL, "CUDA 13.0, the driver runs CUDA 12.8", "torch for CUDA 12"),
        ),
        (
            replace(CPU, cuda=Cuda(None, driver="13.0", has_driver_folder=True)),
            *(FAIL, "torch is a CPU build", "install torch for CUDA"),
        ),
        (
            replace(CPU, cuda=Cuda("13.0", has_driver_folder=True, message="No CUDA GPUs")),
            *(FAIL, "sees no device: No CUDA GPUs", "docker run --gpus all"),
        ),
        (
            replace(CPU, cuda=replace(BLIND, visible_devices="")),
            *(FAIL, "CUDA_VISIBLE_DEVICES is ''", "unset it"),
        ),
        (
            replace(GPU, requested="cuda", cuda=Cuda("13.0")),
            *(FAIL, "no NVIDIA driver", "install the NVIDIA driver"),
        ),
    ],
    "triton": [
        (replace(GPU, triton=None), FAIL, "not installed", "pip install 'triton==3.8.0'"),
        (replace(GPU, triton="3.7.1"), WARN, "3.7.1, but torch wants ==3.8.0", "triton==3.8.0"),
        (
            replace(GPU, triton="3.10.0", triton_wanted="~=3.9.0"),
            *(WARN, "3.10.0, but torch wants ~=3.9.0", "triton~=3.9.0"),
        ),
    ],
    "compiler": [
        (replace(GPU, compiler=Compiler("C")), FAIL, "no C compiler, which Triton", "install gcc"),
        (replace(CPU, compiler=Compiler("C++")), FAIL, "no C++ compiler", "install g++"),
        (
            replace(GPU, compiler=Compiler("C", "gcc", "stub.c:1:10: fatal error: Python.h: No")),
            *(FAIL, "Python.h", "python3-dev"),
        ),
        (
            replace(CPU, compiler=Compiler("C++", "clang++", "'omp.h' file not found")),
            *(FAIL, "omp.h", "libomp-dev"),
        ),
    ],
    "temporary folder": [
        (replace(GPU, temporary_error=NO_TEMPORARY, target=None), FAIL, NO_TEMPORARY, "TMPDIR")
    ],
    "cache folder": [
        (with_cache(path=None, error="uid not found: 10007"), FAIL, "10007", FOLDER),
        (with_cache(error="Read-only file system"), FAIL, "Read-only file system", FOLDER),
        (with_cache(is_executable=False), FAIL, "noexec", f"without noexec in {FOLDER}"),
    ],
    "space": [(with_cache(free_bytes=GIB - 1), WARN, "1.0 GiB free", FOLDER)],
    "device memory": [
        (with_target(memory=(69 * GIB, 140 * GIB)), WARN, "69.0 of 140.0 GiB", "what else runs")
    ],
    "other work": [
        (with_target(load=Load((17, 18), 0)), WARN, "0% busy, used by pid 17, 18", "idle GPU"),
        (with_target(load=Load((), 97)), WARN, "97% busy, used by unseen processes", "idle GPU"),
        (
            with_target(load=Load(unknown="nvidia-ml-py is not installed")),
            *(WARN, "not checked", "pip install nvidia-ml-py"),
        ),
    ],
    "online tuning": [
        (with_target(online=("TunableOp",)), WARN, "TunableOp", "PYTORCH_TUNABLEOP_TUNING=0")
    ],
}


def test_a_trouble_is_found_and_its_fix_is_named() -> None:
    """And nothing else: a check that is ok has no fix, and a healthy machine passes all."""
    troubles = [(name, *each) for name, own in TROUBLES.items() for each in own]
    for name, facts, state, said, fix in troubles:
        found = {each.name: each for each in judge(facts)}
        assert found[name].state is state, (name, said)
        assert said in found[name].said, (name, said)
        assert fix in found[name].fix, (name, said)
        assert all((each.state is FindingState.OK) != bool(each.fix) for each in found.values())
    for facts in (GPU, CPU):
        assert {each.state for each in judge(facts)} == {FindingState.OK}
    assert Diagnosis((*judge(replace(GPU, triton="3.7.1", compiler=Compiler("C"))),)).failed == (
        "compiler",
    )


def test_what_is_no_trouble_is_ok_or_not_named() -> None:
    """Enough SMs; a Triton of a patch release, a local build or an unknown form of requirement.

    A GPU beside `--device cpu`, and a compiler that only lacked a temporary folder.
    """
    fine = [(on(replace(H200, sm_count=68)), "GEMM autotune")]
    for version, wanted in (("3.8.0+git1", "==3.8.0"), ("3.9.2", "~=3.9.0"), ("3.7", ">=3.6")):
        fine.append((replace(GPU, triton=version, triton_wanted=wanted), "triton"))
    for facts, name in fine:
        (found,) = [each for each in judge(facts) if each.name == name]
        assert found.state is FindingState.OK, facts
    blamed = replace(GPU, compiler=Compiler("C", "gcc", NO_TEMPORARY), temporary_error=NO_TEMPORARY)
    for facts, name in (
        (replace(CPU, requested="cpu", cuda=BLIND), "driver"),
        (blamed, "compiler"),
    ):
        assert name not in [each.name for each in judge(facts)], name


def test_an_unsupported_torch_ends_the_examination() -> None:
    """Without torch there is only its finding, with the advice of the error as the fix."""
    error = UnsupportedTorchError("2.16.0", "2.11 to 2.15")
    (found,) = judge(Facts(requested="auto", torch="2.16.0", torch_error=str(error)))
    assert found == Finding(
        FAIL,
        "torch",
        "torch 2.16.0 is not supported (supported: 2.11 to 2.15)",
        "install a supported torch or a newer inductor-warmup",
    )


def test_the_table_of_this_machine_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In WARMUP_TABLE: one that fits is ok; none, or one for another torch, is a warning."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warmup.table.store.search_folders", lambda: (Path("tables"),))
    monkeypatch.setattr(torch_facts, "collect_facts", lambda _: GPU)
    monkeypatch.delenv("WARMUP_TABLE", raising=False)
    found = diagnose().findings[-1]
    assert (found.state, "warmup build" in found.fix) == (WARN, True)
    monkeypatch.setenv("WARMUP_TABLE", "t.json")
    Path("t.json").write_text(encode(make_table(runtime=HERE)))
    assert diagnose().findings[-1] == Finding(FindingState.OK, "tables", "2 rows in t.json")
    Path("t.json").write_text(encode(make_table(runtime=replace(HERE, torch="2.12.0"))))
    found = diagnose().findings[-1]
    assert (found.state, "torch minor: table 2.12, here 2.13" in found.said) == (WARN, True)
