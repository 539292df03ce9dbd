"""Lower one product for the stated H100, and print what inductor made of it.

    echo '{"op": "addmm", "winner": "triton", "m": [2, 1024]}' | python cuda_gemms.py

The product: ``op``, ``m`` a size or a range, ``n`` and ``k``; ``dtype``, bfloat16 by default;
``linear``: the weight lies by columns; ``gap``: elements between the rows of the first operand;
``produced``: the graph makes it; ``visible``: the model returns the product; ``epilogue``;
``scalars``: alpha and beta of an addmm; ``scales``: ``row`` for a scale of each row and column of a
scaled_mm; ``fast``: fast accumulation.

A case is served: ``winner`` is the row's template (see `UIDS`), or ``none``, ``tile`` changes its
kwargs, ``mode`` is fallback or strict. With ``search`` the candidates of that search are listed,
``neighbours`` are kwargs of winners elsewhere, the last candidate of the source ``serve`` is served
and Triton compiles the last ``most`` of the source ``compile``. With ``asked`` too, a tuner is
asked; ``imported`` are the kwargs that every key has for neighbours. With ``exported`` the row is
exported as torch's own lookup table.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fake_gpu
import h100  # before inductor looks for a device
import torch
from h100 import GEMM_OPTIONS, Case, Gemm, Graph, is_library, winner_of
from torch._inductor import config, select_algorithm
from torch._inductor.codecache import PyCodeCache
from torch._inductor.kernel.mm import mm_template
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from warmup.core.events import Emitter
from warmup.core.rows import Family, Row, Search, SearchCounts, Winner, portable_kwargs
from warmup.inductor.gemm.question import expect_padding
from warmup.inductor.gemm.search import (
    GemmOperand,
    search,
    shared_bytes,
    tile_of,
    unlisted_candidates,
)
from warmup.inductor.patches import Patches
from warmup.keys.kind import Problem
from warmup.keys.question import GemmQuestion, Question, SmallerSize
from warmup.table.lookup import Lookup
from warmup.table.schema import OnMiss
from warmup.table.store import read
from warmup.tuning.exchange import export_lookup_table

UIDS = {
    "triton": "triton::",
    "tma": "triton::mm_persistent_tma",
    "decompose_k": "decompose_k",
    "swapped": "triton::warmup_mm_swapped",
    "dots": "triton::warmup_mm_dots",
    "extern": "aten::",
}
H100 = Path(__file__).resolve().parents[2] / "tables/nvidia-h100-80gb-hbm3/zoo.t5.bf16.json"
GENERATED: list[str] = []  # the names of templates


def graph_of(case: Case) -> Graph:
    mode = h100.fakes()
    n, k = (32, 8192) if case["winner"] == "decompose_k" else (768, 1024)
    m, n, k = case["m"], case.get("n", n), case.get("k", k)
    if isinstance(m, list):
        m = fake_gpu.make_range(mode.shape_env, *m, hint=sum(m) // 2)
    scaled = {"out_dtype": torch.bfloat16, "use_fast_accum": bool(case.get("fast"))}
    products: dict[str, Callable[..., Any]] = {
        "mm": lambda x, w, b: x @ w,
        "addmm": lambda x, w, b: torch.addmm(b, x, w, **case.get("scalars", {})),
        "bmm": lambda x, w, b: torch.bmm(x, w),
        "baddbmm": lambda x, w, b: torch.baddbmm(b, x, w),
        "mm_plus_mm": lambda x, w, b: x @ w + (x + 1) @ (w + 1),
        "int_mm": lambda x, w, b: torch._int_mm(x, w),
        "scaled_mm": lambda x, w, b, *scales: torch._scaled_mm(x, w.t(), *scales, **scaled),
    }

    def compute(x: Any, w: Any, b: Any, *scales: Any) -> Any:
        y = products[case["op"]](torch.relu(x) if case.get("produced") else x, w, b, *scales)
        return torch.relu(y) * b if case["epilogue"] else y

    with mode:
        empty = functools.partial(h100.empty, dtype=getattr(torch, case.get("dtype", "bfloat16")))
        batch = [4] if case["op"] in ("bmm", "baddbmm") else []
        by_columns = case.get("linear") or case["op"] == "scaled_mm"
        x = empty(*batch, m, k)
        if gap := case.get("gap"):
            x = x.new_empty_strided((m, k), (k + gap, 1))
        w = empty(n, k).t() if by_columns else empty(*batch, k, n)
        inputs = [x, w, empty(n)]
        if case["op"] == "int_mm":
            inputs[:2] = [factor.to(torch.int8) for factor in inputs[:2]]
        elif case["op"] == "scaled_mm":
            inputs[:2] = [factor.to(torch.float8_e4m3fn) for factor in (x, w.t())]
            sizes: list[Any] = [(m, 1), (1, n)] if case.get("scales") == "row" else [(), ()]
            inputs += [h100.empty(*each, dtype=torch.float32) for each in sizes]
    graph = h100.trace(compute, inputs, mode)
    if case["op"] == "mm_plus_mm":  # a post-grad pattern makes it out of two mm and an add
        h100.run_post_grad(graph, mode)
    if case.get("visible"):  # as compile_fx marks what a model returns
        (end,) = graph.graph.find_nodes(op="output")
        end.meta |= {"user_visible_output_idxs": [0], "original_output_strides": [(n, 1)]}
    return graph, inputs, mode


def lower(case: Case) -> tuple[str, list[str]]:
    """Return the code that inductor generates, and the guards on sizes."""
    graph, inputs, mode = graph_of(case)
    return h100.generate(graph, inputs, mode), h100.guards_of(mode)


def rows_apart(code: str) -> dict[str, list[int]]:
    """Return how far apart the templates in *code* state the first factor's rows, and read them."""
    stated = re.findall(r"stride_am = (\d+)", code)
    # A row is loaded at `xindex` where that is its place, and else at an expression of its own.
    loads = re.findall(r"xindex = idx_n \+ (\d+)\*idx_m\s+a = tl\.load\(A \+ \((.*)", code)
    read_at = [(re.findall(r"idx_n \+ (\d+)\*idx_m", load) or [place])[0] for place, load in loads]
    return {"stated": sorted(set(map(int, stated))), "read": sorted(set(map(int, read_at)))}


# -- serving a row -----------------------------------------------------------------------------


def rows_of(case: Case) -> dict[str, Winner]:
    """Return the key of the case's problem with the candidate for its row; nothing is generated."""
    found: dict[str, Winner] = {}

    def choose(gemm: Gemm) -> list[Any]:
        selection = gemm.selection
        libraries = []
        for uid, candidates in {**gemm.candidates, **unlisted_candidates(selection)}.items():
            first = next(candidates, None)
            if first is None or uid == "aten::bias_addmm":
                continue
            if is_library(first):
                libraries.append(first)
            if uid.startswith(UIDS[case["winner"]]) and gemm.key not in found:
                winner = winner_of(first)
                kwargs = {**dict(winner.kwargs), **case.get("tile", {})}
                found[gemm.key] = replace(winner, kwargs=tuple(sorted(kwargs.items())))
        return libraries

    patches = Patches()
    expect_padding(patches)  # keys are those of an attached table
    with h100.choosing(choose), config.patch(GEMM_OPTIONS):
        lower(case)
    patches.restore()
    return found


def serve(case: Case, rows: dict[str, Winner]) -> dict[str, Any]:
    GENERATED.clear()
    made, result = h100.serve(lambda: lower(case), rows, case["mode"], options=GEMM_OPTIONS)
    result |= {"rows": {key: str(winner) for key, winner in rows.items()}}
    if made is not None:
        code, guards = made
        tiles = re.findall(r"(BLOCK_[MNK])\s*:\s*tl\.constexpr\s*=\s*(\d+)", code)
        result |= {
            "launches": re.findall(r"^\s+(triton_\w+)\.run", code, re.MULTILINE),
            "externs": re.findall(r"extern_kernels\.(\w+)\(", code),
            "guards": guards,
            "tile": {name: int(size) for name, size in tiles},
            "rows_apart": rows_apart(code),
        }
    return {**result, "generated": list(GENERATED)}


# -- searching ---------------------------------------------------------------------------------


def search_for(case: Case) -> dict[str, Any]:
    parts: list[SearchCounts] = []
    every: list[str] = []
    splits: list[int] = []
    last: dict[str, dict[str, Any]] = {}
    compiled: list[dict[str, Any]] = []
    rows: dict[str, Winner] = {}

    def choose(gemm: Gemm) -> list[Any]:
        listed = gemm.listed()
        found = search(gemm.selection, Search(case["search"]), listed, winners(case, "neighbours"))
        choices = iter(found.choices)
        added = {
            str(source): list(itertools.islice(choices, count))
            for source, count in found.searched.added
        }
        parts.append(found.searched)
        every.extend(
            str(sorted(map(str, kwargs_of(choice).items()))) for choice in (*listed, *found.choices)
        )
        last.update({source: kwargs_of(choices[-1]) for source, choices in added.items()})
        kwargs = (choice.params.to_kwargs() for choice in found.choices)
        splits.extend(named["k_split"] for named in kwargs if "k_split" in named)
        own = added.get(case.get("compile", ""), [])[-case.get("most", 99) :]
        compiled.extend({**kwargs_of(choice), **compile_choice(choice)} for choice in own)
        if case.get("serve") in added:
            rows[gemm.key] = winner_of(added[case["serve"]][-1])
        return [choice for choice in listed if is_library(choice)]

    with h100.choosing(choose), config.patch(GEMM_OPTIONS):
        _, guards = lower(case)
    searched = functools.reduce(operator.add, parts)
    return {
        "every": every,
        "added": dict(searched.added),
        "pruned": dict(searched.pruned),
        "spilling": searched.spilling,
        "tried": searched.tried,
        "splits": splits,
        "last": last,
        "compiled": compiled,
        "guards": guards,
        "served": serve(case, rows) if rows else None,
    }


def winners(case: Case, name: str) -> list[Winner]:
    """Return the winners of the mm template with the kwargs that the case has by *name*."""
    return [
        Winner(Family.TEMPLATE, mm_template.uid, portable_kwargs(kwargs) or ())
        for kwargs in case.get(name, ())
    ]


def kwargs_of(choice: Any) -> dict[str, Any]:
    return {"uid": choice.template.uid, **choice.params.to_kwargs()}


def compile_choice(choice: Any) -> dict[str, int]:
    """Return the shared memory that Triton takes for *choice*, and what was foretold."""
    taken: list[int] = []
    CachingAutotuner._make_launchers = lambda kernel: taken.extend(
        getattr(result.kernel, "metadata", result.kernel).shared
        for result in kernel.compile_results
    )
    choice.layout = choice.inputs.output_layout(flexible=False)
    request = choice.choice.bmreq
    module = PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path)
    getattr(module, request.kernel_name).precompile()
    tile, factor = tile_of(choice), GemmOperand(choice.inputs.dtype().itemsize)
    assert tile is not None
    return {"taken": taken[0], "foretold": shared_bytes(tile, factor, factor, has_warpgroups=True)}


# -- asking a tuner ----------------------------------------------------------------------------


@dataclass(slots=True)
class Silent:
    """A tuner that measures nothing, and keeps its questions."""

    questions: list[GemmQuestion] = field(default_factory=list)
    smaller_sizes: list[dict[str, Any]] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)

    def measure(self, question: Question) -> None:
        assert isinstance(question, GemmQuestion), question.problem.key
        self.questions.append(question)
        if question.vary is not None:
            timed = [one.winner for one in question.candidates if one.winner.family is Family.BLAS]
            made = question.vary(timed)
            self.varied += [str(one.spec["kwargs"]["algorithm"]) for one in made]
            assert all(dict(one.winner.kwargs) == one.spec["kwargs"] for one in made)
        self.smaller_sizes += [_at_smaller_size(question, one) for one in question.smaller_sizes]

    def close(self) -> None:
        pass


class Importing(Lookup):
    configs: tuple[Winner, ...] = ()

    def neighbours(self, problem: Problem) -> tuple[Winner, ...]:
        return self.configs or tuple(super().neighbours(problem))


def ask(case: Case) -> dict[str, Any]:
    """Return the question that a build asks of its tuner about the case, if there is one."""
    tuner = Silent()
    word = Search(case.get("search", "default"))
    lookup = Importing({}, OnMiss.FALLBACK, Emitter([]), tuner=tuner, search=word)
    lookup.configs = tuple(winners(case, "imported"))
    GENERATED.clear()
    with h100.attached(lookup, GEMM_OPTIONS):
        _, guards = lower(case)
    if not tuner.questions:
        return {"measured": []}
    (question,) = tuner.questions
    assert question.searched is not None
    return {
        "measured": [str(one.winner) for one in question.candidates],
        "short": [one.winner.short for one in question.candidates],
        "generated": list(GENERATED),
        "word": question.searched.search,
        "tried": question.searched.tried,
        "added": dict(question.searched.added),
        "left_out": question.searched.left_out,
        "offered": len(question.candidates) + len(question.uncompiled),
        "has_library": question.library in [one.winner for one in question.candidates],
        "size": question.size,
        "key": question.problem.key,
        "strides": [view.strides for view in question.views],
        "smaller_sizes": tuner.smaller_sizes,
        "varied": tuner.varied,
        "guards": guards,
    }


def _at_smaller_size(question: GemmQuestion, smaller: SmallerSize) -> dict[str, Any]:
    """Return the output there, grids by tile, and how many kernels are missing or changed."""
    asked = smaller.question_for([candidate.winner for candidate in question.candidates])
    before = {candidate.winner: candidate.spec for candidate in question.candidates}
    assert asked.out is not None
    templates = [one for one in asked.candidates if "template" in one.spec]
    return {
        "size": smaller.size,
        "out": asked.out.sizes,
        "grids": [
            (dict(one.winner.kwargs), one.spec["extra"][0], one.spec["extra"][-3:])
            for one in templates
        ],
        "missing": len(question.candidates) - len(asked.candidates),
        "changed": sum(one.spec["template"] != before[one.winner]["template"] for one in templates),
    }


# -- torch's own table -------------------------------------------------------------------------


def export(rows: dict[str, Winner]) -> Any:
    table = read(H100)
    origin = table.provenance
    origin = replace(origin, runtime=replace(origin.runtime, torch=torch.__version__))
    tuned = {key: Row(winner, h100.EVIDENCE) for key, winner in rows.items()}
    exported = export_lookup_table(replace(table, provenance=origin, rows=tuned))
    assert not exported.left_out, exported.left_out
    return json.loads(exported.text)


def answer(case: Case) -> dict[str, Any]:
    case = {"op": "mm", "winner": "none", "epilogue": False, "mode": "strict", **case}
    if "search" in case:
        return ask(case) if case.get("asked") else search_for(case)
    rows = {} if case["winner"] == "none" else rows_of(case)
    return export(rows) if case.get("exported") else serve(case, rows)


def count_templates() -> None:
    original = select_algorithm.TritonTemplate.generate

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        GENERATED.append(self.name)
        return original(self, *args, **kwargs)

    select_algorithm.TritonTemplate.generate = count


if __name__ == "__main__":
    count_templates()
    h100.answer_each(answer)
