"""`list_one_isa`: inductor tests the vector instruction set that it takes, and no other.

Before the first CPU kernel, inductor compiles and loads a C++ file or more for each instruction set
of the machine, widest first, and takes the first that works (torch/_inductor/cpu_vec_isa.py). The
tests of the narrower sets decide nothing, and take seconds of a start with an empty cache folder.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

from torch._inductor import config, cpu_vec_isa
from torch._inductor.exc import InvalidCxxCompiler

from warmup.inductor.patches import Patches

_SYSTEMS = ("linux", "win32")  # elsewhere inductor has no instruction set of x86
_X86 = ("x86_64", "AMD64")


def list_one_isa(patches: Patches) -> None:
    """Let inductor list the first instruction set that works, until *patches* is restored.

    Where a caller names an instruction set, by ``ATEN_CPU_CAPABILITY`` or ``cpp.simdlen``, and on
    other systems than Linux and Windows or other machines than x86, inductor's own list is used.
    """

    def wrap(original: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
        first = functools.cache(_first_that_works)

        def valid_vec_isa_list() -> list[Any]:
            is_named = os.getenv("ATEN_CPU_CAPABILITY") or config.cpp.simdlen is not None
            is_x86 = sys.platform in _SYSTEMS and platform.machine() in _X86
            try:
                return first() if is_x86 and not is_named else original()
            except InvalidCxxCompiler:  # of torch, whose own list says what is missing
                return original()

        return valid_vec_isa_list

    patches.wrap(cpu_vec_isa, "valid_vec_isa_list", wrap)


def _first_that_works() -> list[Any]:
    """Return the first of inductor's instruction sets that the machine has and that works."""
    names = cpu_vec_isa.x86_isa_checker()
    for isa in cpu_vec_isa.supported_vec_isa_list:
        if all(name in names for name in str(isa).split()) and isa:
            return [isa]
    return []
