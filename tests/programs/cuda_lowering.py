"""Lower GEMMs for the stated H100 and print, as JSON, what inductor made of each.

    echo '{"op": "addmm", "winner": "triton", "m": [2, 1024]}' | python cuda_lowering.py

One case a line on stdin, one result a line on stdout.

Cases: ``winner`` triton, tma, decompose_k, swapped, dots, extern or none (an empty table); ``m`` a
size or a range, ``n`` and ``k`` sizes; ``mode`` fallback or strict; ``produced``: the first operand
is made in the graph; ``visible``: the product is what the model returns; ``linear``: the weight
lies by columns, as that of a linear; ``dtype``, bfloat16 by default; ``gap``: elements between the
rows of the first operand; ``scalars``: alpha and beta of an addmm; ``scales``: ``row`` for a scale
of each row and column of a scaled_mm; ``fast``: fast accumulation. The row is made by listing this
torch's own candidates for the problem and taking the one asked for: its kwargs are complete.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fake_gpu
import torch

fake_gpu.pretend()

from torch._inductor import config, select_algorithm  # noqa: E402  after the device is pretended
from torch._inductor.choices import InductorChoices  # noqa: E402
from torch._inductor.fx_passes.post_grad import post_grad_passes  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402

from warmup.core.errors import warmup_error_in  # noqa: E402
from warmup.core.events import Emitter, Event  # noqa: E402
from warmup.core.rows import Evidence, Row, Winner  # noqa: E402
from warmup.inductor import connect  # noqa: E402
from warmup.inductor.gemm.choices import identify  # noqa: E402
from warmup.inductor.gemm.key import describe  # noqa: E402
from warmup.inductor.gemm.question import expect_padding  # noqa: E402
from warmup.inductor.gemm.search import Selection, unlisted_candidates  # noqa: E402
from warmup.inductor.patches import Patches  # noqa: E402
from warmup.table.lookup import Lookup  # noqa: E402
from warmup.table.schema import OnMiss  # noqa: E402

UIDS = {
    "triton": "triton::",
    "tma": "triton::mm_persistent_tma",
    "decompose_k": "decompose_k",
    "swapped": "triton::warmup_mm_swapped",
    "dots": "triton::warmup_mm_dots",
    "extern": "aten::",
}
EVIDENCE = Evidence(time_us=1.0, library_us=2.0, runner_up=None, runner_up_us=None, tried=2)
OPTIONS = {"max_autotune_gemm_backends": "ATEN,TRITON"}
SPARE = {"aten::bias_addmm"}  # torch 2.11 offers it beside addmm


def make_graph(case: dict[str, Any]) -> tuple[Any, list[torch.Tensor], ShapeEnv, FakeTensorMode]:
    """Return the FX graph of the case, its inputs and where its sizes live."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    n, k = (32, 8192) if case["winner"] == "decompose_k" else (768, 1024)
    n, k = case.get("n", n), case.get("k", k)
    m: Any = case["m"]
    if isinstance(m, list):
        m = fake_gpu.make_range(shapes, *m, hint=sum(m) // 2)

    fast = bool(case.get("fast"))
    products: dict[str, Callable[[Any, Any, Any], Any]] = {
        "mm": lambda x, w, b: x @ w,
        "addmm": lambda x, w, b: torch.addmm(b, x, w, **case.get("scalars", {})),
        "bmm": lambda x, w, b: torch.bmm(x, w),
        "baddbmm": lambda x, w, b: torch.baddbmm(b, x, w),
        "mm_plus_mm": lambda x, w, b: x @ w + (x + 1) @ (w + 1),
        "int_mm": lambda x, w, b: torch._int_mm(x, w),
    }

    def compute(x: Any, w: Any, b: Any, *scales: Any) -> Any:
        x = torch.relu(x) if case.get("produced") else x
        if scales:
            y = torch._scaled_mm(x, w.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=fast)
        else:
            y = products[case["op"]](x, w, b)
        return torch.relu(y) * b if case["epilogue"] else y

    with mode:
        dtype = {"dtype": getattr(torch, case.get("dtype", "bfloat16")), "device": "cuda:0"}
        batch = [4] if case["op"] in ("bmm", "baddbmm") else []
        inputs = [
            torch.empty(*batch, m, k, **dtype),
            torch.empty(*batch, k, n, **dtype),
            torch.empty(n, **dtype),
        ]
        if case["op"] == "int_mm":
            inputs[:2] = [factor.to(torch.int8) for factor in inputs[:2]]
        elif case["op"] == "scaled_mm":  # its second factor lies by columns
            x, w = inputs[0], torch.empty(n, k, **dtype)
            inputs[:2] = [factor.to(torch.float8_e4m3fn) for factor in (x, w)]
            by_row = case.get("scales") == "row"
            sizes: list[Any] = [(m, 1), (1, n)] if by_row else [(), ()]
            inputs += [torch.empty(each, device="cuda:0") for each in sizes]
        if case.get("linear") and case["op"] != "scaled_mm":
            inputs[1] = torch.empty(n, k, **dtype).t()
        if extra := case.get("gap"):
            inputs[0] = torch.empty_strided((m, k), (k + extra, 1), **dtype)
        table = torch._inductor.decomposition.select_decomp_table()
        graph = make_fx(compute, decomposition_table=table)(*inputs)
    if case["op"] == "mm_plus_mm":  # a post-grad pattern makes it out of two mm and an add
        with V.set_fake_mode(mode), config.patch({"max_autotune_gemm": True}):
            post_grad_passes(graph, is_inference=True)
    if case.get("visible"):  # as compile_fx marks what a model returns
        (end,) = graph.graph.find_nodes(op="output")
        end.meta |= {"user_visible_output_idxs": [0], "original_output_strides": [(n, 1)]}
    return graph, inputs, shapes, mode


def lower(case: dict[str, Any]) -> tuple[str, ShapeEnv]:
    """Run inductor's lowering, scheduling and code generation; return the code."""
    graph, inputs, shapes, mode = make_graph(case)
    settings = {"max_autotune_gemm": True, "fx_graph_cache": False, "compile_threads": 1}
    with config.patch(settings):
        return fake_gpu.generate(graph, inputs, mode, shapes), shapes


def rows_apart(code: str) -> dict[str, list[int]]:
    """Return how far apart the templates in *code* state the first factor's rows, and read them."""
    stated = re.findall(r"stride_am = (\d+)", code)
    # A row is loaded at `xindex` where that is its place, and else at an expression of its own.
    loads = re.findall(r"xindex = idx_n \+ (\d+)\*idx_m\s+a = tl\.load\(A \+ \((.*)", code)
    read = [(re.findall(r"idx_n \+ (\d+)\*idx_m", load) or [place])[0] for place, load in loads]
    return {"stated": sorted(set(map(int, stated))), "read": sorted(set(map(int, read)))}


def list_candidates(case: dict[str, Any]) -> dict[str, Winner]:
    """Return the key of the case's problem with the candidate asked for, generating nothing."""
    found: dict[str, Winner] = {}

    class Listing(InductorChoices):
        def _finalize_template_configs(
            self,
            template_choices: Any,
            kernel_inputs: Any,
            templates: Any,
            op_name: str,
            kw: Any = None,
        ) -> Any:
            if not (config.max_autotune or config.max_autotune_gemm):
                return super()._finalize_template_configs(
                    template_choices, kernel_inputs, templates, op_name, kw
                )
            key = describe(op_name, kernel_inputs.nodes(), kernel_inputs.output_layout()).key
            selection = Selection(
                connect().version, self, kernel_inputs, templates, op_name, kw or {}
            )
            kept = []
            for uid, candidates in {**template_choices, **unlisted_candidates(selection)}.items():
                first = next(candidates, None)
                if first is None:
                    continue
                if uid.startswith("aten::") and uid not in SPARE:
                    kept.append(first)
                if uid.startswith(UIDS[case["winner"]]) and key not in found and uid not in SPARE:
                    built = first.choice if uid.startswith("aten::") else Unbuilt(first)
                    winner = identify(built)
                    assert winner is not None, first.params.to_kwargs()
                    kwargs = {**dict(winner.kwargs), **case.get("tile", {})}
                    found[key] = replace(winner, kwargs=tuple(sorted(kwargs.items())))
            return kept

    patches = Patches()
    expect_padding(patches)  # keys are those of an attached table
    with V.set_choices_handler(Listing()), config.patch(OPTIONS):
        lower(case)
    patches.restore()
    return found


class Unbuilt:
    """What `identify` needs of a choice, without generating its code."""

    def __init__(self, origin: Any) -> None:
        self.annotations = {"ktc": origin}


def run(case: dict[str, Any], generated: list[str]) -> dict[str, Any]:
    """Lower one case under its own table and return what came of it."""
    return serve(case, {} if case["winner"] == "none" else list_candidates(case), generated)


def serve(case: dict[str, Any], rows: dict[str, Winner], generated: list[str]) -> dict[str, Any]:
    """Lower one case under a table of *rows* and return what came of it."""
    events: list[Event] = []
    lookup = Lookup(
        {key: Row(winner, EVIDENCE) for key, winner in rows.items()},
        OnMiss(case["mode"]),
        Emitter([events.append]),
    )
    generated.clear()
    attachment = connect().attach(lookup, OPTIONS, "test")
    result: dict[str, Any] = {"rows": {key: str(winner) for key, winner in rows.items()}}
    try:
        code, shapes = lower(case)
        result["kernels"] = re.findall(r"^def (triton_\w+)\(", code, re.MULTILINE)
        result["launches"] = re.findall(r"^\s+(triton_\w+)\.run", code, re.MULTILINE)
        result["externs"] = re.findall(r"extern_kernels\.(\w+)\(", code)
        result["guards"] = [str(guard.expr) for guard in shapes.guards]
        tiles = re.findall(r"(BLOCK_[MNK])\s*:\s*tl\.constexpr\s*=\s*(\d+)", code)
        result["tile"] = {name: int(size) for name, size in tiles}
        result["warps"] = re.findall(r"num_warps=(\d+)", code)
        result["rows_apart"] = rows_apart(code)
    except Exception as error:
        own = warmup_error_in(error)
        if own is None:
            raise
        result["error"] = f"{type(own).__name__}: {own}"
    finally:
        attachment.detach()
    result["generated"] = list(generated)
    result["events"] = [{"name": event.name, **event.fields} for event in events]
    return result


def answer_each(answer: Callable[[dict[str, Any], list[str]], dict[str, Any]]) -> None:
    """Print what *answer* makes of each case on stdin; the list grows by what is generated."""
    generated: list[str] = []
    original = select_algorithm.TritonTemplate.generate

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        generated.append(self.name)
        return original(self, *args, **kwargs)

    select_algorithm.TritonTemplate.generate = count
    for line in sys.stdin:
        case = {"epilogue": False, "mode": "strict", **json.loads(line)}
        sys.stdout.write(json.dumps(answer(case, generated)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    answer_each(run)
