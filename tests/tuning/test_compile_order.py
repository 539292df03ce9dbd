"""When a build compiles the candidates of a graph: all of them at the same time, on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from warmup.core.method import CompileOrder, Launch
from warmup.tuning.bucket_compiler import BucketCompiler


def test_the_order_follows_from_what_is_measured() -> None:
    """Workers are idle where the host is timed; a single question has nothing to compile beside."""
    for device, launch, is_rebuilt, order in (
        ("cuda", Launch.CUDAGRAPH, False, CompileOrder.BESIDE),
        ("cuda", Launch.EAGER, False, CompileOrder.BEFORE),
        ("cuda", Launch.CUDAGRAPH, True, CompileOrder.AS_ASKED),
        ("cuda", Launch.EAGER, True, CompileOrder.AS_ASKED),
        ("cpu", Launch.EAGER, False, CompileOrder.AS_ASKED),
    ):
        tuner: Any = SimpleNamespace(
            device=SimpleNamespace(type=device), method=SimpleNamespace(launch=launch)
        )
        unused: Any = None
        compiler = BucketCompiler(
            setup=unused, model=unused, progress=unused, tuner=tuner, is_rebuilt=is_rebuilt
        )
        assert compiler.order is order, (device, launch, is_rebuilt, order)
