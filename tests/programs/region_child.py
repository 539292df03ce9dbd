"""The child program of the measurements, where a CPU selects a kernel for every mm, as a GPU does.

Started in place of ``warmup.tuning.worker``, with the same last argument. Compiling the region with
a tile of 13 rows ends the process.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from torch._inductor.kernel import mm

from warmup.core.rows import Winner
from warmup.tuning import worker


def _misbehave() -> None:
    original, compile_region = mm.use_cpp_gemm_template, worker.RegionCompiler._compile

    def use(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "require_constant_mat2": False})

    def compile_or_die(compiler: worker.RegionCompiler, winner: Winner, *args: Any) -> None:
        if dict(winner.kwargs).get("BLOCK_M") == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        compile_region(compiler, winner, *args)

    mm.use_cpp_gemm_template = use
    worker.RegionCompiler._compile = compile_or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    _misbehave()
    worker.main()
