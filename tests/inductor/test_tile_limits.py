"""The shared memory and registers of a tile, and whether it can launch."""

from __future__ import annotations

from warmup.core.method import Resource
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
    """For 16-bit operands the bytes are those that Triton 3.6, 3.8 and 3.9 took for sm_90."""
    for tile, taken in (
        (Tile(128, 128, 64, 3, 8), 98304),
        (Tile(64, 64, 64, 1, 4), 16384),
        (Tile(256, 128, 64, 5, 8), 245760),
        (Tile(16, 128, 64, 4, 4), 55296),
        (Tile(64, 64, 64, 3, 2), 32768),
        (Tile(16, 128, 256, 5, 4), 294912),
        (Tile(32, 32, 256, 2, 2), 32768),
    ):
        assert shared_bytes(tile, HALF, HALF, has_warpgroups=True) == taken


def test_an_operand_that_cannot_be_copied_asynchronously_has_one_buffer() -> None:
    """With odd row lengths of A, B or both, the bytes are those that Triton took."""
    for tile, a, b, taken in (
        (Tile(128, 128, 64, 3, 8), False, True, 65536),
        (Tile(128, 128, 64, 3, 8), False, False, 32768),
        (Tile(16, 128, 64, 4, 4), False, True, 51200),
        (Tile(16, 128, 64, 4, 4), True, False, 22528),
    ):
        assert (
            shared_bytes(tile, GemmOperand(2, a), GemmOperand(2, b), has_warpgroups=True) == taken
        )


def test_elsewhere_the_bytes_are_no_more_than_triton_took() -> None:
    """Other dtypes, devices and templates take at least the predicted bytes."""
    for tile, itemsize, warpgroups, taken in (
        (Tile(128, 128, 64, 3, 8), 4, True, 131072),  # float32 on sm_90
        (Tile(128, 128, 64, 3, 8), 1, True, 49152),  # fp8 on sm_90
        (Tile(128, 128, 64, 3, 8), 2, False, 65536),  # sm_80 and sm_120
        (Tile(128, 128, 64, 3, 8), 2, False, 98320),  # sm_100
        (Tile(16, 128, 64, 1, 4), 2, True, 16392),  # persistent TMA
        (Tile(128, 256, 16, 2, 8), 2, True, 32768),  # the epilogue's scratch
    ):
        factor = GemmOperand(itemsize)
        assert 0 < shared_bytes(tile, factor, factor, has_warpgroups=warpgroups) <= taken, (
            tile,
            itemsize,
            warpgroups,
            taken,
        )


def test_a_missing_resource_is_certain() -> None:
    """A tile lacks shared memory or registers only where no launch can succeed."""
    for tile, lacking in (
        (Tile(256, 128, 64, 4, 8), None),
        (Tile(256, 128, 64, 5, 8), Resource.SHARED_MEMORY),
        (Tile(16, 16, 16, 2, 64), None),
        (Tile(16, 16, 16, 2, 128), Resource.REGISTERS),
    ):
        assert missing_resource(tile, HALF, HALF, H100) is lacking


def test_an_accumulator_beyond_255_registers_spills() -> None:
    for tile, does in (
        (Tile(128, 256, 64, 3, 8), False),
        (Tile(128, 256, 64, 3, 4), True),
        (Tile(256, 256, 64, 2, 8), True),
        (Tile(128, 128, 64, 3, 2), True),
    ):
        assert spills(tile) is does


def test_a_tile_that_spills_is_not_left_out() -> None:
    assert missing_resource(Tile(256, 256, 64, 2, 8), HALF, HALF, H100) is None


def test_a_tile_is_read_from_kwargs() -> None:
    for kwargs, tile in (
        (
            {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 64, "num_stages": 3, "num_warps": 4, "X": 1},
            Tile(16, 32, 64, 3, 4),
        ),
        ({"k_split": 8}, None),
    ):
        assert Tile.of(kwargs) == tile
