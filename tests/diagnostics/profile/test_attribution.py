"""Which decision is behind a kernel of a GPU's trace: by the plan, by shapes, by name, or not."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from gpu_events import GpuTrace, plan_of
from sample_tables import make_row, make_table

from warmup.bench.attribution import Attributed, Known, Reason, attribute, work_of_operator
from warmup.bench.profile import profile_trace
from warmup.bench.trace import HostOperator, read_trace
from warmup.core.roofline import GraphPlan, PlannedBy, PlannedKernel
from warmup.core.rows import Evidence, Family, Row, Winner
from warmup.keys.convolution import CONVOLUTION
from warmup.keys.gemm import GEMM
from warmup.keys.registry import kind_of
from warmup.table.schema import Table
from warmup.table.store import read

BUCKET = "seqlen=16"
END = "bf16 a=row b=col out=bf16 | epilogue=none"
UP, DOWN = f"mm m=16 n=64 k=32 {END}", f"mm m=16 n=32 k=64 {END}"
SWIGLU = "launch triton_poi_fused_mul_silu x=1024 args=*bf16,*bf16,i32 source=3f2a9c0d41b7e865"


def library(*keys: str, name: str = "aten.mm.out") -> PlannedKernel:
    return PlannedKernel(name=name, by=PlannedBy.LIBRARY, keys=keys, dtype="bf16", flops=1, moved=2)


def triton(name: str, *keys: str) -> PlannedKernel:
    return PlannedKernel(
        name=name, by=PlannedBy.TRITON, keys=keys, dtype="bf16", flops=None, moved=4
    )


SILU = triton("triton_poi_fused_mul_silu_0", SWIGLU)
PLAN = GraphPlan("fabc", (library(UP), library(UP), SILU, library(DOWN)))


def found_in(
    trace: GpuTrace, folder: Path, *plans: GraphPlan, table: Table | None = None
) -> list[Attributed]:
    plan = plan_of(BUCKET, *plans) if plans else None
    return list(attribute(read_trace(trace.write(folder / "t.json", plan)), table))


def keys_in(found: list[Attributed]) -> list[tuple[str, ...]]:
    return [each.keys for each in found]


def test_library_kernels_are_matched_by_their_place(tmp_path: Path) -> None:
    """Between kernels that inductor named, a library's kernels follow the order of the plan."""
    trace = GpuTrace()
    trace.call(BUCKET, "fabc", 0, 100)
    for place, name in enumerate(("nvjet_a", "nvjet_b", SILU.name, "nvjet_c")):
        begin = 10.0 + 20 * place
        external = trace.operator("aten::mm" if "nvjet" in name else name, begin, 5)
        trace.kernel(name, begin + 8, 10, launched=begin + 1, external=external)
    found = found_in(trace, tmp_path, PLAN)
    assert keys_in(found) == [(UP,), (UP,), (SWIGLU,), (DOWN,)]
    assert {each.known for each in found} == {Known.PLAN}
    assert found[0].call != found[1].call


def test_two_kernels_of_one_library_call_are_one_call(tmp_path: Path) -> None:
    """A matmul that ends in a reduction kernel counts its work once, at the longer kernel."""
    trace = GpuTrace()
    trace.call(BUCKET, "fabc", 0, 100)
    for begin, names in ((10.0, ("nvjet_a", "reduce")), (40.0, ("nvjet_b",))):
        external = trace.operator("aten::mm", begin, 9)
        for turn, name in enumerate(names):
            at = begin + 9 * turn
            trace.kernel(name, at + 5, 8 - turn, launched=at, external=external)
    first, second, third = found_in(trace, tmp_path, GraphPlan("fabc", (library(UP),) * 2))
    assert first.call == second.call != third.call
    assert [each.work is not None for each in (first, second, third)] == [True, False, True]


def test_a_cuda_graph_has_no_operators(tmp_path: Path) -> None:
    """Kernels that one graph launch enqueued are matched by order, a split-K's end included."""
    trace = GpuTrace()
    trace.call(BUCKET, "fabc", 0, 100)
    names = ("nvjet_a", "cublasLt::splitKreduce_kernel", "nvjet_b", SILU.name, "nvjet_c")
    trace.host("cudaGraphLaunch", 5, 3, "cuda_runtime", correlation=99)
    for place, name in enumerate(names):
        trace.kernel(name, 10 + 10 * place, 9, correlation=99)
    found = found_in(trace, tmp_path, PLAN)
    assert keys_in(found) == [(UP,), (UP,), (UP,), (SWIGLU,), (DOWN,)]
    assert found[0].call == found[1].call != found[2].call


def test_kernels_that_fit_several_places_are_not_guessed(tmp_path: Path) -> None:
    """Three kernels for two matmuls, without operators: both keys are named, and no row is."""
    trace = GpuTrace()
    trace.call(BUCKET, "fabc", 0, 100)
    for place, name in enumerate(("nvjet_a", "nvjet_b", "nvjet_c")):
        trace.kernel(name, 10 + 10 * place, 9, launched=5)
    found = found_in(trace, tmp_path, GraphPlan("fabc", (library(UP), library(DOWN))))
    assert keys_in(found) == [(UP, DOWN)] * 3
    assert {each.reason for each in found} == {Reason.UNTRACED}


def test_two_graphs_of_a_bucket_have_their_own_plans(tmp_path: Path) -> None:
    """The graph around the launch says which plan a kernel belongs to."""
    trace = GpuTrace()
    trace.host(f"warmup bucket {BUCKET}", 0, 200, "user_annotation")
    for graph, begin in (("fb", 10.0), ("fa", 60.0)):
        trace.host(f"## Call CompiledFxGraph {graph} ##", begin, 40, "user_annotation")
        trace.kernel("nvjet", begin + 5, 9, launched=begin + 1)
    plans = GraphPlan("fa", (library(UP),)), GraphPlan("fb", (library(DOWN),))
    assert keys_in(found_in(trace, tmp_path, *plans)) == [(DOWN,), (UP,)]


def joined_with(
    table_at: tuple[Table, Path], kernel: str, operator: str | None, arguments: dict[str, object]
) -> Attributed:
    """Return what is known of a kernel that *operator* launched."""
    table, folder = table_at
    trace = GpuTrace()
    external = None if operator is None else trace.operator(operator, 0, 9, **arguments)
    trace.kernel(kernel, 10, 9, launched=5, external=external)
    (found,) = found_in(trace, folder, table=table)
    return found


@pytest.fixture
def table_at(tmp_path: Path) -> tuple[Table, Path]:
    """Rows of a library's matmul, a template's, and a launch config; and a folder."""
    extern = Winner(Family.EXTERN, "aten::mm")
    config = Winner(Family.LAUNCH, "pointwise", (("XBLOCK", 512), ("num_warps", 4)))
    template = make_row("triton::mm", 8.5, BLOCK_M=32, num_stages=3, num_warps=4)
    evidence = Evidence(time_us=9.0, library_us=9.0, runner_up=None, runner_up_us=None, tried=1)
    rows = {UP: Row(extern, evidence), DOWN: template, SWIGLU: Row(config, evidence)}
    return make_table(rows), tmp_path


def shapes(*sizes: list[int], **more: object) -> dict[str, object]:
    return {"Input Dims": list(sizes), "Input type": ["c10::BFloat16"] * len(sizes), **more}


MM, TEMPLATE = "aten::mm", "triton_tem_fused_mm_3"
SILU_7, SUM = "triton_poi_fused_mul_silu_7", "triton_red_fused_sum_0"


def test_without_a_plan_shapes_and_names_find_the_row(table_at: tuple[Table, Path]) -> None:
    """A server's own trace, recorded with shapes, is joined with the rows of its table."""
    tiled = shapes([16, 64], [32, 64], [16, 32], num_warps=4, num_stages=3)
    for operator, kernel, arguments, key, known in (
        (MM, "nvjet", shapes([16, 32], [32, 64]), UP, Known.SHAPES),
        (TEMPLATE, TEMPLATE, tiled, DOWN, Known.SHAPES),
        (
            *(SILU_7, SILU_7),
            shapes([16, 64], [16, 64], kernel_kwargs="XBLOCK=512", num_warps=4),
            *(SWIGLU, Known.NAME),
        ),
    ):
        found = joined_with(table_at, kernel, operator, arguments)
        assert (found.keys, found.known) == ((key,), known), kernel
        assert found.row is table_at[0].rows[key], kernel


def test_a_kernel_without_a_row_says_why(table_at: tuple[Table, Path]) -> None:
    """A miss, a library's kernel, generated code without a decision, and an unknown kernel.

    A kernel of a row's name with another config was not chosen by the row.
    """
    other_config = shapes([16, 64], kernel_kwargs="XBLOCK=256", num_warps=4)
    for kernel, operator, arguments, reason in (
        ("nvjet", MM, shapes([16, 33], [33, 64]), Reason.MISS),
        ("flash_fwd", "aten::_flash_attention_forward", {}, Reason.LIBRARY),
        (SUM, SUM, {}, Reason.UNCOVERED),
        (SILU_7, SILU_7, other_config, Reason.UNCOVERED),
        (TEMPLATE, TEMPLATE, shapes([2, 2]), Reason.MISS),
        ("my_kernel", None, {}, Reason.UNTRACED),
    ):
        found = joined_with(table_at, kernel, operator, arguments)
        assert (found.reason, found.row) == (reason, None), kernel


def test_the_linears_of_a_cpu_find_their_rows(tmp_path: Path) -> None:
    """As mkl and oneDNN are called in traces: with a packed copy, and with what is added."""
    evidence = Evidence(time_us=9.0, library_us=9.0, runner_up=None, runner_up_us=None, tried=1)
    ends = "m=16 n=64 k=32 bf16 a=row b=packed out=bf16 | epilogue=none"
    ops = ("packed_linear", "linear_unary", "linear_binary")
    row = Row(Winner(Family.EXTERN, "aten::linear"), evidence)
    table = make_table({f"{op} {ends}": row for op in ops})
    mkl, unary = ("mkl::_mkl_linear", "packed_linear"), ("mkldnn::_linear_pointwise", ops[1])
    rows, wide, weight = [4, 4, 32], [16, 64], [64, 32]
    for (operator, op), sizes in (
        (mkl, ([16, 32], [9999, 1], weight)),
        (unary, (rows, weight, [64])),
        (unary, (rows, weight)),
        ((unary[0], "linear_binary"), ([16, 32], wide, weight, [64])),
    ):
        trace = GpuTrace()
        trace.operator(operator, 0, 9, **shapes(*sizes))
        (found,) = found_in(trace, tmp_path, table=table)
        assert found.keys == (f"{op} {ends}",), (operator, sizes)
        assert found.work is not None
        assert found.work.flops == 2 * 16 * 64 * 32, (operator, sizes)
        assert found.work.moved < 2 * (2 * 64 * 32 + 4 * 16 * 64), (operator, sizes)


def test_products_of_other_sizes_are_not_the_same_row(tmp_path: Path) -> None:
    """A product with a residual holds the matrices of the product before it, in one config."""
    row = make_row("triton::mm", 8.5, num_stages=3, num_warps=4)
    up, down = (f"mm m=16 {sizes} {END}" for sizes in ("n=64 k=32", "n=32 k=64"))
    name = "triton_tem_fused_add_mm_1"
    given = shapes([16, 64], [64, 32], [16, 32], [16, 32], num_warps=4, num_stages=3)
    found = joined_with((make_table({up: row, down: row}), tmp_path), name, name, given)
    assert (found.keys, found.row, found.reason) == ((up, down), None, Reason.UNTRACED)


def test_work_by_hand() -> None:
    """Operations and bytes are those counted by hand; the output argument is not read."""
    one, heads = "[1, 1]", [1, 256, 4, 64]
    of_heads = 2 * 4 * 128 * 256 * (64 + 64), 4 * 64 * (128 + 256 + 256) + 4 * 128 * 64
    scales = [[32], [4, 8], [4], []]  # of each row, and of each column of each group
    for name, dims, concrete, flops, items in (
        ("addmm", [[4], [8, 16], [16, 4], [], [], [8, 4]], [], 1024, 4 + 128 + 64 + 32),
        # Columns of b in groups; the sum in groups, with a result for each.
        ("_grouped_mm", [[4, 32, 16], [16, 8], [4], []], [], 8192, 64 * 32 + 16 * 8 + 32 * 8),
        ("_grouped_mm", [[32, 16], [16, 8], [4], []], [], 8192, 32 * 16 + 16 * 8 + 4 * 32 * 8),
        ("_scaled_grouped_mm", [[32, 16], [4, 16, 8], *scales], [], 8192, 1024 + 64 + 32 * 8),
        (
            *("cudnn_convolution", [[1, 2, 8, 8], [6, 2, 3, 3]], ["", "", one, one, one, "1"]),
            *(2 * 6 * 64 * 2 * 9, 128 + 108 + 6 * 64),
        ),
        ("_flash_attention_forward", [[1, 128, 4, 64], heads, heads], [], *of_heads),
    ):
        types = ["c10::BFloat16" if sizes else "Scalar" for sizes in dims]
        given = {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete}
        work = work_of_operator(HostOperator(f"aten::{name}", given))
        assert work is not None, name
        assert (work.dtype, work.flops, work.moved) == ("bf16", flops, 2 * items), name
    assert work_of_operator(HostOperator("aten::mm", {})) is None


DATA = Path(__file__).resolve().parents[1] / "data"
TABLES = Path(__file__).resolve().parents[3] / "tables/nvidia-h100-80gb-hbm3"


class Served(NamedTuple):
    """A trace of a model's table, four layers, five calls, and the operations of one call."""

    trace: str
    table: str
    counted: int  # by torch.utils.flop_counter; of the ViT with attention, torch 2.11 and 2.13
    others: int  # what that counts on a GPU alone: the product of rotary


SERVED = (
    Served("vit-table", "zoo.vit.bf16", 814_987_493_376, 0),
    Served("qwen2-7b-tokens-table-graphs", "zoo.qwen2-7b-tokens.bf16", 94_539_612_160, 128),
)


@pytest.mark.parametrize("served", SERVED, ids=[served.trace for served in SERVED])
def test_what_a_served_model_did_is_explained(served: Served) -> None:
    """At least 99 % of the time is of rows, library kernels, or copies and fills; none is a miss.

    Operations are those of torch's counter. A matmul takes what its row says within 10 % in 99 % of
    the time; others are faster than their rows, from a warm L2.
    """
    trace = read_trace(DATA / f"h100-{served.trace}.json.gz")
    found = profile_trace(trace, read(TABLES / f"{served.table}.json"))
    assert found.share_of(Reason.UNTRACED) <= 0.01
    assert found.share_of(Reason.MISS) == 0
    assert len(found.lines) > 10
    (bucket,) = found.buckets
    flops = [(line.work.flops or 0) * len(line.us) for line in bucket.lines if line.work]
    assert sum(flops) / bucket.iterations == served.counted + served.others
    own = [line for line in found.lines if line.ratio is not None]
    gemms = [line for line in own if {*map(kind_of, line.keys)} <= {GEMM, CONVOLUTION}]
    total = sum(line.total_us for line in gemms)
    assert total > found.device_us / 2
    assert sum(line.total_us for line in gemms if not line.has_drifted) > 0.99 * total
    assert all(line.ratio < 1 for line in gemms if line.ratio and line.has_drifted)
