"""The shared memory and registers of a tile, and whether it can launch."""

from __future__ import annotations

from warmup.core.rows import Resource
from warmup.inductor.gemm.search import (
    Capacity,
    GemmOperand,
    Tile,
    missing_resource,
    shared_bytes,
    spills,
)

HALF = GemmOperand(2)
H100 = Capacity(shared_memory=232448, registers=65536, has_warpgroups=True)


def test_shared_memory_is_what_triton_took() -> None:
    """In bytes, for 16-bit operands on sm_90, by Triton 3.6, 3.8 and 3.9.

    An operand with odd row lengths cannot be copied asynchronously, and has one buffer.
    """
    for tile, a, b, taken in (
        (Tile(128, 128, 64, 3, 8), True, True, 98304),
        (Tile(64, 64, 64, 1, 4), True, True, 16384),
        (Tile(256, 128, 64, 5, 8), True, True, 245760),
        (Tile(16, 128, 64, 4, 4), True, True, 55296),
        (Tile(64, 64, 64, 3, 2), True, True, 32768),
        (Tile(16, 128, 256, 5, 4), True, True, 294912),
        (Tile(32, 32, 256, 2, 2), True, True, 32768),
        (Tile(128, 128, 64, 3, 8), False, True, 65536),
        (Tile(128, 128, 64, 3, 8), False, False, 32768),
        (Tile(16, 128, 64, 4, 4), False, True, 51200),
        (Tile(16, 128, 64, 4, 4), True, False, 22528),
    ):
        factors = GemmOperand(2, a), GemmOperand(2, b)
        assert shared_bytes(tile, *factors, has_warpgroups=True) == taken


def test_elsewhere_the_bytes_are_no_more_than_triton_took() -> None:
    for tile, itemsize, warpgroups, taken in (
        (Tile(128, 128, 64, 3, 8), 4, True, 131072),  # float32 on sm_90
        (Tile(128, 128, 64, 3, 8), 1, True, 49152),  # fp8 on sm_90
        (Tile(128, 128, 64, 3, 8), 2, False, 65536),  # sm_80 and sm_120
        (Tile(128, 128, 64, 3, 8), 2, False, 98320),  # sm_100
        (Tile(16, 128, 64, 1, 4), 2, True, 16392),  # persistent TMA
        (Tile(128, 256, 16, 2, 8), 2, True, 32768),  # the epilogue's scratch
    ):
        factor = GemmOperand(itemsize)
        assert 0 < shared_bytes(tile, factor, factor, has_warpgroups=warpgroups) <= taken, taken


def test_a_missing_resource_is_certain() -> None:
    """A tile lacks something only where no launch can succeed; one that spills does not."""
    for tile, lacking in (
        (Tile(256, 128, 64, 4, 8), None),
        (Tile(256, 128, 64, 5, 8), Resource.SHARED_MEMORY),
        (Tile(256, 256, 64, 2, 8), None),
        (Tile(16, 16, 16, 2, 64), None),
        (Tile(16, 16, 16, 2, 128), Resource.REGISTERS),
    ):
        assert missing_resource(tile, HALF, HALF, H100) is lacking, tile


def test_an_accumulator_beyond_255_registers_spills() -> None:
    spilling = (Tile(128, 256, 64, 3, 4), Tile(256, 256, 64, 2, 8), Tile(128, 128, 64, 3, 2))
    assert all(map(spills, spilling))
    assert not spills(Tile(128, 256, 64, 3, 8))
