"""`list_one_isa`: which instruction sets are tested, and which is taken."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterator

import pytest
from torch._inductor import config, cpu_vec_isa

from warmup.inductor.adapter import list_one_isa
from warmup.inductor.patches import Patches


@dataclasses.dataclass(eq=False)
class Isa:
    """An instruction set that says whether it was tested."""

    name: str
    works: bool = True
    bits: int = 512
    tested: bool = False

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        self.tested = True
        return self.works

    def bit_width(self) -> int:
        return self.bits


@pytest.fixture
def isas(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Isa]]:
    """The instruction sets of a machine without the first, while `list_one_isa` is in place."""
    found = [Isa("amx_tile"), Isa("avx512 avx512_vnni"), Isa("avx512"), Isa("avx2", bits=256)]
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", found)
    names = ["avx2", "avx512", "avx512_vnni"]
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: names)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    patches = Patches()
    list_one_isa(patches)
    cpu_vec_isa.valid_vec_isa_list.__wrapped__.cache_clear()  # type: ignore[attr-defined]
    yield found
    cpu_vec_isa.valid_vec_isa_list.__wrapped__.cache_clear()  # type: ignore[attr-defined]
    patches.restore()


def asked_of(isas: list[Isa]) -> list[str]:
    return [isa.name for isa in isas if isa.tested]


def test_where_one_does_not_work_the_next_is_taken(isas: list[Isa]) -> None:
    isas[1].works = False
    assert cpu_vec_isa.pick_vec_isa() is isas[2]
    assert asked_of(isas) == ["avx512 avx512_vnni", "avx512"]


@pytest.mark.parametrize("by", ["variable", "width"])
def test_an_instruction_set_that_the_user_names_is_taken(
    isas: list[Isa], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``ATEN_CPU_CAPABILITY`` or ``cpp.simdlen``: inductor tests all, as ever."""
    if by == "variable":
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    with config.patch({"cpp.simdlen": 256 if by == "width" else None}):
        assert cpu_vec_isa.pick_vec_isa() is isas[3]
    assert asked_of(isas) == ["avx512 avx512_vnni", "avx512", "avx2"]
