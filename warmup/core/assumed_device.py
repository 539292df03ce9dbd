"""`ASSUMED_DEVICES`: the facts of GPUs that `explain --assume` compiles for without having them.

Sources: names, multiprocessors and usable memory of the H200 and the H100 are those in the tables
of this project, as NVIDIA's driver reported them; the A100's are of its data sheet (SXM, 80 GB).
Limits of a multiprocessor are those of its compute capability in the CUDA C++ Programming Guide
("Technical specifications per compute capability"). L2, clocks, bus widths, bandwidths and dense
rates are those of NVIDIA's data sheets and architecture white papers for the SXM modules; where
rates are stated with sparsity, half of them. None of these numbers was measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedDevice:
    """A GPU by its facts: ``capability`` is (major, minor), shared memory and cache are in bytes.

    ``gbps`` is the bandwidth of its memory, ``tflops`` the dense rate by dtype, both as published:
    they are stated to the reader. Torch's heuristics calculate their own from the largest clocks
    of the multiprocessors and the memory, and from the width of the memory's bus.
    """

    name: str
    capability: tuple[int, int]
    sm_count: int
    memory_gib: int
    block_bytes: int
    sm_bytes: int
    l2_bytes: int
    clock_mhz: int
    memory_clock_mhz: int
    bus_bits: int
    gbps: float
    tflops: Mapping[str, float]

    @property
    def compute_capability(self) -> int:
        """The capability as one number, such as 90."""
        major, minor = self.capability
        return 10 * major + minor


_H200: Final = AssumedDevice(
    name="NVIDIA H200",
    capability=(9, 0),
    sm_count=132,
    memory_gib=140,
    block_bytes=232448,
    sm_bytes=233472,
    l2_bytes=50 << 20,
    clock_mhz=1980,
    memory_clock_mhz=3201,
    bus_bits=6144,
    gbps=4800.0,
    tflops={"bf16": 989.4, "f16": 989.4, "tf32": 494.7, "f32": 66.9},
)
ASSUMED_DEVICES: Final[Mapping[str, AssumedDevice]] = {
    "h200": _H200,
    "h100": replace(  # the same chip with another memory
        _H200,
        name="NVIDIA H100 80GB HBM3",
        memory_gib=79,
        memory_clock_mhz=2619,
        bus_bits=5120,
        gbps=3350.0,
    ),
    "a100": AssumedDevice(
        name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        sm_count=108,
        memory_gib=79,
        block_bytes=166912,
        sm_bytes=167936,
        l2_bytes=40 << 20,
        clock_mhz=1410,
        memory_clock_mhz=1593,
        bus_bits=5120,
        gbps=2039.0,
        tflops={"bf16": 312.0, "f16": 312.0, "tf32": 156.0, "f32": 19.5},
    ),
}
