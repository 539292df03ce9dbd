"""What torch knows of an assumed GPU ends with the assumption."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from torch._inductor.codecache import CacheBase

from warmup.core.device import ASSUMED_DEVICES
from warmup.inductor.guards import AssumedGpu


def test_what_torch_caches_of_an_assumed_gpu_is_forgotten() -> None:
    """The system that names inductor's cache entries has no trace of the H100 afterwards."""
    before = CacheBase.get_system()
    with AssumedGpu(ASSUMED_DEVICES["h100"])._reported():
        assumed = CacheBase.get_system()
    assert assumed != before
    assert CacheBase.get_system() == before
