"""Comparing the runtime of a table with that of this machine."""

from __future__ import annotations

from dataclasses import fields, replace

from sample_tables import make_runtime

from warmup.core.device import Device, Runtime, compare_runtimes

CPU = Runtime(
    device=Device(type="cpu", vendor="intel", name="Xeon 8480", arch="avx512", threads=8),
    torch="2.13.0+cpu",
)


def test_each_field_is_hard_or_soft_on_a_gpu() -> None:
    """One changed field is one mismatch, hard for the identity and the torch and triton minors."""
    compared: set[str] = set()
    for changes, field, is_hard in (
        ({"type": "xpu"}, "device.type", True),
        ({"vendor": "amd"}, "device.vendor", True),
        ({"arch": "sm_100"}, "device.arch", True),
        ({"sm_count": 78}, "device.sm_count", True),
        ({"memory_gib": 80}, "device.memory_gib", True),
        ({"mig": "3g.71gb"}, "device.mig", True),
        ({"threads": 4}, "device.threads", True),
        ({"name": "NVIDIA H200 NVL"}, "device.name", False),
        ({"torch": "2.14.0"}, "torch minor", True),
        ({"torch": "2.13.1"}, "torch", False),
        ({"triton": "3.8.0"}, "triton minor", True),
        ({"triton": None}, "triton minor", True),
        ({"triton": "3.7.1"}, "triton", False),
        ({"cuda": "12.9"}, "cuda", False),
        ({"driver": "581.1"}, "driver", False),
        ({"cublas": "13.1.1"}, "cublas", False),
    ):
        (found,) = compare_runtimes(make_runtime(), make_runtime(**changes))
        assert (found.field, found.is_hard) == (field, is_hard), (changes, field, is_hard)
        compared.update(changes)
    own = {field.name for each in (Device, Runtime) for field in fields(each)}
    assert own - compared == {"device"}


def test_memory_is_compared_by_class() -> None:
    """Sizes at most 1 GiB apart are one memory class; sizes further apart are two."""
    for memory_gib, is_same in ((139, True), (141, True), (138, False), (None, False)):
        found = compare_runtimes(make_runtime(memory_gib=140), make_runtime(memory_gib=memory_gib))
        assert (found == ()) == is_same, (memory_gib, is_same)


def test_a_cpu_is_its_model_and_threads() -> None:
    for changes in ({"triton": "3.8.0"}, {"cuda": "13.0"}, {"driver": "580"}):
        assert compare_runtimes(CPU, replace(CPU, **changes)) == ()  # type: ignore[arg-type]
    # The model and threads are a cpus identity.
    for changes in ({"name": "EPYC 9654"}, {"threads": 16}, {"arch": "amx"}):
        here = replace(CPU, device=replace(CPU.device, **changes))  # type: ignore[arg-type]
        assert [mismatch.is_hard for mismatch in compare_runtimes(CPU, here)] == [True], changes


def test_a_mismatch_says_both_values_device_first() -> None:
    here = make_runtime(driver="1", torch="2.14.0", sm_count=1, arch="sm_80")
    found = [mismatch.field for mismatch in compare_runtimes(make_runtime(), here)]
    assert found == ["device.arch", "device.sm_count", "torch minor", "driver"]
    # The text of a mismatch has the table's value and this machine's, with none for None.
    (found,) = compare_runtimes(make_runtime(), make_runtime(mig="3g.71gb"))
    assert str(found) == "device.mig: table none, here 3g.71gb"


def test_a_slug_is_a_safe_file_name() -> None:
    """A slug has only ``[a-z0-9.-]``, is never empty and leads to no other folder."""
    for name, slug in (
        ("NVIDIA H200", "nvidia-h200"),
        ("AMD Instinct MI300X (VF)", "amd-instinct-mi300x-vf"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", "cuda-sm-90"),
        ("", "cuda-sm-90"),
        ("Ünbekannt/\n", "nbekannt"),
    ):
        assert make_runtime(name=name).device.slug == slug
