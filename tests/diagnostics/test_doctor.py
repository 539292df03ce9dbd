"""The findings of `doctor` for given facts; no device is examined."""

from __future__ import annotations

from collections.abc import Callable
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


# What is wrong, the check that says so, its state, a part of what it says, a part of its fix.
TROUBLES: dict[str, tuple[Facts, str, FindingState, str, str]] = {
    "two SMs too few": (
        on(replace(H200, sm_count=66)),
        *(
            "GEMM autotune",
            FindingState.FAIL,
            "GEMM autotune unavailable: 66 SMs < 68",
            "larger GPU",
        ),
    ),
    "a MIG slice": (
        on(replace(H200, sm_count=60, mig="3g.71gb")),
        *("GEMM autotune", FindingState.FAIL, "60 SMs < 68", "whole GPU or a larger MIG profile"),
    ),
    "an old AMD card": (
        on(replace(H200, vendor="amd", arch="gfx1030", sm_count=80)),
        *("GEMM autotune", FindingState.FAIL, "unavailable: gfx1030", "larger GPU"),
    ),
    "no device name": (
        on(replace(H200, name="")),
        *("device", FindingState.WARN, "gives no name; sm_90, 132 SMs", "tables/cuda-sm-90"),
    ),
    "no such device": (
        replace(GPU, target=Target(error="--device cuda:9: there are 1 CUDA devices here")),
        *("device", FindingState.FAIL, "there are 1 CUDA devices", "make the device visible"),
    ),
    "unexamined": (
        replace(GPU, target=None),
        *("device", FindingState.WARN, "not examined", "run this again"),
    ),
    "an old driver": (
        replace(GPU, cuda=Cuda("13.0", driver="12.8", has_driver_folder=True)),
        *("driver", FindingState.FAIL, "CUDA 13.0, the driver runs CUDA 12.8", "torch for CUDA 12"),
    ),
    "a CPU build of torch beside a GPU": (
        replace(CPU, cuda=Cuda(None, driver="13.0", has_driver_folder=True)),
        *("driver", FindingState.FAIL, "torch is a CPU build", "install torch for CUDA"),
    ),
    "a container without its GPU": (
        replace(CPU, cuda=Cuda("13.0", has_driver_folder=True, message="No CUDA GPUs")),
        *("driver", FindingState.FAIL, "sees no device: No CUDA GPUs", "docker run --gpus all"),
    ),
    "hidden devices": (
        replace(CPU, cuda=replace(BLIND, visible_devices="")),
        *("driver", FindingState.FAIL, "CUDA_VISIBLE_DEVICES is ''", "unset it"),
    ),
    "a GPU asked for without a driver": (
        replace(GPU, requested="cuda", cuda=Cuda("13.0")),
        *("driver", FindingState.FAIL, "no NVIDIA driver", "install the NVIDIA driver"),
    ),
    "no Triton": (
        replace(GPU, triton=None),
        *("triton", FindingState.FAIL, "not installed", "pip install 'triton==3.8.0'"),
    ),
    "another Triton": (
        replace(GPU, triton="3.7.1"),
        *("triton", FindingState.WARN, "3.7.1, but torch wants ==3.8.0", "triton==3.8.0"),
    ),
    "an incompatible Triton": (
        replace(GPU, triton="3.10.0", triton_wanted="~=3.9.0"),
        *("triton", FindingState.WARN, "3.10.0, but torch wants ~=3.9.0", "triton~=3.9.0"),
    ),
    "no C compiler": (
        replace(GPU, compiler=Compiler("C")),
        *("compiler", FindingState.FAIL, "no C compiler, which Triton needs", "install gcc"),
    ),
    "no C++ compiler": (
        replace(CPU, compiler=Compiler("C++")),
        *("compiler", FindingState.FAIL, "no C++ compiler, which inductor needs", "install g++"),
    ),
    "no Python headers": (
        replace(GPU, compiler=Compiler("C", "gcc", "stub.c:1:10: fatal error: Python.h: No")),
        *("compiler", FindingState.FAIL, "Python.h", "python3-dev"),
    ),
    "clang without OpenMP": (
        replace(CPU, compiler=Compiler("C++", "clang++", "'omp.h' file not found")),
        *("compiler", FindingState.FAIL, "omp.h", "libomp-dev"),
    ),
    "no temporary folder": (
        replace(GPU, temporary_error="No usable temporary directory", target=None),
        *("temporary folder", FindingState.FAIL, "No usable temporary directory", "TMPDIR"),
    ),
    "a user without a name": (
        with_cache(path=None, error="uid not found: 1000770000"),
        *("cache folder", FindingState.FAIL, "1000770000", "TORCHINDUCTOR_CACHE_DIR"),
    ),
    "a read-only cache folder": (
        with_cache(error="Read-only file system"),
        *("cache folder", FindingState.FAIL, "Read-only file system", "TORCHINDUCTOR_CACHE_DIR"),
    ),
    "a noexec mount": (
        with_cache(is_executable=False),
        *("cache folder", FindingState.FAIL, "noexec", "without noexec in TORCHINDUCTOR_CACHE_DIR"),
    ),
    "a full disk": (
        with_cache(free_bytes=GIB - 1),
        *("space", FindingState.WARN, "1.0 GiB free", "TORCHINDUCTOR_CACHE_DIR"),
    ),
    "a full device": (
        with_target(memory=(69 * GIB, 140 * GIB)),
        *("device memory", FindingState.WARN, "69.0 of 140.0 GiB free", "stop what else runs"),
    ),
    "another process": (
        with_target(load=Load((17, 18), 0)),
        *("other work", FindingState.WARN, "0% busy, used by pid 17, 18", "idle GPU"),
    ),
    "unseen work": (
        with_target(load=Load((), 97)),
        *("other work", FindingState.WARN, "97% busy, used by unseen processes", "idle GPU"),
    ),
    "no NVML": (
        with_target(load=Load(unknown="nvidia-ml-py is not installed")),
        *("other work", FindingState.WARN, "not checked", "pip install nvidia-ml-py"),
    ),
    "TunableOp": (
        with_target(online=("TunableOp",)),
        *("online tuning", FindingState.WARN, "TunableOp", "PYTORCH_TUNABLEOP_TUNING=0"),
    ),
}


def test_a_healthy_machine_passes_every_check() -> None:
    for case, facts in {"gpu": GPU, "cpu": CPU}.items():
        assert [found for found in judge(facts) if found.state is not FindingState.OK] == [], case


def test_a_trouble_is_found_and_its_fix_is_named() -> None:
    for facts, name, state, said, fix in TROUBLES.values():
        (found,) = [found for found in judge(facts) if found.name == name]
        assert (found.state, said in found.said, fix in found.fix) == (state, True, True), (
            facts,
            name,
            state,
            said,
            fix,
        )


def test_only_what_is_not_ok_has_a_fix() -> None:
    for facts in (GPU, CPU, *(trouble[0] for trouble in TROUBLES.values())):
        assert [
            found for found in judge(facts) if (found.state is FindingState.OK) == bool(found.fix)
        ] == [], facts


def test_enough_multiprocessors_pass_the_gate() -> None:
    for count in (68, 132):
        (found,) = [
            f for f in judge(on(replace(H200, sm_count=count))) if f.name == "GEMM autotune"
        ]
        assert found.state is FindingState.OK, count


def test_a_triton_that_torch_takes_is_ok() -> None:
    """Local builds, patch releases and unknown forms of requirements are accepted."""
    for version, wanted in (("3.8.0+git1", "==3.8.0"), ("3.9.2", "~=3.9.0"), ("3.7", ">=3.6")):
        facts = replace(GPU, triton=version, triton_wanted=wanted)
        (found,) = [found for found in judge(facts) if found.name == "triton"]
        assert found.state is FindingState.OK, (version, wanted)


def test_a_gpu_that_cpu_was_preferred_to_is_no_trouble() -> None:
    facts = replace(CPU, requested="cpu", cuda=BLIND)
    assert "driver" not in [found.name for found in judge(facts)]


def test_a_compiler_is_not_blamed_for_a_missing_temporary_folder() -> None:
    compiler = Compiler("C", "gcc", "No usable temporary directory")
    facts = replace(GPU, compiler=compiler, temporary_error="No usable temporary directory")
    assert "compiler" not in [found.name for found in judge(facts)]


def test_an_unsupported_torch_ends_the_examination() -> None:
    """Without torch there is only its finding, with the advice of the error as the fix."""
    error = UnsupportedTorchError("2.16.0", "2.11 to 2.15")
    assert judge(Facts(requested="auto", torch="2.16.0", torch_error=str(error))) == (
        Finding(
            "torch",
            FindingState.FAIL,
            "torch 2.16.0 is not supported (supported: 2.11 to 2.15)",
            "install a supported torch or a newer inductor-warmup",
        ),
    )


def test_a_diagnosis_names_what_failed() -> None:
    found = judge(replace(GPU, triton="3.7.1", compiler=Compiler("C")))
    assert Diagnosis(found).failed == ("compiler",)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Finding]:
    """``tables(runtime)``: the finding where WARMUP_TABLE is a table for *runtime*, if given."""

    def run(runtime: Runtime | None = None) -> Finding:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("WARMUP_TABLE", raising=False)
        monkeypatch.setattr("warmup.table.store.search_folders", lambda: (Path("tables"),))
        monkeypatch.setattr(torch_facts, "collect_facts", lambda _: GPU)
        if runtime is not None:
            Path("t.json").write_text(encode(make_table(runtime=runtime)))
            monkeypatch.setenv("WARMUP_TABLE", "t.json")
        return diagnose().findings[-1]

    return run


def test_a_table_for_this_machine_is_found(tables: Callable[..., Finding]) -> None:
    assert tables(HERE) == Finding("tables", FindingState.OK, "2 rows in t.json")


def test_no_table_is_a_warning(tables: Callable[..., Finding]) -> None:
    found = tables()
    assert (found.state, "warmup build" in found.fix) == (FindingState.WARN, True)


def test_a_table_for_another_torch_is_a_warning(tables: Callable[..., Finding]) -> None:
    found = tables(replace(HERE, torch="2.12.0"))
    assert (found.state, "torch minor: table 2.12, here 2.13" in found.said) == (
        FindingState.WARN,
        True,
    )
