"""`search`: the candidates of a GEMM selection beyond inductor's list, without duplicates.

Inductor's options are left alone: every candidate is made from a template, its heuristic and what
is known of the sizes. The search adds no guards and does not affect later selections.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, Final

import torch
import torch._inductor.kernel.bmm
import torch._inductor.kernel.mm
from torch._inductor.choices import get_template_heuristic  # type: ignore[attr-defined]
from torch._inductor.kernel.bmm import bmm_template
from torch._inductor.kernel.mm import decompose_k_subgraph_template, mm_template
from torch._inductor.kernel.mm_common import mm_grid
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.select_algorithm import ExternKernelChoice, TritonTemplate
from torch._inductor.virtualized import V

from warmup.core.errors import InductorChangedError
from warmup.core.rows import CandidateSource, Resource, Search, SearchCounts, Winner
from warmup.inductor.gemm import blas
from warmup.inductor.gemm.choices import TMA_UIDS, identify_template, tma_template
from warmup.inductor.options import option_value
from warmup.inductor.versions import Version

# Templates of warmup's own for GEMMs with few rows, which are as fast as the weights are read. Both
# are registered with inductor when this module is imported, and no list of inductor's offers them:
# only a search lists their candidates, and only a row serves them. Rows name the hash of a source,
# so that a changed template makes its rows misses for that reason.

# `DOTS`: the product of up to 4 rows, by sums over K without the tensor core.

# BLOCK_N, BLOCK_K, stages and warps, by BLOCK_M.
DOTS_TILES: Final = {
    1: ((2, 1024, 1, 4), (1, 2048, 2, 8), (2, 2048, 1, 8)),
    2: ((2, 1024, 3, 4), (1, 2048, 2, 8), (1, 1024, 2, 4), (4, 1024, 2, 4)),
    4: ((2, 1024, 3, 4), (2, 2048, 2, 8), (4, 1024, 2, 4)),
}
DOTS: Final = TritonTemplate(
    name="warmup_mm_dots",
    grid=mm_grid,
    source=r"""
{{def_kernel("A", "B")}}
    M = {{size("A", 0)}}
    N = {{size("B", 1)}}
    K = {{size("A", 1)}}
    if M * N == 0:
        return
    stride_am = {{stride("A", 0)}}
    stride_ak = {{stride("A", 1)}}
    stride_bk = {{stride("B", 0)}}
    stride_bn = {{stride("B", 1)}}

    pid = tl.program_id(0).to(INDEX_DTYPE)
    rn = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    in_b = tl.where(rn < N, rn, 0)
    rk = tl.arange(0, BLOCK_K)
    {% for row in range(BLOCK_M) %}
    a_{{row}} = A + tl.minimum({{row}}, M - 1) * stride_am
    sums_{{row}} = tl.zeros((BLOCK_N, BLOCK_K), dtype=ACC_TYPE)
    {% endfor %}

    for step in range(0, tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K + rk
        at_b = B + (in_b[:, None] * stride_bn + k[None, :] * stride_bk)
        {% if EVEN_K %}
        b = tl.load(at_b, eviction_policy="evict_first").to(ACC_TYPE)
        {% else %}
        inside = k < K
        b = tl.load(at_b, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        b = b.to(ACC_TYPE)
        {% endif %}
        {% for row in range(BLOCK_M) %}
        {% if EVEN_K %}
        a = tl.load(a_{{row}} + k * stride_ak)
        {% else %}
        a = tl.load(a_{{row}} + k * stride_ak, mask=inside, other=0.0)
        {% endif %}
        sums_{{row}} += b * a.to(ACC_TYPE)[None, :]
        {% endfor %}

    rm = tl.arange(0, BLOCK_M)
    total = tl.sum(sums_0, 1)[None, :]
    {% for row in range(1, BLOCK_M) %}
    total = tl.where(rm[:, None] == {{row}}, tl.sum(sums_{{row}}, 1)[None, :], total)
    {% endfor %}
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < M) & (idx_n < N)
    {{store_output(("idx_m", "idx_n"), "total", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
""",
)


# `SWAPPED`: the product of up to 64 rows with N on the wide axis of the tensor core.

# BLOCK_N, BLOCK_K, stages and warps, for each BLOCK_M.
SWAPPED_TILES: Final = dict.fromkeys(
    (16, 32, 64),
    (
        *((64, 128, 5, 4), (64, 128, 6, 4), (64, 128, 8, 4), (64, 256, 4, 4), (128, 128, 4, 8)),
        *((128, 128, 6, 8), (16, 256, 6, 2)),
    ),
)
SWAPPED: Final = TritonTemplate(
    name="warmup_mm_swapped",
    grid=mm_grid,
    source=r"""
{{def_kernel("A", "B")}}
    M = {{size("A", 0)}}
    N = {{size("B", 1)}}
    K = {{size("A", 1)}}
    if M * N == 0:
        return
    stride_am = {{stride("A", 0)}}
    stride_ak = {{stride("A", 1)}}
    stride_bk = {{stride("B", 0)}}
    stride_bn = {{stride("B", 1)}}

    pid = tl.program_id(0).to(INDEX_DTYPE)
    grid_n = (N + BLOCK_N - 1) // BLOCK_N
    rm = (pid // grid_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = (pid % grid_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_a = tl.where(rm < M, rm, 0)
    in_b = tl.where(rn < N, rn, 0)
    rk = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=ACC_TYPE)

    for step in range(0, tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K + rk
        at_a = A + (in_a[None, :] * stride_am + k[:, None] * stride_ak)
        at_b = B + (in_b[:, None] * stride_bn + k[None, :] * stride_bk)
        {% if EVEN_K %}
        a = tl.load(at_a)
        b = tl.load(at_b, eviction_policy="evict_first")
        {% else %}
        a = tl.load(at_a, mask=k[:, None] < K, other=0.0)
        b = tl.load(at_b, mask=k[None, :] < K, other=0.0, eviction_policy="evict_first")
        {% endif %}
        {% if USE_FAST_ACCUM %}
        acc = tl.dot(b, a, acc, out_dtype=ACC_TYPE)
        {% else %}
        acc += tl.dot(b, a, out_dtype=ACC_TYPE)
        {% endif %}

    turned = tl.trans(acc)
    idx_m = rm[:, None]
    idx_n = rn[None, :]
    mask = (idx_m < M) & (idx_n < N)
    {{store_output(("idx_m", "idx_n"), "turned", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
""",
)


SPLIT_UID: Final[str] = decompose_k_subgraph_template.uid
_LEAST_PART: Final = 128  # of K, as in inductor (torch/_inductor/utils.py, get_k_splits)
_EVEN_PART: Final = 32  # a part that is a multiple ends at the end of a tile
_SUM_BYTES: Final = 4


def splits_of(m: int, n: int, k: int, itemsize: int, *, only_even: bool) -> tuple[int, ...]:
    """Return the numbers of parts into which splitting K is worth trying, ascending."""
    # Parts have at least 128 elements, and their partial sums, which are written and read back,
    # take no more bytes than the operands: for a square GEMM of 16 bits inductor's bound, K / M.
    # *only_even* keeps parts of multiples of 32 or, where K is none, of the largest power of two
    # that divides K.
    even = gcd(k, _EVEN_PART) if only_even else 1
    limit = min(k // _LEAST_PART, itemsize * k * (m + n) // (_SUM_BYTES * m * n)) if m and n else 0
    return tuple(
        split for split in range(2, limit + 1) if k % split == 0 and k // split % even == 0
    )


_MAX_REGISTERS: Final = 255  # that a thread can address
_MIN_REGISTERS: Final = 24  # per thread; ptxas sets no lower limit from sm_70 on
_WARPGROUP: Final = 4  # warps
_WARPGROUP_ROWS: Final = 64
_WARPGROUP_BYTES: Final = 2  # of an element; other sizes depend on the layout of B as well


@dataclass(frozen=True, slots=True)
class Tile:
    """The block sizes, stages and warps of a template's config."""

    m: int
    n: int
    k: int
    stages: int
    warps: int

    @classmethod
    def of(cls, kwargs: Mapping[str, object]) -> Tile | None:
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
        sizes = [size for name in names if isinstance(size := kwargs.get(name), int)]
        return cls(*sizes) if len(sizes) == len(names) else None

    @property
    def turned(self) -> Tile:
        return Tile(self.n, self.m, self.k, self.stages, self.warps)


@dataclass(frozen=True, slots=True)
class GemmOperand:
    """A factor: bytes of an element, and whether its loads are known to overlap."""

    itemsize: int
    is_staged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The limits of a block on a device: bytes of shared memory, and registers."""

    shared_memory: int
    registers: int
    warp_size: int = 32
    has_warpgroups: bool = False


def shared_bytes(tile: Tile, a: GemmOperand, b: GemmOperand, *, has_warpgroups: bool) -> int:
    """Return a lower bound of the shared memory of *tile* in bytes."""
    # For 16-bit operands on compute capability 9.0 it is what Triton takes, except barriers (8
    # bytes per stage) and the scratch memory of an epilogue larger than the operands.
    by_warpgroup = (
        has_warpgroups
        and tile.m >= _WARPGROUP_ROWS
        and tile.warps % _WARPGROUP == 0
        and a.itemsize == b.itemsize == _WARPGROUP_BYTES
    )
    buffers = max(tile.stages if by_warpgroup else tile.stages - 1, 1)
    sizes = (tile.m * tile.k * a.itemsize, tile.n * tile.k * b.itemsize)
    counts = [buffers if operand.is_staged else 1 for operand in (a, b)]
    is_pipelined = tile.stages > 1 and (a.is_staged or b.is_staged)
    if not is_pipelined and not by_warpgroup:
        return max(sizes)  # an operand may move to registers before the other is loaded
    return sum(size * count for size, count in zip(sizes, counts, strict=True))


def missing_resource(
    tile: Tile, a: GemmOperand, b: GemmOperand, capacity: Capacity
) -> Resource | None:
    """Return the resource that a launch of *tile* certainly lacks, None if it may fit."""
    needed = shared_bytes(tile, a, b, has_warpgroups=capacity.has_warpgroups)
    if needed > capacity.shared_memory:
        return Resource.SHARED_MEMORY
    if tile.warps * capacity.warp_size * _MIN_REGISTERS > capacity.registers:
        return Resource.REGISTERS
    return None


def spills(tile: Tile, warp_size: int = 32) -> bool:
    """Return whether the accumulator of *tile* needs more registers than a thread has."""
    # Not so on compute capability 10, which accumulates elsewhere. Inductor omits such tiles from
    # its exhaustive list; warmup measures them.
    return math.ceil(tile.m * tile.n / (tile.warps * warp_size)) > _MAX_REGISTERS


WIDE_SEARCH_OPS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "int_mm", "scaled_mm"})
# Kwargs that the lowering gives to every candidate of a template, not the heuristic.
_GIVEN: Final = frozenset({"USE_FAST_ACCUM", "SCALE_RECIPE_A", "SCALE_RECIPE_B"})
_FEW_ROWS: Final = 64
_WARPGROUP_MAJOR: Final = 9  # compute capability; from 10 on another MMA replaces warpgroup MMA
_ASYNC_BYTES: Final = 4  # the smallest asynchronous copy
_LISTED_BYTES: Final = 2  # of the elements that the tiles below were listed for
# m, n, k, stages, warps. With few rows the time is that of reading the weights, which takes many
# blocks with many loads in flight. Inductor's list stops at 128 x 128 of the weights and five
# stages, and has no tile that is both narrow and deep.
_FOR_FEW_ROWS: Final = (
    *((16, 16, 256, 6, 1), (16, 32, 128, 6, 2), (16, 32, 256, 4, 2), (16, 32, 256, 6, 2)),
    *((16, 64, 64, 6, 4), (16, 64, 128, 4, 2), (16, 64, 128, 6, 4), (16, 64, 256, 4, 4)),
    *((16, 64, 256, 5, 4), (16, 128, 64, 6, 4), (16, 128, 128, 5, 4), (16, 128, 128, 6, 8)),
    *((16, 128, 256, 4, 4), (16, 128, 256, 4, 8), (16, 256, 64, 4, 4), (16, 256, 64, 6, 8)),
    *((16, 256, 128, 4, 4), (16, 256, 128, 4, 8)),
)
# Tiles two or four warpgroup MMAs wide, and mid-sized tiles with deep pipelines. Inductor lists the
# former for persistent TMA only, the latter for no template.
_FOR_MANY_ROWS: Final = (
    *((64, 64, 128, 4, 4), (64, 128, 64, 5, 4), (64, 128, 128, 3, 4), (64, 256, 64, 3, 4)),
    *((64, 256, 64, 4, 4), (64, 256, 64, 4, 8), (128, 64, 64, 5, 4), (128, 64, 128, 3, 4)),
    *((128, 128, 64, 4, 4), (128, 128, 64, 4, 8), (128, 256, 64, 3, 8), (128, 256, 64, 4, 8)),
    *((256, 64, 64, 4, 4), (256, 64, 64, 4, 8), (256, 128, 64, 3, 8), (256, 128, 64, 4, 8)),
)


def wide_search_tiles(kernel_inputs: Any) -> tuple[Mapping[str, int], ...]:
    """Return the tiles that a wide search tries for this problem, as kwargs of a template."""
    rows, deeper = kernel_inputs.mnk_symbolic()[0], depth_factor(kernel_inputs)
    few = V.graph.sizevars.statically_known_leq(rows, _FEW_ROWS)
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
    tiles = _FOR_FEW_ROWS if few else _FOR_MANY_ROWS
    return tuple(
        dict(zip(names, (m, n, k * deeper, stages, warps), strict=True))
        for m, n, k, stages, warps in tiles
    )


def depth_factor(kernel_inputs: Any) -> int:
    """Return how many times as deep as for 16-bit factors a tile is, to load as many bytes."""
    itemsize: int = kernel_inputs.mat1mat2()[0].get_dtype().itemsize
    return max(_LISTED_BYTES // itemsize, 1)


def choices_for_tiles(
    base: Any, kernel_inputs: Any, op_name: str, tiles: Iterable[Mapping[str, Any]]
) -> Iterator[Any]:
    """Return choices of the template of *base* for *tiles*, which may come from other problems."""
    # Of a tile only kwargs of a config are used: block sizes, stages, warps and the like.
    heuristic = _heuristic(base, kernel_inputs, op_name)
    config, *_ = _configs(heuristic, "mm_configs")
    names = {field.name for field in dataclasses.fields(config)} - {"hint_override"}
    configs = [
        dataclasses.replace(
            config, **{key.lower(): value for key, value in tile.items() if key.lower() in names}
        )
        for tile in tiles
    ]
    return _choices(heuristic, base, kernel_inputs, op_name, configs)


def exhaustive_choices(base: Any, kernel_inputs: Any, op_name: str) -> Iterator[Any]:
    heuristic = _heuristic(base, kernel_inputs, op_name)
    configs = _configs(heuristic, "exhaustive_configs")
    return _choices(heuristic, base, kernel_inputs, op_name, configs)


def _heuristic(base: Any, kernel_inputs: Any, op_name: str) -> Any:
    return get_template_heuristic(base.template.uid, kernel_inputs.device_type, op_name)


def _configs(heuristic: Any, name: str) -> list[Any]:
    configs: list[Any] = getattr(heuristic, name, [])
    if not configs:
        raise InductorChangedError(f"{type(heuristic).__qualname__}.{name} is gone")
    return configs


def _choices(
    heuristic: Any, base: Any, kernel_inputs: Any, op_name: str, configs: list[Any]
) -> Iterator[Any]:
    private = copy.copy(heuristic)  # inductor shares the heuristic between threads
    private.mm_configs = private.exhaustive_configs = configs
    given = {name: value for name, value in base.params.to_kwargs().items() if name in _GIVEN}
    for params in private.get_template_configs(kernel_inputs, op_name):
        complete = type(base.params)({**params.to_kwargs(), **given})
        yield KernelTemplateChoice(
            base.template, complete, base.extra_kwargs, base.layout, base.inputs
        )


def capacity_of(device: torch.device) -> Capacity:
    properties: Any = torch.cuda.get_device_properties(device)
    return Capacity(
        shared_memory=properties.shared_memory_per_block_optin,
        registers=properties.regs_per_multiprocessor,
        warp_size=properties.warp_size,
        has_warpgroups=properties.major == _WARPGROUP_MAJOR,
    )


def gemm_operands_of(kernel_inputs: Any, *, by_tma: bool) -> tuple[GemmOperand, GemmOperand]:
    """Return what the shared memory of a tile depends on, for both factors."""
    a, b = (
        GemmOperand(node.get_dtype().itemsize, is_staged=by_tma or _is_staged(node))
        for node in kernel_inputs.mat1mat2()
    )
    return a, b


def _is_staged(node: Any) -> bool:
    sizevars = V.graph.sizevars
    *_, first, second = node.get_stride()
    pitch = second if sizevars.statically_known_equals(first, 1) else first
    unit = max(_ASYNC_BYTES // node.get_dtype().itemsize, 1)
    return all(
        bool(sizevars.statically_known_multiple_of(size, unit))
        for size in (pitch, node.get_layout().offset)
    )


def tile_of(choice: Any) -> Tile | None:
    tile = Tile.of(choice.params.to_kwargs())
    return tile.turned if tile is not None and choice.template.uid == SWAPPED.uid else tile


_Tiles = Mapping[int, tuple[tuple[int, int, int, int], ...]]  # by the rows of a block
_FEW_ROWS_TEMPLATES: Final[Mapping[str, tuple[Any, _Tiles]]] = {
    SWAPPED.uid: (SWAPPED, SWAPPED_TILES),
    DOTS.uid: (DOTS, DOTS_TILES),
}
FEW_ROWS_UIDS: Final = tuple(_FEW_ROWS_TEMPLATES)
_FEW_ROWS_OPS: Final = frozenset({"mm", "addmm", "scaled_mm"})
# By the dtype of both operands, the dtypes that a result may have.
_RESULT_DTYPES: Final = {
    torch.bfloat16: {torch.bfloat16},
    torch.float16: {torch.float16},
    torch.float8_e4m3fn: {torch.bfloat16, torch.float16},
}


def rows_of_block(uid: str, kernel_inputs: Any, op_name: str) -> int | None:
    """Return the rows of a block of the template *uid*, None where it is not for this problem."""
    # The templates are for weights of 16 or 8 bits in which K is contiguous, as in those of a
    # linear: along N each thread would read a line of memory for one element.
    if op_name not in _FEW_ROWS_OPS:
        return None
    a, b = kernel_inputs.mat1mat2()
    results = _RESULT_DTYPES.get(a.get_dtype(), set())
    if a.get_dtype() != b.get_dtype() or kernel_inputs.output_layout().dtype not in results:
        return None
    sizevars = V.graph.sizevars
    if not sizevars.statically_known_equals(b.get_stride()[0], 1):
        return None
    rows, (_, sizes) = kernel_inputs.mnk_symbolic()[0], _FEW_ROWS_TEMPLATES[uid]
    return next((size for size in sizes if sizevars.statically_known_leq(rows, size)), None)


def few_rows_candidates(uid: str, base: Any, kernel_inputs: Any, block_m: int) -> Iterator[Any]:
    """Yield the choices of the template *uid*, from *base*, a choice of inductor's mm template."""
    template, tiles = _FEW_ROWS_TEMPLATES[uid]
    depth = kernel_inputs.mnk_symbolic()[2]
    for block_n, deep, stages, warps in tiles[block_m]:
        block_k = deep * depth_factor(kernel_inputs)
        own = {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "EVEN_K": bool(V.graph.sizevars.statically_known_multiple_of(depth, block_k)),
            "num_stages": stages,
            "num_warps": warps,
        }
        params = type(base.params)({**base.params.to_kwargs(), **own})
        yield KernelTemplateChoice(template, params, base.extra_kwargs, base.layout, base.inputs)


# Templates for which the shared memory of a tile is known.
_PRUNED = frozenset({mm_template.uid, bmm_template.uid, SWAPPED.uid, *TMA_UIDS})


@dataclass(frozen=True, slots=True)
class Selection:
    """A GEMM selection before code is generated: inductor's handler and its arguments."""

    version: Version
    handler: Any
    kernel_inputs: Any
    templates: list[Any]
    op_name: str
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def is_searchable(self) -> bool:
        return self.kernel_inputs.device_type == "cuda" and torch.version.hip is None

    @property
    def lists_library(self) -> bool:
        """Whether the library's calls are here: torch lists those of an addmm apart (2.13)."""
        return any(isinstance(template, ExternKernelChoice) for template in self.templates)

    def algorithms(self, named: Iterable[Winner]) -> Iterator[Any]:
        if self.lists_library:
            yield from blas.candidates(self.version, self.kernel_inputs, self.op_name, named)

    @property
    def omitted_templates(self) -> list[Any]:
        """The template that the lowering omits for a very large K, where it offers decompose_k."""
        # From torch 2.15 on EXHAUSTIVE keeps both (torch/_inductor/kernel/mm.py, tuned_mm).
        offered = {template.uid for template in self.templates}
        is_omitted = SPLIT_UID in offered and mm_template.uid not in offered
        return [mm_template] if is_omitted and self.is_searchable else []

    def candidates(self, template: Any) -> Iterator[Any]:
        given = dict(self.overrides.get(template.uid, {}))
        yield from self.handler.get_ktc(self.kernel_inputs, template, self.op_name, given)

    def tma(self, templates: list[Any]) -> tuple[str, Iterator[Any]]:
        """Return the uid and the candidates of persistent TMA, unless *templates* include it."""
        found = tma_template(self.kernel_inputs, templates, self.op_name)
        if found is None:
            return "", iter(())
        template, scaling = found
        given = {**self.overrides.get(mm_template.uid, {}), **scaling}
        return template.uid, self.handler.get_ktc(self.kernel_inputs, template, self.op_name, given)

    def splits(self, *, only_even: bool = False) -> Iterator[Any]:
        """Yield decompose_k choices if the lowering offers Triton and all sizes are constants."""
        inputs, offered = self.kernel_inputs, {template.uid for template in self.templates}
        sizes = inputs.mnk_symbolic()
        if (
            self.op_name != "mm"
            or not offered & {SPLIT_UID, mm_template.uid}
            or any(getattr(size, "free_symbols", None) for size in sizes)
            or not option_value("triton.num_decompose_k_splits")
            or V.graph.aot_mode  # subgraphs do not work there (utils.py, use_decompose_k_choice)
            or V.graph.cpp_wrapper
        ):
            return
        layout, itemsize = inputs.output_layout(), inputs.dtype().itemsize
        m, n, k = map(int, sizes)
        for split in splits_of(m, n, k, itemsize, only_even=only_even):
            params = self.version.template_params({"k_split": split})
            yield KernelTemplateChoice(decompose_k_subgraph_template, params, {}, layout, inputs)

    def few_rows(self, uid: str) -> Iterator[Any]:
        """Yield candidates of *uid* for few rows where inductor has or omits the mm template."""
        offered = {template.uid for template in (*self.templates, *self.omitted_templates)}
        if not self.is_searchable or mm_template.uid not in offered:
            return
        rows = rows_of_block(uid, self.kernel_inputs, self.op_name)
        if rows is None:
            return
        for base in itertools.islice(self.candidates(mm_template), 1):
            yield from few_rows_candidates(uid, base, self.kernel_inputs, rows)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The candidates that a search adds to inductor's list, and a record of the search."""

    choices: list[Any]
    searched: SearchCounts


def unlisted_candidates(selection: Selection) -> dict[str, Iterator[Any]]:
    """Return, by uid, the candidates of each template that only the search offers."""
    if not selection.is_searchable:
        return {}
    omitted = selection.omitted_templates
    candidates = {template.uid: selection.candidates(template) for template in omitted}
    uid, tma = selection.tma([*selection.templates, *omitted])
    if uid:
        candidates[uid] = tma
    if SPLIT_UID not in {template.uid for template in selection.templates}:
        candidates[SPLIT_UID] = selection.splits()
    return {**candidates, **{uid: selection.few_rows(uid) for uid in FEW_ROWS_UIDS}}


def named_alone(
    selection: Selection, listed: Sequence[Any], named: Sequence[Winner]
) -> SearchResult:
    """Return all library calls, and of the listed and wide candidates the *named*."""
    wide = search(selection, Search.WIDE, listed, named)
    sources: list[CandidateSource | None] = [None] * len(listed)
    for source, count in wide.searched.added:
        sources += [source] * count
    choices = [*listed, *wide.choices]
    kept = [
        (choice, source)
        for choice, source in zip(choices, sources, strict=True)
        if isinstance(choice.template, ExternKernelChoice) or _is_named(choice, named)
    ]
    added = [source for _, source in kept if source is not None]
    counts = replace(
        wide.searched,
        search=Search.IMPORTED,
        listed=len(kept) - len(added),
        added=tuple((source, added.count(source)) for source in dict.fromkeys(added)),
        left_out=len(choices) - len(kept),
    )
    return SearchResult([choice for choice, _ in kept], counts)


def _is_named(choice: Any, named: Sequence[Winner]) -> bool:
    candidate = identify_template(choice)
    return candidate is not None and any(one.names(candidate) for one in named)


def search(
    selection: Selection, mode: Search, listed: Sequence[Any], neighbours: Sequence[Winner] = ()
) -> SearchResult:
    """Return the candidates that the search *mode* adds to inductor's *listed* choices.

    *neighbours* are winners of other problems, whose tiles are tried for the same templates here.
    Candidates that certainly cannot be launched are pruned, except those that inductor lists for
    persistent TMA.
    """
    if not selection.is_searchable:
        return SearchResult([], SearchCounts(search=mode, listed=len(listed)))
    seen = {_identity(choice) for choice in listed}
    pruned: Counter[Resource] = Counter()
    added: dict[CandidateSource, list[Any]] = {}
    limits = _LaunchLimits(selection)
    for source, choice in _candidates(selection, mode, listed, neighbours):
        identity = _identity(choice)
        if identity in seen:
            continue
        seen.add(identity)
        lacking = None if source is CandidateSource.TMA else limits.missing_for(choice)
        if lacking is None:
            added.setdefault(source, []).append(choice)
        else:
            pruned[lacking] += 1
    choices = [choice for group in added.values() for choice in group]
    tiles = (tile_of(choice) for choice in choices)
    return SearchResult(
        choices,
        SearchCounts(
            search=mode,
            listed=len(listed),
            added=tuple((source, len(group)) for source, group in added.items()),
            pruned=tuple(sorted(pruned.items())),
            spilling=sum(tile is not None and spills(tile) for tile in tiles),
        ),
    )


def _candidates(
    selection: Selection, mode: Search, listed: Sequence[Any], neighbours: Sequence[Winner]
) -> Iterator[tuple[CandidateSource, Any]]:
    """Yield candidates with their source; duplicates are possible."""
    inputs, op = selection.kernel_inputs, selection.op_name
    tma = list(selection.tma(selection.templates)[1])
    yield from ((CandidateSource.TMA, choice) for choice in tma)
    for uid in FEW_ROWS_UIDS:
        yield from ((CandidateSource.FEW_ROWS, choice) for choice in selection.few_rows(uid))
    algorithms = selection.algorithms(neighbours)
    yield from ((CandidateSource.ALGORITHMS, choice) for choice in algorithms)
    if mode is Search.DEFAULT:
        return
    is_wide = mode is Search.WIDE
    yield from ((CandidateSource.SPLITS, choice) for choice in selection.splits(only_even=is_wide))
    bases = _first_of_each([*listed, *tma])
    for winner in neighbours:
        if winner.uid in bases:
            near = choices_for_tiles(bases[winner.uid], inputs, op, [dict(winner.kwargs)])
            yield from ((CandidateSource.NEIGHBOURS, choice) for choice in near)
    if op in WIDE_SEARCH_OPS:
        for base in bases.values():
            wide = choices_for_tiles(base, inputs, op, wide_search_tiles(inputs))
            yield from ((CandidateSource.TILES, choice) for choice in wide)
    if mode is not Search.EXHAUSTIVE:
        return
    for omitted in selection.omitted_templates:
        templates = [omitted, *selection.templates]
        bases |= _first_of_each([*selection.candidates(omitted), *selection.tma(templates)[1]])
    for base in bases.values():
        exhaustive = exhaustive_choices(base, inputs, op)
        yield from ((CandidateSource.EXHAUSTIVE, choice) for choice in exhaustive)


def _first_of_each(choices: Iterable[Any]) -> dict[str, Any]:
    first: dict[str, Any] = {}
    for choice in choices:
        if isinstance(choice.template, TritonTemplate):
            first.setdefault(choice.template.uid, choice)
    return first


def _identity(choice: Any) -> tuple[str, frozenset[tuple[str, str]]]:
    kwargs = choice.params.to_kwargs()
    return choice.template.uid, frozenset((name, str(value)) for name, value in kwargs.items())


class _LaunchLimits:
    def __init__(self, selection: Selection) -> None:
        self._capacity = capacity_of(selection.kernel_inputs.device())
        self._operands = {
            uid: gemm_operands_of(selection.kernel_inputs, by_tma=uid in TMA_UIDS)
            for uid in _PRUNED
        }
        self._operands[SWAPPED.uid] = self._operands[SWAPPED.uid][::-1]

    def missing_for(self, choice: Any) -> Resource | None:
        tile = tile_of(choice)
        operands = self._operands.get(choice.template.uid)
        if tile is None or operands is None:
            return None
        return missing_resource(tile, *operands, self._capacity)


def template_sources() -> dict[str, str]:
    """Return the hash of the source of each template that is registered, by its uid.

    Those of matmuls register when their module of torch is imported, as here.
    """
    templates = TritonTemplate.all_templates.values()
    return {one.uid: one.src_hash for one in templates if one.src_hash is not None}
